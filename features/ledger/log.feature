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

  Scenario: If no process drives, the log does not grow without bound
    Given a ledger whose log has grown to 150 MiB
    Then the ledger's log has less than 80 MiB

  Scenario: A reader leaves the log to the processes that still write, and the last one to close clears it
    Given a ledger whose log has grown to 6 MiB
    When the ledger is closed by another process, which has read it
    Then the ledger's log has more than 5 MiB
    And the ledger's file has less than 1 MiB
    When the ledger is closed by the process that writes
    Then the ledger's log is gone
    And the ledger's file has more than 6 MiB

  Scenario: A driving process keeps the log short
    Given an API
    And a batch provider
    When a run of large prompts of 9 MB is stored without driving
    And the results are read in order
    Then every result is an answer
    And the ledger's file has more than 8 MiB

  Scenario: A committed transaction is on the disk
    Then a ledger's connection has the pragmas as follows
      | platform | journal_mode | synchronous | fullfsync |
      | linux    | wal          | 2           | 0         |
      | darwin   | wal          | 2           | 1         |
