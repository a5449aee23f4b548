Feature: The reference is complete and agrees with the code

  Scenario: Settings, commands, the actor's YAML, the Python API, events and states
    Then the pages agree with the code about
      | subject                                              |
      | the environment variables that the code reads        |
      | the defaults of settings                             |
      | the keywords of settings in Python                   |
      | the flags of settings                                |
      | the commands, each with its own flags                |
      | the exit codes                                       |
      | each key of batch_processing, with its default       |
      | everything that claude_batch offers                  |
      | the errors, each below the one that it is a kind of  |
      | the events and their fields                          |
      | the states of requests and batches                   |
      | the limits                                           |
      | the types of errors in the output                    |

  Scenario: Output
    Given a command's API
    And a command's file "prompts.jsonl"
      """
      "fine"
      "[[sandbox:errored:invalid_request_error]]"
      "[[sandbox:refused]] no"
      "fine"
      """
    When a command runs: run --model claude-haiku-4-5 prompts.jsonl --dedupe -o out.jsonl
    Then the command line exits with 1
    When a command runs: run --model claude-haiku-4-5 prompts.jsonl --dedupe -o out.csv
    Then the command line exits with 1
    And the reference describes each field and column of the output

  Scenario: The JSON of each command
    Given a command's API with {"latency": 2}
    And a command's file "tools.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:population"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      "Look [[sandbox:tools]]"
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: estimate tools.yaml asks.jsonl --json
    Then the reference describes the JSON of "estimate"
    When a command runs: run tools.yaml asks.jsonl --deadline 2h --budget 5 -o out.jsonl
    Then the command line exits with 1
    When a command runs: status RUN --json
    Then the reference describes the JSON of "status"
    When a command runs: status --json
    Then the reference describes the JSON of "status"
    When a command runs: show RUN 1 --json
    Then the reference describes the JSON of "show"
    When a command runs: cost RUN --by model --json
    Then the reference describes the JSON of "cost"
    When a command runs: cost --json
    Then the reference describes the JSON of "cost"
    When a command runs: budget --json
    Then the reference describes the JSON of "budget"
    When a command runs: ledger show --json
    Then the reference describes the JSON of "ledger show"
    # A budget that holds a run, a sending without a response, and a wrong key.
    When a command runs: run actor.yaml asks.jsonl --budget 0.000001 -o held.jsonl
    And a command runs: status RUN --json
    Then the reference describes the JSON of "status"
    When the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command runs: submit actor.yaml asks.jsonl --new -o later.jsonl
    And a command runs: advance
    And a command runs: unknown --json
    Then the reference describes the JSON of "unknown"
    When the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a command runs: submit actor.yaml asks.jsonl --new
    And a command runs: status RUN --json
    Then the reference describes the JSON of "status"
    When the API has no faults any more
    Given a service in between that changes
      | call   | what     | value  |
      | create | priority | "high" |
    When a command runs: doctor --live --yes --json
    Then the reference describes the JSON of "doctor"
    And every field of the reference's JSON was printed, or is of a ledger on PostgreSQL

  Scenario: JSON that the reference does not describe is found
    Then JSON is compared with the reference as follows
      | command | printed                                  | problem                                              |
      | budget  | [{"scope": "day", "name": "", "left": -5}] |                                                    |
      | budget  | [{"colour": "red"}]                      | colour is not described                              |
      | budget  | [{"budget": null}]                       | budget is None, and not: integer                     |
      | budget  | [{"budget": true}]                       | budget is True, and not: integer                     |
      | unknown | [{"candidates": [{"batch": "x"}]}]       | candidates[].batch is not described                  |
      | status  | {"cost": {"tokens": {"input": "1"}}}     | cost.tokens.input is '1', and not: integer           |
      | cost    | {"shares": [{"group": null, "cost": ""}]} | shares[].cost is '', and not: integer               |
      | doctor  | {"live": {"versions": {"any": {"a": 1}}}} |                                                     |
