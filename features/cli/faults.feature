Feature: A wrong command ends with one clear message and a documented exit code

  Scenario Outline: Nothing is sent where the command is wrong: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "empty.jsonl" of 0 prompts
    And a command's folder named "dir"
    And a command's file "doubled.jsonl"
      """
      {"id": "a", "prompt": "one"}
      {"id": "a", "prompt": "two"}
      """
    And a command's file "numbered.jsonl"
      """
      {"prompt": "one"}
      {"id": 1, "prompt": "two"}
      """
    And a command's file "broken.yaml"
      """
      name: tests/asker
      provider: anthropic
      modell: claude-haiku-4-5
      """
    And a command's file "alien.yaml"
      """
      name: tests/asker
      provider: acme
      model: claude-haiku-4-5
      """
    And a command's file "tx/terms.md"
      """
      No refunds.
      """
    And a command's file "tx/cited.jsonl"
      """
      {"prompt": "Any refunds?", "documents": ["terms.md"]}
      """
    And a command's file "tx/reader.yaml"
      """
      name: tests/reader
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: true
      documents: [terms.md]
      """
    And a command's file "tx/summary.json"
      """
      {}
      """
    When a command runs: <words>
    Then the command line exits with 2 and says
      """
      <message>
      """
    And the command line has sent nothing

    Examples:
      | words                                              | message                                                     |
      | run actor.yaml                                     | give ACTOR and INPUT, or --model and INPUT                  |
      | run asks.jsonl asks.jsonl                          | asks.jsonl comes first, so it is read as ACTOR              |
      | run                                                | Missing argument                                            |
      | run actor.yaml asks.jsonl --system x               | need --model                                                 |
      | run --model claude-haiku-4-5 actor.yaml asks.jsonl | --model is given instead of ACTOR, but actor.yaml is given too. Leave out --model to use this actor, or leave out actor.yaml |
      | run actor.yaml alien.yaml asks.jsonl               | one command has one actor, and alien.yaml is an actor too. Leave it out, or run a command for each |
      | submit actor.yaml asks.jsonl actor.yaml            | one command has one actor, and actor.yaml is an actor too   |
      | estimate --model claude-haiku-4-5 asks.jsonl alien.yaml | one command has one actor, and alien.yaml is an actor too |
      | submit broken.yaml --model claude-haiku-4-5        | but broken.yaml is given too                                 |
      | run actor.yaml asks.jsonl --max-tokens 5           | need --model                                                 |
      | run actor.yaml asks.jsonl --prompt-column q        | --prompt-column is for CSV and TSV files, and no input is one: its name ends in .csv or .tsv. Leave the flag out, or save the table as CSV. Nothing was sent |
      | run actor.yaml asks.jsonl --id-column q            | --id-column is for CSV and TSV files, and no input is one    |
      | run actor.yaml asks.jsonl --label "n\udcff"         | error: the label 'n\udcff' has a lone surrogate, which cannot be stored; give another. Nothing was sent |
      | run actor.yaml empty.jsonl                         | error: empty.jsonl: the input has no requests. Nothing was sent |
      | run actor.yaml doubled.jsonl                       | error: doubled.jsonl:2: request 'a': this key is used twice in the same run |
      | estimate actor.yaml doubled.jsonl                  | error: doubled.jsonl:2: request 'a': this key is used twice in the same run |
      | estimate actor.yaml numbered.jsonl                 | error: numbered.jsonl:2: request '1': this key is used twice in the same run; a line without an `id` has its number as its key |
      | run actor.yaml numbered.jsonl                      | error: numbered.jsonl:2: request '1': this key is used twice in the same run; a line without an `id` has its number as its key |
      | run actor.yaml nowhere.jsonl                       | error: nowhere.jsonl: no such file. Nothing was sent        |
      | run actor.yaml 'Name a knot.'                      | Name a knot.: no such file. INPUT names files. To send one prompt, |
      | run actor.yaml 'A knot?'                           | A knot?: no file matches this pattern. INPUT names files.   |
      | run nowhere.yaml asks.jsonl                        | nowhere.yaml                                                |
      | run broken.yaml asks.jsonl                         | `claude-batch actors validate broken.yaml` lists all        |
      | run alien.yaml asks.jsonl                          | no provider is called 'acme'                                |
      | run actor.yaml asks.jsonl -o dir                   | dir: is a directory; name a file with -o. Nothing was sent  |
      | run actor.yaml asks.jsonl -o asks.jsonl            | asks.jsonl: is read by this command, and would be replaced |
      | run actor.yaml *.jsonl -o ./asks.jsonl             | asks.jsonl: is read by this command, and would be replaced |
      | run actor.yaml asks.jsonl -o answers.xlsx          | answers.xlsx: .xlsx is not a format of the answers; they are written as JSON lines (.jsonl) or CSV (.csv) |
      | submit actor.yaml asks.jsonl -o ANSWERS.Parquet    | with cb.to_frame, whose frame writes them. Nothing was sent |
      | results run-x -o answers.feather                   | answers.feather: .feather is not a format                   |
      | export run-x -o answers.db                         | answers.db: .db is not a format                             |
      | run actor.yaml asks.jsonl -o actor.yaml            | actor.yaml: is read by this command                         |
      | run actor.yaml asks.jsonl --ledger l.db -o l.db    | l.db: is a file of the ledger, which holds what was paid for |
      | run actor.yaml asks.jsonl --ledger l.db -o l.db-wal | l.db-wal: is a file of the ledger                          |
      | run actor.yaml asks.jsonl --ledger sqlite:///l.db -o l.db | l.db: is a file of the ledger, which holds what was paid for |
      | run actor.yaml tx/cited.jsonl -o tx/terms.md       | tx/terms.md: is read by this command, and would be replaced; name another with -o. Nothing was sent |
      | submit actor.yaml tx/cited.jsonl --skip-invalid -o tx/terms.md | tx/terms.md: is read by this command            |
      | run tx/reader.yaml asks.jsonl -o tx/terms.md       | tx/terms.md: is read by this command                        |
      | run actor.yaml asks.jsonl --prices tx/summary.json -o tx/summary.json | tx/summary.json: is read by this command |
      | submit actor.yaml tx/summary.json --results-dir tx | tx/summary.json: is read by this command, and would be replaced by a file of tx; name another folder with --results-dir |
      | submit actor.yaml asks.jsonl --prices tx/summary.json --results-dir ./tx | tx/summary.json: is read by this command, and would be replaced |
      | run actor.yaml asks.jsonl -o dir/000001.json --results-dir dir | dir/000001.json: would be replaced by a file of dir; name another with -o |
      | run actor.yaml asks.jsonl -o new --results-dir new  | new: is a directory; name a file with -o. Nothing was sent |
      | run actor.yaml asks.jsonl -o new --results-dir new/sub | new: is a directory; name a file with -o. Nothing was sent |
      | run actor.yaml asks.jsonl --deadline 2020-01-01T00:00Z | the deadline 2020-01-01T00:00:00+00:00 is in the past   |
      | run actor.yaml asks.jsonl --base-url localhost:80  | an API's URL begins with http:// or https:// and a host; correct --base-url |
      | export run-x --ledger l.db -o l.db                 | l.db: is a file of the ledger                               |
      | results run-x --ledger sqlite:///l.db -o l.db      | l.db: is a file of the ledger                               |
      | doctor --live --yes --ledger l.db -o l.db          | l.db: is a file of the ledger, which holds what was paid for; name another with -o. Nothing was sent |
      | doctor --live --yes --prices tx/summary.json -o tx/summary.json | tx/summary.json: is read by this command, and would be replaced; name another with -o. Nothing was sent |
      | run /dev/zero asks.jsonl                           | error: /dev/zero: the file cannot be read: it has more than 16,000,000 bytes |
      | run actor.yaml asks.jsonl --prices /dev/zero       | error: /dev/zero: the prices cannot be read: it has more than 16,000,000 bytes |
      | gateway --tokens /dev/zero                         | error: --tokens /dev/zero: it has more than 16,000,000 bytes |
      | doctor --live --yes -o -                           | the report is not written to standard output; name a file, or use --json |
      | doctor --live --yes -o no/report.md                | no/report.md: cannot be written: No such file or directory. Nothing was sent |
      | run actor.yaml asks.jsonl -o new/                  | new/: is a directory; name a file with -o. Nothing was sent |
      | run actor.yaml asks.jsonl -o nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn | cannot be written: File name too long. Nothing was sent |
      | run actor.yaml asks.jsonl -o "o\udcff.jsonl"       | because it is not UTF-8, or because the locale is not; name another with -o. Nothing was sent |
      | submit actor.yaml asks.jsonl --results-dir "d\udcff" | because it is not UTF-8, or because the locale is not; name another with --results-dir. Nothing was sent |
      | results run-x -o "o\udcff.jsonl"                   | /o\udcff.jsonl, because it is not UTF-8, or because the locale is not; name another with -o |
      | export run-x -o "o\udcff.jsonl"                    | /o\udcff.jsonl, because it is not UTF-8, or because the locale is not; name another with -o |
      | run actor.yaml asks.jsonl -o no/out.jsonl          | no/out.jsonl: cannot be written: No such file or directory. Nothing was sent |
      | run actor.yaml asks.jsonl --poll-interval soon     | Invalid value for '--poll-interval'                         |
      | run actor.yaml asks.jsonl --max-attempts 99999999999999999999 | error: --max-attempts: Input should be less than or equal to 1000000000 |
      | run actor.yaml asks.jsonl --requests-per-minute 99999999999999999999 | error: --requests-per-minute: 99999999999999999999 is more than 1,000,000,000 |
      | run actor.yaml asks.jsonl --max-wait 99999999999999d | '99999999999999d' is longer than 100 years; write a shorter duration |
      | run actor.yaml asks.jsonl --deadline 9999-12-31T23:59:59-12:00 | error: --deadline: 9999-12-31T23:59:59-12:00 is not a time from 1970 to 9000; correct the year |
      | run actor.yaml asks.jsonl --poll-interval 49ms     | error: --poll-interval: Input should be greater than or equal to 0.05 |
      | run actor.yaml asks.jsonl --max-requests 0         | error: --max-requests: Input should be greater than or equal to 1 |
      | run actor.yaml asks.jsonl --max-wait 0             | error: --max-wait: Input should be greater than 0           |
      | run actor.yaml asks.jsonl --prime                  | error: --prime: it needs `cache: auto` (--cache auto)       |
      | estimate actor.yaml asks.jsonl --max-requests 0    | error: --max-requests: Input should be                      |
      | run actor.yaml asks.jsonl --on-timeout shrug       | Invalid value for '--on-timeout'                            |
      | run actor.yaml asks.jsonl --api-key-env NOT_SET    | NOT_SET is not set                                          |
      | run actor.yaml asks.jsonl --ledger dir             | dir                                                         |
      | run actor.yaml asks.jsonl -o ""                    | --output is empty; give a value, or leave it out |
      | submit actor.yaml asks.jsonl --output=             | --output is empty                                           |
      | run actor.yaml asks.jsonl --results-dir ""         | --results-dir is empty                                      |
      | run actor.yaml asks.jsonl --ledger=                | --ledger is empty                                           |
      | run actor.yaml asks.jsonl --base-url ""            | --base-url is empty                                         |
      | run actor.yaml asks.jsonl --api-key-env ""         | --api-key-env is empty                                      |
      | run actor.yaml asks.jsonl --prices ""              | --prices is empty                                           |
      | run asks.jsonl --model ""                          | --model is empty                                            |
      | results run-x -o ""                                | --output is empty                                           |
      | results run-x --results-dir ""                     | --results-dir is empty                                      |
      | export run-x -o ""                                 | --output is empty                                           |
      | resume --ledger ""                                 | --ledger is empty                                           |
      | doctor --live --yes -o ""                          | --output is empty                                           |
      | budget --actor "" 5                                | --actor is empty                                            |
      | worker --schema ""                                 | --schema is empty                                           |
      | dashboard --allow-host ""                          | --allow-host is empty                                       |
      | gateway --host ""                                  | --host is empty                                             |
      | ledger backup ""                                   | FILE is empty; give a value, or leave it out                |
      | run "" asks.jsonl                                  | ACTOR is empty; give a value                                |
      | run actor.yaml ""                                  | INPUT is empty; give a value                                |
      | estimate --model claude-haiku-4-5 ""               | INPUT is empty                                              |
      | actors validate actor.yaml ""                      | FILE is empty; give a value                                 |
      | status ""                                          | RUN is empty; give a value, or leave it out                 |
      | show run-x ""                                      | KEY is empty                                                |
      | ledger prune ""                                    | RUN is empty                                                |
      | ledger copy ""                                     | FILE is empty                                               |
      | run actor.yaml asks.jsonl --label ""               | --label is empty                                            |
      | run actor.yaml asks.jsonl --document ""            | --document is empty                                         |
      | submit actor.yaml asks.jsonl --csv-safe -o a.jsonl | --csv-safe writes CSV, and a.jsonl is a name of JSON lines; give a name in .csv |
      | ledger backup -                                    | a backup is not written to standard output; name a file     |
      | gateway --port 99999                               | Invalid value for '--port': 99999 is not in the range 0<=x<=65535 |
      | dashboard --token ""                               | --token or CLAUDE_BATCH_DASHBOARD_TOKEN is empty; give a value, or leave it out |
      | dashboard --port -1                                | Invalid value for '--port': -1 is not in the range 0<=x<=65535 |
      | gateway --port PORT                                | : Address already in use. Choose another address with --host or --port; --port 0 takes a free port |
      | budget --daily 5 run-x                             | --daily sets another budget than that of RUN. Leave out run-x, or give its budget in dollars too |
      | budget run-x --actor tests/asker 5                 | --actor sets another budget than that of RUN                |
      | unknown run-x --resubmit --give-up                 | --resubmit and --give-up exclude each other; give one of them |
      | run actor.yaml asks.jsonl --sandbox --ledger l.db  | --sandbox has a ledger, an API and a key of its own, so --ledger would do nothing |
      | run actor.yaml asks.jsonl --sandbox --base-url http://a | so --base-url would do nothing                         |
      | gateway --sandbox --api-key-env MY_KEY             | so --api-key-env would do nothing                           |
      | ledger prune run-x --older-than 30d                | --older-than chooses runs by their age, and run-x is named; leave out one of them |
      | ledger prune --older-than 30                       | Invalid value for '--older-than': 30 has no unit; write 30d for days or 30s for seconds |
      | submit actor.yaml doubled.jsonl                    | doubled.jsonl:2                                             |
      | status run-nosuchrun                               | there is no ledger                                          |
      | results run-nosuchrun -o dir                       | dir: is a directory                                         |
      | results run-nosuchrun                              | there is no ledger                                          |
      | cancel run-nosuchrun                               | there is no ledger                                          |
      | resume                                             | there is no ledger                                          |
      | shout                                              | No such command                                             |
      | prune --older-than 30d                             | No such command 'prune'. Did you mean 'ledger prune'?       |
      | validate actor.yaml                                | No such command 'validate'. Did you mean 'actors validate'? |
      | list                                               | No such command 'list'. Did you mean 'status'?              |
      | stop run-nosuchrun                                 | No such command 'stop'. Did you mean 'cancel'?              |
      | run actor.yaml asks.jsonl --timeout 5              | No such option '--timeout'. Did you mean '--max-wait'?      |
      | run actor.yaml asks.jsonl --max-retries 5          | No such option '--max-retries'. Did you mean '--max-attempts'? |
      | run actor.yaml asks.jsonl --batch-size 5           | No such option '--batch-size'. Did you mean '--max-requests'? |
      | run actor.yaml asks.jsonl --dry-run                | No such option '--dry-run'. Did you mean 'estimate'?        |
      | cancel run-x --dry-run                             | No such option '--dry-run'                                  |
      | status --timeout 5                                 | No such option '--timeout'                                  |

  Scenario: A command whose ledger's file is removed does not report that everything is kept
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "a", "prompt": "one"}
      {"id": "b", "prompt": "two [[sandbox:errored:overloaded_error:once]]"}
      """
    When at the point after_collected a ledger has trouble: its file is removed
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      was removed or replaced by another file after this process had opened it
      """
    And the command line does not say: stored is kept

  Scenario: In a directory whose name is not UTF-8, an output that the ledger cannot store is refused
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's folder named "caf\udcff"
    When a command changes to the folder "caf\udcff"
    And a command runs: run ../actor.yaml ../asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      out.jsonl: the ledger cannot store the path
      because it is not UTF-8, or because the locale is not; name another with -o. Nothing was sent
      """
    And the command line has sent nothing
    When a command runs: run ../actor.yaml ../asks.jsonl
    Then the command line exits with 0

  Scenario: Without a key nothing is sent, and the message names the variable
    Given a command's API
    And a command's environment lacks ANTHROPIC_API_KEY
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      no API key: set ANTHROPIC_API_KEY
      """
    And the command line has sent nothing

  Scenario: An empty environment variable counts as none
    Given a command's API
    And a command's environment has CLAUDE_BATCH_LEDGER = nothing
    # Where the default ledger is then.
    And a command's environment has HOME = the folder
    And a command's environment has CLAUDE_BATCH_API_KEY_ENV = nothing
    And a command's environment has CLAUDE_BATCH_PRICES = nothing
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 0

  Scenario: A wrong environment variable is named
    Given a command's API
    And a command's environment has CLAUDE_BATCH_MAX_REQUESTS = 0
    And a command's environment has CLAUDE_BATCH_MAX_POLL_INTERVAL = 10ms
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      error: CLAUDE_BATCH_MAX_REQUESTS: Input should be greater than or equal to 1
      """
    When a command runs: run actor.yaml asks.jsonl --max-requests 5
    Then the command line exits with 2 and says
      """
      error: CLAUDE_BATCH_MAX_POLL_INTERVAL: Input should be greater than or equal to 0.05
      """
    And the command line has sent nothing

  Scenario Outline: A misspelled environment variable is named by a command that opens no provider: <words>
    Given a command's API
    And a command's environment has <name> = the folder
    And a command's environment lacks <meant>
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: <words>
    Then the command line exits with 2 and says
      """
      error: the environment variable <name> is not a setting; did you mean <meant>? Rename or unset it, because it would be ignored. Nothing was sent
      """

    Examples:
      | words                                  | name                | meant               |
      | status                                 | CLAUDE_BATCH_LEDGERS | CLAUDE_BATCH_LEDGER |
      | ledger show                            | CLAUDE_BATCH_LEDGR  | CLAUDE_BATCH_LEDGER |
      | cost                                   | CLAUDE_BATCH_PRICE  | CLAUDE_BATCH_PRICES |
      | estimate actor.yaml asks.jsonl --offline | CLAUDE_BATCH_BUDGET | CLAUDE_BATCH_BUDGET_USD |

  Scenario: A key that has no effect where it stands in an actor's file is named once, and a budget is refused
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "spare.yaml"
      """
      name: tests/spare
      model: claude-haiku-4-5
      thinking: {type: enabled, budget_tokens: 1024}
      mode: stream
      """
    When a command runs: run spare.yaml asks.jsonl
    Then the command line exits with 0 and says
      """
      spare.yaml: actor tests/spare: `thinking` is kept for a host framework, and has no effect here. It belongs under `options`
      """
    And the command line says 1 times: has no effect here
    Given a command's file "spare.yaml"
      """
      name: tests/spare
      model: claude-haiku-4-5
      budget_usd: 0.0001
      """
    When a command runs: run spare.yaml asks.jsonl --new
    Then the command line exits with 2 and says
      """
      error: spare.yaml:3: `budget_usd` has no effect here, so nothing would limit the cost; move it under `batch_processing`
      """
    And the command line has caused 1 batches of 1 requests

  Scenario Outline: Settings are taken as the documentation writes them: <name> = <value>
    Given a command's API
    And a command's environment has <name> = <value>
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl <flags>
    Then the command line exits with 0

    Examples:
      | name                   | value                  | flags                               |
      | CLAUDE_BATCH_ON_UNKNOWN | resubmit              | --resubmit-after 1h                 |
      | CLAUDE_BATCH_MODE      | auto                   | --auto-threshold 5                  |
      | CLAUDE_BATCH_PREFLIGHT | auto                   |                                     |
      | CLAUDE_BATCH_PREFLIGHT | false                  |                                     |
      | CLAUDE_BATCH_PREFLIGHT | auto                   | --no-preflight                      |
      | CLAUDE_BATCH_RETRY_ON  | [not_found_error, 413] |                                     |
      | CLAUDE_BATCH_RETRY_ON  | 529                    | --retry-on "[not_found_error, 413]" |

  Scenario Outline: A flag that does nothing is a warning, because scripts give several commands the same flags: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: <words>
    Then the command line exits with <code> and says
      """
      warning: <warning>
      """

    Examples:
      | words                                             | code | warning                                               |
      | submit actor.yaml asks.jsonl --fallback none      | 0    | --fallback does nothing without --deadline            |
      | submit actor.yaml asks.jsonl --deadline-margin 1h | 0    | --deadline-margin does nothing without --deadline     |
      | submit actor.yaml asks.jsonl --live-concurrency 3 | 0    | --live-concurrency does nothing without --mode live, --mode auto or --deadline |
      | submit actor.yaml asks.jsonl --auto-threshold 5   | 0    | --auto-threshold does nothing without --mode auto     |
      | submit actor.yaml asks.jsonl --mode live --auto-threshold 5 | 0 | --auto-threshold does nothing without --mode auto |
      | submit actor.yaml asks.jsonl --resubmit-after 1h  | 0    | --resubmit-after does nothing without --on-unknown resubmit |
      | resume --on-unknown wait --resubmit-after 1h      | 0    | --resubmit-after does nothing without --on-unknown resubmit |
      | run actor.yaml asks.jsonl --heartbeat 1s          | 0    | --heartbeat needs a ledger on PostgreSQL              |
      | resume --mode live                                | 0    | --mode does nothing here, because a run keeps its settings |

  Scenario: A sum without a run is no budget of a run
    Given a command's API
    When a command runs: budget 5
    Then the command line exits with 2 and says
      """
      5 is an amount, and RUN is missing. Set a budget with RUN and USD, --actor NAME USD, or --daily USD
      """

  Scenario: Another environment variable may hold the key
    Given a command's API
    And a command's environment lacks ANTHROPIC_API_KEY
    And a command's environment has MY_KEY = sk-other
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl --api-key-env MY_KEY
    Then the command line exits with 0

  Scenario: --skip-invalid leaves out what cannot be sent, reports each, and asks the rest
    Given a command's API
    And a command's file "asks.jsonl"
      """
      oops
      {"id": "a", "prompt": "one"}
      {"id": "a", "prompt": "two"}
      """
    When a command runs: run actor.yaml asks.jsonl --skip-invalid -o out.jsonl
    Then the command line exits with 0 and says
      """
      skipped: asks.jsonl:1: not valid JSON
      skipped: asks.jsonl:3: request 'a': this key is used twice in the same run
      skipped 2 of 3 items
      """
    And the command line has written to "out.jsonl"
      | id | ok  | says |
      | a  | yes | one  |

  Scenario: If every item is skipped, nothing is sent
    Given a command's API
    And a command's file "asks.jsonl"
      """
      oops
      """
    When a command runs: run actor.yaml asks.jsonl --skip-invalid
    Then the command line exits with 2 and says
      """
      asks.jsonl: the input has no requests; 1 item was skipped. Nothing was sent
      """
    And the command line has sent nothing

  Scenario: A prompt over the limit of a batch is refused by its line
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "What happens if all that is asked at once does not fit?"
      """
    When a command runs, with at most 100 bytes a batch: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl:1: request '1'
      """
    And the command line has sent nothing

  Scenario: A wrong key halts, tells which variable to check, and marks nothing failed
    Given a command's API with {"faults": {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      halted: sending is halted (credentials): 
      check the key in the variable ANTHROPIC_API_KEY
      continue with: claude-batch resume RUN
      """
    And the command line has left no "out.jsonl"
    When a command runs: submit actor.yaml asks.jsonl --new
    Then the command line exits with 4
    When a command runs: advance
    Then the command line exits with 4 and says
      """
      sending is halted (credentials): API key is invalid; fix the cause, then run
      """
    When a command runs: status RUN
    Then the command line prints
      """
      halted: 2 queued of 2
      """
    When the API has no faults any more
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"

  Scenario: advance says that its key is refused, although only an earlier one has sent the run
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's key is changed to "sk-invalid"
    And a command runs: advance
    Then the command line exits with 4 and says
      """
      sending is halted (credentials): authentication_error: API key is invalid
      """
    When a command's key is changed to "sk-any"
    And a command runs: advance
    Then the command line exits with 3 and says
      """
      RUN is in progress: 2 packed of 2
      """

  Scenario: A halt for money does not blame the key
    Given a command's API with {"faults": {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 4 and says
      """
      billing
      """
    And the command line does not say: check the key

  Scenario: A server that cannot be reached parks the run, which goes on once it can
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      RUN running: 2 queued of 2 (http://127.0.0.1:1 cannot be reached
      parked: http://127.0.0.1:1 cannot be reached
      Check the network and the base URL. Everything stored is kept
      continue with: claude-batch resume RUN --base-url http://127.0.0.1:1
      """
    When a command runs: submit actor.yaml asks.jsonl --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      not everything was sent:
      """
    When a command runs: advance --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      http://127.0.0.1:1 cannot be reached
      """

  Scenario Outline: A base URL that is not the Messages API parks the run, and nothing fails: <url>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl <flags> --base-url http://127.0.0.1:PORT<url>
    Then the command line exits with 3 and says
      """
      RUN running: 2 queued of 2 (http://127.0.0.1:
      <url> is not the Messages API: it answers /v1/messages/batches with 404; <remedy>
      Everything stored is kept; nothing of RUN was sent. Run `claude-batch cancel RUN`, and repeat this command with the right base URL
      """
    When a command runs: status RUN
    Then the command line prints
      """
      2 queued of 2
      """
    And the API has been paid 0 times, never twice for the same
    When a command runs: resume
    Then the command line exits with 3 and says
      """
      RUN is meant for http://127.0.0.1:
      <url>, but this command uses http://127.0.0.1:
      Nothing of it was sent. If its base URL is wrong, run `claude-batch cancel RUN`, and repeat the command that made it with the right one. Otherwise continue with: claude-batch resume RUN --base-url http://127.0.0.1:
      """
    When a command runs: cancel RUN
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl <flags>
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"
    When a command runs: resume
    Then the command line exits with 0

    Examples:
      | url                  | flags       | remedy                                                  |
      | /v1                  |             | leave out /v1 at the end of the base URL                  |
      | /v1                  | --mode live | leave out /v1 at the end of the base URL                  |
      | /v1/messages/batches |             | leave out /v1/messages/batches at the end of the base URL |
      | /other               |             | correct the base URL (--base-url, ANTHROPIC_BASE_URL)     |

  Scenario Outline: Each command that asks a wrong base URL names it: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: <words> --base-url http://127.0.0.1:PORT/v1
    Then the command line exits with <code> and says
      """
      :
      /v1
      leave out /v1 at the end of the base URL (--base-url, ANTHROPIC_BASE_URL)
      """

    Examples:
      | words                         | code |
      | run actor.yaml asks.jsonl --new | 3    |
      | estimate actor.yaml asks.jsonl | 0   |
      | ledger recover --even-if-whole | 3   |

  Scenario: A 404 after a good answer says nothing of the base URL
    Given a command's API with {"faults": {"rules": [{"route": "create", "times": 4, "action": {"type": "error", "status": 404}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 4 and says
      """
      sending is halted (refused): not_found_error: 404 not_found_error: Not found
      """
    And the command line does not say: base URL

  Scenario: A server that fails at first is waited for
    Given a command's API with {"faults": {"rules": [{"route": "any", "times": 1, "action": {"type": "drop_before"}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 0 and says
      """
      finished: 1 succeeded of 1
      """

  Scenario: A server that goes away after it has answered is waited for
    Given a command's API with {"faults": {"rules": [{"route": "retrieve", "times": 8, "action": {"type": "drop_before"}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 1 answers in order to "out.jsonl"
    And the API was called 9 times by GET /v1/messages/batches/msgbatch_*[0-9a-f]

  Scenario: An output that cannot be written at the end loses nothing
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs, while the file "out.jsonl" turns into a folder: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      error: out.jsonl: cannot be written: Is a directory. The results are kept. Write them with: claude-batch results RUN -o OUT
      """
    And the command line has left nothing half-written
    And the command line has noted that the run is not delivered
    When a command runs: resume
    Then the command line exits with 2
    When a command runs: advance
    Then the command line exits with 2
    When a command runs: results RUN -o other.jsonl
    Then the command line exits with 0
    And the command line has written 2 answers in order to "other.jsonl"

  Scenario Outline: An error while a run is waited for is reported without a traceback: <error>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs, while waiting fails with <error>: run actor.yaml asks.jsonl
    Then the command line exits with 3 and says
      """
      <message>
      """

    Examples:
      | error             | message                                                                 |
      | LedgerError       | parked: it broke. Everything stored is kept; continue with: claude-batch resume |
      | ZeroDivisionError | error: ZeroDivisionError: it broke. This is a bug in claude-batch       |

  Scenario Outline: Every error has an exit code: <error>
    Then the command line ends <error> with <code>, saying: <message>

    Examples:
      | error              | code | message                                  |
      | BadInput           | 2    | error: a.jsonl:1: no. Nothing was sent   |
      | BadOutput          | 2    | error: out: no                           |
      | AccountHaltedError | 4    | halted: no                               |
      | EngineStoppedError | 3    | error: no                                |
      | LedgerError        | 2    | error: no                                |
      | KeyboardInterrupt  | 3    | interrupted; everything stored before is kept. To go on, repeat the command |
      | BrokenPipeError    | 3    | nothing                                  |
      | ZeroDivisionError  | 3    | This is a bug in claude-batch            |

  Scenario: CLAUDE_BATCH_DEBUG shows the traceback of an unexpected error
    Given a command's environment has CLAUDE_BATCH_DEBUG = 1
    Then the command line ends ZeroDivisionError with 3, saying: ZeroDivisionError: no. This is a bug

  Scenario: A key that is revoked while requests wait is replaced, and the new one goes on at once
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "more.jsonl" of 2 prompts
    When a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0
    Given the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    Given the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "delay", "seconds": 0.5}}]}
      """
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-new
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario: A schema for a model without structured outputs is refused before anything is stored
    Given a command's API
    And a command's file "old.yaml"
      """
      name: tests/old
      model: claude-3-haiku-20240307
      response_format: {type: object, properties: {total: {type: number}}}
      batch_processing: true
      """
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run old.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      error: old.yaml: claude-3-haiku-20240307 has no structured outputs, which `output_config.format` (an actor's `response_format` or `output_format`) needs; name a model that has them
      """
    And the command line has sent nothing
    And the command line's ledger has 0 runs

  Scenario Outline: A fault of the actor's options is reported for its file, not for a line: <words>
    Given a command's API
    And a command's file "wrong.yaml"
      """
      name: tests/wrong
      model: claude-haiku-4-5
      options: <options>
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: <words>
    Then the command line exits with 2 and says
      """
      error: <fault>. Nothing was sent
      """
    And the command line does not say: skip
    And the command line has sent nothing

    Examples:
      | options         | words                                      | fault |
      | {max_tokens: 0} | run wrong.yaml asks.jsonl                  | wrong.yaml: `max_tokens: 0` asks for no answer; give at least 1 |
      | {stream: true}  | run wrong.yaml asks.jsonl --skip-invalid   | wrong.yaml: `stream: true` is not allowed in a batch; remove it |
      | {stream: true}  | estimate wrong.yaml asks.jsonl --offline   | wrong.yaml: `stream: true` is not allowed in a batch; remove it |
      | {}              | submit --model claude-haiku-4-5 --max-tokens 99999999 asks.jsonl | --model claude-haiku-4-5: `max_tokens: 99999999` is more than the 64,000 of claude-haiku-4-5; lower it |

  Scenario: A request with options of its own does not have the fault of the actor's
    Given a command's API
    And a command's file "wrong.yaml"
      """
      name: tests/wrong
      model: claude-haiku-4-5
      options: {max_tokens: 0}
      """
    And a command's file "asks.jsonl"
      """
      {"prompt": "one", "options": {"max_tokens": 9}}
      {"prompt": "two", "options": {"max_tokens": -1}}
      """
    When a command runs: run wrong.yaml asks.jsonl --skip-invalid
    Then the command line exits with 0 and says
      """
      skipped: asks.jsonl:2: request '2': `max_tokens: -1` is negative; give at least 1
      """

  Scenario: model_capabilities overrides the table of models, and the API decides
    Given a command's API
    And a command's file "old.yaml"
      """
      name: tests/old
      model: claude-3-haiku-20240307
      response_format: {type: object, properties: {total: {type: number}}}
      model_capabilities: {structured_outputs: true}
      batch_processing: true
      """
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run old.yaml asks.jsonl -o out.jsonl --no-preflight
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id | ok | says |
      | 1  | no | 'claude-3-haiku-20240307' does not support output format |
    Given a command's file "wrong.yaml"
      """
      name: tests/wrong
      model: claude-3-haiku-20240307
      model_capabilities: {structure: true}
      """
    When a command runs: actors validate wrong.yaml
    Then the command line exits with 2 and says
      """
      `structure` is not a capability; known: `structured_outputs`
      """

  Scenario: A wrong value of a setting is reported for its variable, if it is from there
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's environment has CLAUDE_BATCH_PRIME = maybe
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      Invalid value for the environment variable CLAUDE_BATCH_PRIME: 'maybe'
      """

  Scenario: An empty variable for the dashboard's token is refused, because its pages would ask for none
    Given a command's folder
    And a command's environment has CLAUDE_BATCH_DASHBOARD_TOKEN = nothing
    When a command runs: dashboard --no-open
    Then the command line exits with 2 and says
      """
      --token or CLAUDE_BATCH_DASHBOARD_TOKEN is empty; give a value, or leave it out
      """

  Scenario Outline: A path that is no ledger is not said to be a damaged one: <name>
    Given a command's folder
    And a command's folder named "folder"
    And a command's file "notes.txt"
      """
      Buy milk. This is a list, and longer than the header of a database.
      """
    When a command runs: status --ledger <name>
    Then the command line exits with 2 and says
      """
      <message>
      """
    And the command line does not say: ledger recover
    When a command runs: doctor --ledger <name>
    Then the command line exits with 2
    And the command line prints
      """
      <message>
      """

    Examples:
      | name      | message                                                                   |
      | notes.txt | notes.txt is not a ledger (no SQLite file); name the ledger with --ledger |
      | folder    | folder is a folder; name the ledger, which is a file, with --ledger       |
