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
    Given a reader with a key and a server
    When the reader runs prompts that succeed and fail, to JSON lines and to CSV
    Then the reference describes each field and column of the output
