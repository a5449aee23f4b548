@every_python
Feature: The command line's own surface: help, version, validation, display

  Scenario: Help answers at once
    Then commands answer at once, without a slow import, as follows
      | words         | slow imports |
      | --help        |              |
      | run --help    |              |
      | doctor --help |              |
      | --version     |              |

  Scenario Outline: Help of a command tells what it promises: <words>
    When a command runs: <words>
    Then the command line exits with 0
    And the command line prints
      """
      <told>
      """

    Examples:
      | words                   | told                              |
      | --version               | claude-batch, version 0.1.0       |
      | --help                  | 4  sending was halted             |
      | run --help              | Exit codes:                       |
      | run -h                  | CLAUDE_BATCH_POLL_INTERVAL        |
      | run --help              | [env var: CLAUDE_BATCH_BUDGET_USD] |
      | submit --help           | 3  parked, timed out              |
      | results --help          | 1  some requests failed           |
      | resume --help           | 0  every request succeeded        |
      | cancel --help           | Exit codes:                       |
      | advance --help          | cron                              |
      | status --help           | --json                            |
      | actors validate --help  | FILE...                           |
      | doctor --help           | than a cent                       |
      | doctor --help           | 1  a check found a fault          |
      | gateway --help          | other machines need one           |
      | sandbox --help          | --results-kept                    |

  Scenario: Help of a command with many options has sections, and each setting is in one
    When a command runs: run --help
    Then the command line prints in this order
      """
      Input:
        --model TEXT
      Output:
        -o, --output OUT
      Options:
        --label TEXT
        --new
        --sandbox
        -h, --help
      Costs:
        --budget USD
      Cache and reuse:
      Retries and conversations:
      Batches and waiting:
        --max-requests N
      Deadlines and live calls:
      Ledger and API:
      Lost responses and missing batches (the defaults are safe):
      """
    And the command line prints this block
      """
      Options:
        --label TEXT  A name for the run, shown by `status`.
        --new         Make another run, although the same one exists; leave it out to
                      continue.
        --sandbox     Try the run in a temporary sandbox: nothing is sent or billed.
        -h, --help    Show this message and exit.
      """

  Scenario: Help leaves out the flags that a command accepts, but does not use
    When a command runs: resume --help
    Then the command line prints
      """
      --max-wait DURATION
      """
    And the command line does not print: --deadline
    And the command line does not print: --mode
    When a command runs: dashboard --help
    Then the command line prints
      """
      --ledger PATH|URL
      --ledger is CLAUDE_BATCH_LEDGER
      """
    And the command line does not print: --daily-budget
    And the command line does not print: interval

  Scenario: The commands stand in the order in which people need them
    When a command runs: --help
    Then the command line prints in this order
      """
      Commands:
        run
        submit
        estimate
        status
        show
        results
        export
        cost
        budget
        cancel
        retry
        unknown
        resume
        advance
        actors
        ledger
        doctor
        gateway
        dashboard
        worker
        completion
        sandbox
      """

  Scenario: actors validate tells every fault of every file with its line, and needs no key
    Given a command's folder
    And a command's file "good.yaml"
      """
      name: tests/asker
      provider: anthropic
      model: claude-haiku-4-5
      """
    And a command's file "bad.yaml"
      """
      name: tests/asker
      provider: anthropic
      modell: claude-haiku-4-5
      batch_processing: {linger: soon}
      """
    When a command runs: actors validate good.yaml bad.yaml
    Then the command line exits with 2 and says
      """
      bad.yaml:3: 
      bad.yaml:4: 
      """
    And the command line prints
      """
      good.yaml: fine
      """
    When a command runs: actors validate good.yaml
    Then the command line exits with 0
    And the command line does not say: has no effect
    Given a command's file "spare.yaml"
      """
      name: tests/spare
      model: claude-haiku-4-5
      max_tokens: 9
      skills: [search]
      deadline: 2h
      mode: live
      config: {thinking: {type: enabled}, colour: red}
      """
    When a command runs: actors validate spare.yaml
    Then the command line exits with 0 and says
      """
      spare.yaml: actor tests/spare: `thinking` is kept for a host framework, and has no effect here. It belongs under `options`
      spare.yaml: actor tests/spare: `colour` is kept for a host framework, and has no effect here
      spare.yaml: actor tests/spare: `deadline` is kept for a host framework, and has no effect here. It belongs under `batch_processing`
      spare.yaml: actor tests/spare: `mode` is kept for a host framework, and has no effect here. It belongs under `batch_processing`
      """
    And the command line does not say: skills
    And the command line does not say: max_tokens
    And the command line says 4 times: has no effect
    When a command runs: actors validate missing.yaml
    Then the command line exits with 2 and says
      """
      missing.yaml
      """

  Scenario Outline: actors validate reports why the actor of a valid file could not be asked: <more>
    Given a command's folder
    And a command's file "actor.yaml"
      """
      name: tests/asker
      model: claude-haiku-4-5
      batch_processing: true
      <more>
      """
    When a command runs: actors validate actor.yaml
    Then the command line exits with 2 and says
      """
      actor.yaml: actor tests/asker: <says>
      """

    Examples:
      | more                           | says                                                     |
      | options: {max_tokens: many}    | `max_tokens` must be a whole number, not 'many'          |
      | options: {stop_sequences: END} | `stop_sequences` must be a list of texts                 |
      | options: {temperature: hot}    | `temperature` must be a number from 0 to 1, not 'hot'    |
      | top_p: 3                       | `top_p` must be a number from 0 to 1, not 3              |
      | documents: [terms.md]          | document terms.md                                        |
      | provider: openai               | no provider is called 'openai'; registered are: anthropic |

  Scenario Outline: actors validate applies the rules of batches, because commands send batches: <more>
    Given a command's folder
    And a command's file "actor.yaml"
      """
      name: tests/asker
      model: claude-haiku-4-5
      <more>
      """
    When a command runs: actors validate actor.yaml
    Then the command line exits with <code> and says
      """
      <says>
      """

    Examples:
      | more                                                    | code | says                                     |
      | options: {max_tokens: 0}                                | 2    | actor.yaml: actor tests/asker: `max_tokens: 0` asks for no answer; give at least 1 |
      | options: {stream: true}                                 | 2    | actor.yaml: actor tests/asker: `stream: true` is not allowed in a batch; remove it |
      | options: {speed: fast}                                  | 2    | nor in a live call of the ledger; remove it, or ask an actor with `batch_processing: false` |
      | config: {options: {speed: fast}, batch_processing: false} | 0  |                                          |
      | config: {options: {max_tokens: 0}, batch_processing: false} | 0 |                                         |

  Scenario: A bad option of the sandbox is bad usage
    Given a command's folder
    When a command runs: sandbox --faults nowhere.json
    Then the command line exits with 2 and says
      """
      nowhere.json
      """
    When a command runs, where no sandbox is installed: sandbox --port 0
    Then the command line exits with 2

  Scenario: Without a terminal each change is a line, at most one a second
    Then a run's statuses are shown as plain lines as follows
      | what             | statuses                                                   | lines |
      | the same again   | [[0, 990, ""], [1.5, 990, ""]]                             | ["run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (1 batch)"] |
      | only later       | [[0, 990, "for 58m"], [1.5, 990, "for 1h"], [3, 990, "for 1h 2m"]] | ["run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (for 58m)"] |
      | within a second  | [[0, 990, ""], [0.9, 991, ""], [1.5, 990, "no contact"]]   | ["run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (1 batch)", "run-abcdefghij running: 990 succeeded, 10 packed of 1,000 (no contact)"] |
      | nothing answered | [[9, 0, ""]]                                               | ["run-abcdefghij running: nothing yet of 1,000 (1 batch)"] |

  Scenario: The table of a run has all that one waits for, and takes no label for markup
    Then the table of a run shows words as follows
      | run             | words                                                     | shown |
      | with 25 batches | run-abcdefghij running: 990 succeeded, 10 packed of 1,000 | yes   |
      | with 25 batches | actor tests/asker, submitted 3h 26m ago                   | yes   |
      | with 25 batches | label: [bold]mine                                         | yes   |
      | with 25 batches | output: /tmp/out.jsonl (not written yet)                  | yes   |
      | with 25 batches | waiting for: 1 batch                                      | yes   |
      | with 25 batches | 3 lines of its results cannot be read; kept in the ledger | yes   |
      | with 25 batches | msgbatch_0022                                             | yes   |
      | with 25 batches | msgbatch_0004                                             | no    |
      | with 25 batches | [red]not sent[/]                                          | yes   |
      | with 25 batches | collected                                                 | yes   |
      | with 25 batches | the newest 20 of 25; --json has them all                  | yes   |
      | not reached     | no contact                                                | yes   |
      | not reached     | msgbatch_0001                                             | yes   |
      | not reached     | 2m                                                        | yes   |
      | not reached     | in 45s                                                    | yes   |
      | not written     | output: o (not written yet; write it with `claude-batch resume run-abcdefghij`) | yes |
      | delivered       | output: o                                                 | yes   |
      | delivered       | not written yet                                           | no    |
      | delivered       | waiting for                                               | no    |
    And a table is as wide as the terminal, if it is on one, as follows
      | terminal | columns | width |
      | yes      | 97      | 97    |
      | no       | 97      | 160   |
