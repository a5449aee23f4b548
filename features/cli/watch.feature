Feature: status --watch shows a run as it goes on
  It says what status says, again whenever the ledger changes.

  Scenario: Without a terminal each change is a line, and the end of the run ends it
    Given a command's API with {"latency": 1}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs in the background: status RUN --watch
    Then the command in the background has printed "RUN parked: 3 packed of 3 (1 batch at the API"
    When a command runs: resume RUN
    Then the command in the background ends with 0
    And the command in the background has printed "RUN finished: 3 succeeded of 3, 100.0 % done, cost so far $0.00"
    And it has printed no line twice, whatever the time

  Scenario: A finished run is shown once
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs without a key: status RUN --watch
    Then the command line exits with 0
    And the command line prints
      """
      RUN finished: 1 succeeded of 1
      """

  Scenario Outline: <signal> ends it as it ends status
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs in the background: status --watch
    Then the command in the background has printed "RUN parked: 1 packed of 1"
    When the command in the background gets <signal>
    Then the command in the background ends with 0

    Examples:
      | signal  |
      | SIGINT  |
      | SIGTERM |

  Scenario: A terminal is drawn again in place, with the words of status
    Given a command's API with {"latency": 15}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --label LABEL
    And a command runs in the background: resume RUN
    And a command runs on a terminal with a cursor: status RUN --watch
    Then the terminal was drawn again in place, and shows
      """
      RUN running: 2 packed of 2
      label: LABEL
      waiting for: 1 batch at the API
      RUN finished: 2 succeeded of 2
      100.0 % done, cost so far
      """

  Scenario: A terminal without a cursor gets lines, and is not steered by a label
    Given a command's API with {"latency": 2}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs on a terminal: run --model claude-haiku-4-5 --label LABEL asks.jsonl -o out.jsonl
    Then the terminal was not steered, and shows "running: 1 packed of 1"
    When a command runs on a terminal: status RUN --watch
    Then the terminal was not steered, and shows "finished: 1 succeeded of 1, 100.0 % done"

  Scenario: Each look is one read transaction
    Given a command's API
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the ledger is read in 1 transaction by the command: status RUN --watch
    And the ledger is read in 1 transaction by the command: status
    And the ledger is read in 1 transaction by the command: show RUN 1

  Scenario: Watching a run that cannot be watched is bad usage
    Given a command's API
    When a command runs: status --watch
    Then the command line exits with 2 and says
      """
      there is no ledger at
      """
    When a command runs: status --watch --json
    Then the command line exits with 2 and says
      """
      --watch shows changes to people; leave out --json
      """

  Scenario Outline: A narrow terminal cuts no number and no name: <words> in <columns> columns
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's environment has COLUMNS = <columns>
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs on a terminal with a cursor: <words>
    Then the terminal shows "<shown>"

    Examples:
      | words           | columns | shown                                                   |
      | cost --by model | 80      | │       2 │      0 │ 20 │  30 │ $0.000085 │ $0.000170 │ |
      | cost --by model | 50      | claude-haiku-4-5-20251001: answers 2, others 0,         |
      | status RUN      | 50      | : state collected, requests 2                           |
      | status          | 40      | : state finished, actor                                 |
