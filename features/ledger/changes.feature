Feature: What has changed since somebody looked is left as it is now

  Scenario: A key that moves to a workspace that is known already leaves its lanes behind
    Given an open ledger
    When a key of one workspace turns out to belong to another one that is known
    Then what it stored before stays with the first workspace

  Scenario: A run that is wholly stored is not dropped as if it were not
    Given an open ledger
    And a run of 3 requests that is wholly stored
    When it is dropped as one whose storing failed
    Then all of its 3 requests are there

  Scenario: A run that is asked again is not removed, and one that goes is removed in pieces
    Given an open ledger
    And a run of 3 requests that is wholly stored
    When pruning comes to it although it is unfinished
    Then all of its 3 requests are there
    When storing it was never finished
    Then it is removed in pieces as follows
      | requests at most | more | requests left | runs left |
      | 2                | yes  | 1             | 1         |
      | 2                | no   | 0             | 0         |
      | 2                | no   | 0             | 0         |

  Scenario: A conversation that has gone on is neither stopped, nor continued, nor given tools, from an earlier turn
    Given an open ledger
    And a run of 3 requests that is wholly stored
    Then a turn of it that is over changes nothing

  Scenario: The high-water mark never goes back
    Given an open ledger
    When the mark stands at 0 posts, and is raised to 0 again
    Then the mark's file was not written again

  Scenario: A ledger that another process has migrated meanwhile is not migrated again
    Given an open ledger
    When it is to be migrated from version 1
    Then it is as it was, without a copy beside it

  Scenario: A column that refers to another table is added with its reference
    Then a column of "batch" that refers to "batches.id" is added as "ALTER TABLE marks ADD COLUMN batch INTEGER REFERENCES batches (id)"

  Scenario: A page that the disk gives only a part of is damage
    Then SQLite's SQLITE_IOERR_SHORT_READ means that the ledger is damaged
    And SQLite's SQLITE_FULL means that the ledger is full

  Scenario Outline: A database with a table called meta is no ledger for that: <fact>
    Given an open ledger
    When its meta table has lost its <fact>
    And it is opened as a ledger
    Then the ledger error says "not a ledger of claude-batch"

    Examples:
      | fact           |
      | schema_version |
      | salt           |
