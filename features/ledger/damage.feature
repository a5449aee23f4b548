@every_python
Feature: A damaged ledger is reported, and never written over or mended in silence

  Scenario Outline: A file that is damaged is named with its remedy: <damage>
    Given a ledger of 400 requests that was closed
    And its file is damaged: <damage>
    When somebody opens it, and reads 400 requests, then writes
    Then the damage is told with the file's name, and how to go on
    And the file is, byte for byte, as it was

    Examples:
      | damage                      |
      | cut in half                 |
      | cut within a page           |
      | cut to nothing              |
      | its header is overwritten   |
      | pages midway are overwritten |

  Scenario: Damage that nobody has read is found before the first write
    Given a ledger of 400 requests that was closed
    And its file is damaged: pages midway are overwritten
    When somebody opens it, and writes
    Then the damage is told with the file's name, and how to go on
    And the ledger error says "This process has written nothing to it"
    And the file is, byte for byte, as it was

  Scenario: The readable part of a damaged ledger can be read
    Given a ledger of 400 requests that was closed
    And its file is damaged: pages midway are overwritten
    When somebody opens it, and reads 10 requests
    Then there is no error
    And the file is, byte for byte, as it was

  Scenario: Of a large ledger the ends of its tables are looked at before the first write
    Given ledgers of more than 100 bytes are large
    And a ledger of 400 requests that was closed
    And its file is damaged: the page of the last request is overwritten
    When somebody opens it, and writes
    Then the damage is told with the file's name, and how to go on
    And the ledger error says "This process has written nothing to it"
    And the file is, byte for byte, as it was

  Scenario: The error about damage says if a write came before it
    Given ledgers of more than 100 bytes are large
    And a ledger of 400 requests that was closed
    And its file is damaged: pages midway are overwritten
    When somebody opens it, and writes, then reads 400 requests
    Then the damage is told with the file's name, and how to go on
    And the ledger error says "This process had written to it before the damage was found"

  Scenario: A ledger that was copied without its log is no new one
    Given a ledger of 400 requests that was copied without its log
    When somebody opens it, and reads 400 requests, then writes
    Then the damage is told with the file's name, and how to go on

  Scenario Outline: The command line tells of it and exits with 2: <command>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 0
    When its file is damaged: its header is overwritten
    And a command runs: <command>
    Then the command line exits with 2 and says
      """
      ledger.db cannot be
      `claude-batch ledger recover`
      """

    Examples:
      | command                         |
      | run actor.yaml asks.jsonl --new |
      | status                          |
      | resume                          |
