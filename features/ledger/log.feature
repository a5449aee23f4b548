Feature: The ledger's log is moved into its file by who drives, and never grows without bound

  Scenario: A long log is moved into the file by the driver
    Given a ledger whose log has grown to 6 MiB
    When it is checkpointed
    Then all of it is in the file, and the log begins anew with the next write

  Scenario: A short log is left alone
    Given a ledger whose log has grown to 1 MiB
    When it is checkpointed
    Then there was nothing to do

  Scenario: Others do not move it while it is short enough
    Given a ledger whose log has grown to 20 MiB
    Then the file has hardly grown

  Scenario: Where nobody drives the log does not grow without bound
    Given a ledger whose log has grown to 150 MiB
    Then the log has stayed under 80 MiB

  Scenario: Who only looks leaves the log to who still writes, and the last one to close clears it
    Given a ledger whose log has grown to 6 MiB
    When somebody else opens, reads and closes it
    Then the log is still there
    When the ledger is closed
    Then the log is gone, and everything is in the file

  Scenario: A driving process keeps the log short
    Given an API
    And a batch provider
    When a run of 3 prompts of 3 MiB is answered
    Then the driver has moved the log into the file

  Scenario: What is committed is on the disk
    Then a ledger's connection has the pragmas as follows
      | platform | journal_mode | synchronous | fullfsync |
      | linux    | wal          | 2           | 0         |
      | darwin   | wal          | 2           | 1         |
