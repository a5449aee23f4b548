@every_python
Feature: The command line's own surface: help, version, validation, display

  Scenario Outline: Help answers at once: <words>
    Then a command's process answers <words> without importing anthropic, sqlalchemy, starlette, httpx2, asyncio, yaml, rich

    Examples:
      | words         |
      | --help        |
      | run --help    |
      | doctor --help |
      | --version     |

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
      | submit --help           | 3  parked, timed out              |
      | results --help          | 1  some requests failed           |
      | resume --help           | 0  every request succeeded        |
      | cancel --help           | Exit codes:                       |
      | advance --help          | cron                              |
      | status --help           | --json                            |
      | actors validate --help  | FILE...                           |
      | doctor --help           | than a cent                       |
      | sandbox --help          | --results-kept                    |

  Scenario: The commands stand in the order in which people need them
    When a command runs: --help
    Then the command line lists the commands run, submit, estimate, status, show, results, export, cost, budget, cancel, retry, unknown, resume, advance, actors, ledger, doctor, gateway, dashboard, worker, completion, sandbox

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
    When a command runs: actors validate missing.yaml
    Then the command line exits with 2 and says
      """
      missing.yaml
      """

  Scenario: A bad option of the sandbox is bad usage
    Given a command's folder
    When a command runs: sandbox --faults nowhere.json
    Then the command line exits with 2 and says
      """
      nowhere.json
      """
    When a command runs, where no sandbox is installed: sandbox --port 0
    Then the command line exits with 2

  Scenario: Plain lines where the output is no terminal
    Then the command line shows plain lines of what has changed, one a second at most

  Scenario: A live table on a terminal
    Then the command line shows a live table on a terminal
    And the command line's table on a terminal is as wide as the terminal

  Scenario: The table of a run has all that one waits for, and takes no label for markup
    Then the command line's table of a run tells
      """
      run-abcdefghij running: 990 succeeded, 10 packed of 1,000
      asked 1h ago of tests/asker
      label: [bold]mine
      output: /tmp/out.jsonl (not written yet)
      waiting for: 1 batch
      3 lines of its results cannot be read; kept in the ledger
      msgbatch_0022
      [red]not sent[/]
      collected
      the newest 20 of 25; --json has them all
      """
