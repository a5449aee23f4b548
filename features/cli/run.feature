@every_python
Feature: `claude-batch run` asks, waits, and writes the answers in input order

  Scenario: Answers come in input order, with the fields of a success, and nothing is sent twice
    Given a command's API
    And a command's file "asks.jsonl" of 25 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      RUN is stored: 25 requests
      wrote out.jsonl
      RUN finished: 25 succeeded of 25
      """
    And the command line does not say: answers after 1s to 1s
    And the command line has written 25 answers in order to "out.jsonl"
    And the command line's successes in "out.jsonl" have the fields id, ok, text, content, stop_reason, model, usage, batch_id, attempt, via, cost_usd
    And the command line has left nothing half-written
    And the command line has noted that the run is delivered
    And the key is nowhere in the ledger's files

  Scenario: A run with failures ends with their reasons, and with what to do next
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "a [[sandbox:errored:overloaded_error]]"
      "b [[sandbox:errored:overloaded_error]]"
      "c [[sandbox:errored:not_found_error]]"
      "d [[sandbox:expired]]"
      "e [[sandbox:errored:permission_error]]"
      "f [[sandbox:errored:permission_error]]"
      "g"
      """
    And a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      RUN finished: 
        2 overloaded_error: Overloaded
        2 permission_error: 
        1 
        and 1 more kind
      see them with: claude-batch status RUN; send them again with: claude-batch retry RUN
      """

  Scenario: Failures that retry does not send again are not said to be
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: cancel RUN
    And the API's clock goes 2 hours on
    And a command runs: resume RUN
    Then the command line exits with 1 and says
      """
      see them with: claude-batch status RUN
      """
    And the command line does not say: send them again

  Scenario: The next step after failures names the ledger that the command named
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "a [[sandbox:errored:not_found_error]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger other.db
    Then the command line exits with 1 and says
      """
        1 not_found_error: Not found
      claude-batch status RUN --ledger other.db; send them again with: claude-batch retry RUN --ledger other.db
      """

  Scenario Outline: Without a file the answers go to standard output, the display to standard error
    Given a command's API
    When a command runs: run actor.yaml - <output>
      """
      {"id": "a", "prompt": "from a pipe"}
      """
    Then the command line exits with 0 and says
      """
      RUN finished: 1 succeeded of 1
      """
    And the command line has written to "standard output"
      | id | ok  | says        |
      | a  | yes | from a pipe |

    Examples:
      | output |
      |        |
      | -o -   |

  Scenario: Failures stand beside successes in the API's own words, and the exit code tells of them
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "good", "prompt": "good"}
      {"id": "bad", "prompt": "[[sandbox:errored:invalid_request_error]]"}
      {"id": "gone", "prompt": "[[sandbox:canceled]]"}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id   | ok  | says                   |
      | good | yes | good                   |
      | bad  | no  | invalid_request_error: |
      | gone | no  | canceled:              |
    And the command line's failures in "out.jsonl" have the fields id, ok, error, batch_id, attempt

  Scenario: A request whose line is missing has failed, and is said to be missing
    Given a command's API with {"faults": {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}}
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id | ok | says            |
      | 1  | no | missing_result: |

  Scenario: A model and a system prompt may replace the actor
    Given a command's API
    And a command's file "asks.csv"
      """
      question
      why?
      """
    When a command runs: run --model claude-haiku-4-5 --system "Be brief." --max-tokens 50 --prompt-column question asks.csv
    Then the command line exits with 0
    And the command line has written to "standard output"
      | id | ok  | says |
      | 2  | yes | why? |
    When a command runs: run --model claude-haiku-4-5 --prompt-column question asks.csv
    Then the command line exits with 0
    And the command line's ledger has 2 runs

  Scenario: The same command again costs nothing, and --new asks anew
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl -o again.jsonl
    Then the command line exits with 0 and says
      """
      RUN has the same requests and is finished: 2 answers from the ledger (answered 20
       UTC); the answers are given again at no cost. To make a new run: --new (new=True)
      wrote again.jsonl
      """
    And the command line has written 2 answers in order to "again.jsonl"
    And the command line has caused 1 batches of 2 requests
    When a command runs: run actor.yaml asks.jsonl --new --label "second try"
    Then the command line exits with 0
    And the command line has caused 2 batches of 4 requests
    When a command runs: status
    Then the command line prints
      """
      second try
      """

  Scenario: The same command again goes on with a run that timed out, and sends nothing twice
    Given a command's API with {"latency": 1.5}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5
    Then the command line exits with 3 and says
      """
      timed out: RUN did not finish within max_wait (500ms)
      so far: 2 
      continue with: claude-batch resume RUN
      """
    And the command line has left no "out.jsonl"
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 20s
    Then the command line exits with 0 and says
      """
      RUN has the same requests and is unfinished, so it is continued
      """
    And the command line has written 2 answers in order to "out.jsonl"
    And the command line has caused 1 batches of 2 requests

  Scenario Outline: A command that timed out promises nothing that no process will do: <what>
    Given a command's API with <settings>
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5
    Then the command line exits with 3 and says
      """
      timed out: RUN did not finish within max_wait (500ms)
      ; no process drives it; continue with `claude-batch resume`
      continue with: claude-batch resume RUN
      """
    And the command line does not say: packed of 2; queued
    When a command runs: status RUN
    Then the command line does not print: ; next check

    Examples:
      | what                      | settings                                                                                                    |
      | its batch is not sent yet | {"faults": {"rules": [{"route": "list", "nth": [2, 3, 4, 5], "action": {"type": "error", "status": 500}}]}} |
      | its batch is at the API   | {"latency": 7200}                                                                                           |

  Scenario: A pause of one's own limit counts for the time left, and the command that ends it is named
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --batches-per-hour 1
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --new --max-wait 2s
    Then the command line exits with 3 and says
      """
      2 queued of 2, about 1h left (sending pauses for 1h more: batches_per_hour allows no more batches in this hour (`claude-batch resume RUN --batches-per-hour 0` lifts the limit))
      """
    When a command runs: resume RUN --batches-per-hour 0
    Then the command line exits with 0

  Scenario: With --on-timeout cancel the batches are cancelled and what there is is written
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5 --on-timeout cancel
    Then the command line exits with 3 and says
      """
      timed out:
      it was cancelled
      wrote out.jsonl
      """
    And the command line has written to "out.jsonl"
      | id | ok | says      |
      | 1  | no | canceled: |

  Scenario: A run waits and ends as the last command for it says, not as the first did
    Given a command's API with {"latency": 7200}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5 --on-timeout cancel
    Then the command line exits with 3 and says
      """
      it was cancelled; the results so far are kept. To send the others again, repeat the command with a longer --max-wait
      """
    When a command runs while the API's clock goes on by an hour at a time: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"
    And the API has been paid 2 times, never twice for the same

  Scenario: A run that is continued names the settings that it keeps, if the command sets others
    Given a command's API with {"latency": 7200}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --deadline 20h --max-turns 5 --label first
    And a command runs: submit actor.yaml asks.jsonl --deadline 20h --max-turns 5
    Then the command line does not say: keeps the settings
    When a command runs: submit actor.yaml asks.jsonl --max-attempts 7
    Then the command line does not say: keeps the settings
    When a command's environment has CLAUDE_BATCH_MAX_REQUESTS = 1
    And a command runs: submit actor.yaml asks.jsonl --mode live --deadline-margin 90m --deadline 20h --label second
    Then the command line exits with 0 and says
      """
      RUN keeps the settings that it began with:
      max_requests 100000 (not 1)
      mode batch (not live)
      deadline_margin unset (not 90m)
      To send all its requests again with the others, which is billed again: --new (new=True)
      """
    And the command line does not say: (not 20
    When a command runs: status RUN
    Then the command line prints
      """
      label: second
      """

  Scenario: A run that is continued also names what only mattered while it was stored
    Given a command's API with {"latency": 7200}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --cache auto --prime --dedupe --no-preflight
    And a command runs: submit actor.yaml asks.jsonl --cache auto --prime --dedupe --no-preflight
    Then the command line does not say: keeps the settings
    When a command runs: submit actor.yaml asks.jsonl
    Then the command line does not say: keeps the settings
    When a command's environment has CLAUDE_BATCH_PREFLIGHT = true
    And a command runs: submit actor.yaml asks.jsonl --no-prime --reuse --no-dedupe
    Then the command line exits with 0 and says
      """
      RUN keeps the settings that it began with: preflight false (not true), prime true (not false), reuse false (not true), dedupe true (not false).
      """

  Scenario: The environment of a resume ranks above the settings of its run
    Given a command's API with {"latency": 7200}
    And a command's file "asks.jsonl" of 1 prompts
    And a command's environment has CLAUDE_BATCH_MAX_WAIT = 0.5
    When a command runs: submit actor.yaml asks.jsonl --max-wait 3h
    And a command runs: resume RUN --ledger ledger.db
    Then the command line exits with 3 and says
      """
      timed out: RUN did not finish within max_wait (500ms): everything is kept; continue with `claude-batch resume RUN --ledger ledger.db`
      """

  Scenario Outline: Flags rank above the environment, and that above the YAML: <flag> <environment>
    Given a command's API
    And a command's file "asks.jsonl" of 4 prompts
    And a command's file "actor.yaml"
      """
      name: tests/asker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: {max_requests: 1}
      """
    And a command's environment has CLAUDE_BATCH_MAX_REQUESTS = <environment>
    When a command runs: run actor.yaml asks.jsonl <flag>
    Then the command line exits with 0
    And the command line has caused <batches> batches of 4 requests

    Examples:
      | environment | flag               | batches |
      | nothing     |                    | 4       |
      | 2           |                    | 2       |
      | 2           | --max-requests 100 | 1       |

  Scenario Outline: --max-turns limits the turns of a conversation: <flags>
    Given a command's API
    When a command runs: run actor.yaml - <flags>
      """
      {"id": "a", "prompt": "think [[sandbox:pause]]"}
      """
    Then the command line exits with <code> and says
      """
      RUN finished: <outcome> of 1
      """
    And the command line has written to "standard output"
      | id | ok   | says   |
      | a  | <ok> | <says> |

    Examples:
      | flags                        | code | outcome     | ok  | says           |
      | --max-turns 1                | 1    | 1 stopped   | no  | max_turns is 1 |
      | --max-turns 2 --max-attempts 1 --turn-linger 0 --validation-attempts 2 | 0 | 1 succeeded | yes | searching |

  Scenario: --sandbox needs no key, pays nothing and leaves the user's ledger alone
    Given a command's folder
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --sandbox -o out.jsonl
    Then the command line exits with 0 and says
      """
      nothing leaves this machine, and nothing is billed
      """
    And the command line has written 2 answers in order to "out.jsonl"
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --sandbox --max-wait 0.2
    Then the command line exits with 3 and says
      """
      the sandbox and its ledger were removed
      """
    When a command runs: status
    Then the command line exits with 0
    And the command line prints
      """
      there is no ledger at 
      ledger.db yet
      """
    When a command runs: status --ledger leger.db
    Then the command line exits with 0
    And the command line prints
      """
      there is no ledger at leger.db yet
      """

  Scenario: A trial in a sandbox promises nothing of the ledger that ends with it
    Given a command's folder
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run --sandbox --model claude-haiku-4-5 asks.jsonl --budget 0
    Then the command line exits with 3 and says
      """
      the trial is over, and the sandbox and its ledger were removed. Repeat the command with a higher --budget; or start `claude-batch sandbox`
      """
    And the command line does not say: claude-batch budget
    When a command runs: run --sandbox --model claude-haiku-4-5 asks.jsonl --max-wait 0.1
    Then the command line exits with 3 and says
      """
      did not finish within max_wait (100ms)
      """
    And the command line says
      """
      Repeat the command with a longer --max-wait
      """
    And the command line does not say: kept
    And the command line does not say: claude-batch resume
    When a command runs, while waiting fails with LedgerError: run --sandbox --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 3 and says
      """
      ended: it broke. The trial is over
      """
    And the command line does not say: kept
    When a command runs, interrupted while it waits: run --sandbox --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 3 and says
      """
      ended; the trial is over
      """
    And the command line does not say: continue
    And a command in a shell ends with a code and says
      | command                                                                     | code | says                                                |
      | claude-batch run --sandbox --model claude-haiku-4-5 asks.jsonl -o /dev/full | 2    | No space left on device; the trial is over          |
      | claude-batch run --sandbox --model claude-haiku-4-5 asks.jsonl -o /dev/full | 2    | Repeat the command with another -o; or start |

  Scenario: Without the sandbox's packages --sandbox says so
    Given a command's folder
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs, where no sandbox is installed: run --model claude-haiku-4-5 asks.jsonl --sandbox
    Then the command line exits with 2 and says
      """
      claude_batch.sandbox
      """

  Scenario: A command works on a thread that no signal reaches
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs on a thread: run actor.yaml asks.jsonl
    Then the command line exits with 0

  Scenario: 3,000 long answers are written whole and in order
    Given a command's API
    And a command's file "asks.jsonl" of 3000 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3000 answers in order to "out.jsonl"

  Scenario: Documents go with the requests, and one that cannot be sent is reported with its line
    Given a command's API
    And a command's file "terms.md"
      """
      No refunds.
      """
    And a command's file "broken.pdf" of the bytes b'%PDF-1.7 cut'
    And a command's file "asks.jsonl"
      """
      {"id": "a", "prompt": "Any refunds?"}
      {"id": "b", "prompt": "And here?", "documents": ["broken.pdf"]}
      """
    When a command runs: run actor.yaml asks.jsonl --document terms.md --citations -o out.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl:2: request 'b': document broken.pdf: is a truncated PDF
      """
    And the command line has sent nothing
    When a command runs: run actor.yaml asks.jsonl --document *.md --citations --skip-invalid -o out.jsonl
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id | ok  | says        |
      | a  | yes | No refunds. |

  Scenario: While a large input is stored, the progress is printed
    Given a command's API
    And a command's file "asks.jsonl" of 30 prompts
    When a command runs, storing 10 requests at a time, each step shown: run actor.yaml asks.jsonl
    Then the command line exits with 0 and says
      """
      10 requests are stored so far
      20 requests are stored so far
      RUN is stored: 30 requests
      """

  Scenario: The progress of storing is printed at most once a second, on a terminal too
    Then counts of stored requests are printed as follows
      | terminal | stored                                           | printed     |
      | no       | [[0.5, 1000], [1, 2000], [1.9, 3000], [2.1, 4000]] | 2,000 4,000 |
      | yes      | [[0.5, 1000], [2.1, 4000]]                       | 4,000       |
