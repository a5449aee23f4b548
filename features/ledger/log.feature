Feature: The ledger's log is moved into its file by who drives, and never grows without bound

  Scenario: A long log is moved into the file by the driver
    Given a ledger whose log has grown to 6 MiB
    When it is checkpointed
    Then the ledger's file has more than 6 MiB
    And the log begins anew with the next write

  Scenario: A short log is left alone
    Given a ledger whose log has grown to 1 MiB
    When it is checkpointed
    Then the ledger's file has less than 1 MiB

  Scenario: Others do not move it while it is short enough
    Given a ledger whose log has grown to 20 MiB
    Then the ledger's file has less than 1 MiB

  Scenario: Where nobody drives the log does not grow without bound
    Given a ledger whose log has grown to 150 MiB
    Then the ledger's log has less than 80 MiB

  Scenario: Who only looks leaves the log to who still writes, and the last one to close clears it
    Given a ledger whose log has grown to 6 MiB
    When somebody else opens, reads and closes it
    Then the ledger's log has more than 5 MiB
    And the ledger's file has less than 1 MiB
    When the ledger is closed
    Then the ledger's log is gone
    And the ledger's file has more than 6 MiB

  Scenario: A driving process keeps the log short
    Given an API
    And a batch provider
    When a run of 3 prompts of 3 MiB is answered
    Then the ledger's file has more than 9 MiB

  Scenario: What is committed is on the disk
    Then a ledger's connection has the pragmas as follows
      | platform | journal_mode | synchronous | fullfsync |
      | linux    | wal          | 2           | 0         |
      | darwin   | wal          | 2           | 1         |
