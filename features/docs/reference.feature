Feature: The reference is complete and agrees with the code

  Scenario: Settings
    Then the reference's environment variables are those that the code reads
    And the reference's settings have the defaults of the code
    And the reference's settings are keywords of Python under the same names
    And the reference's flags of settings are taken by claude-batch run

  Scenario: Commands, their flags and exit codes
    Then the reference has each command of claude-batch with its own flags
    And the reference's exit codes are those that claude-batch lists

  Scenario: The actor's YAML
    Then the reference's YAML shows every key of batch_processing with its default

  Scenario: The Python API
    Then the reference names everything that claude_batch offers
    And the reference lists every error below the error that it is a kind of

  Scenario: Events
    Then the reference's events and their fields are those of the code

  Scenario: States
    Then the reference's states are those of the code

  Scenario: Output
    Given a reader with a key and a server
    When the reader runs prompts that succeed and fail, to JSON lines and to CSV
    Then the reference describes each field and column of the output
