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
