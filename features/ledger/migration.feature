@every_python
Feature: A ledger of an older version is brought to this one, and never harmed

  Scenario Outline: A ledger of version <version> becomes a new one, with all that was in it
    Given a ledger of schema version <version> with a run in it
    When it is opened by this version
    Then it has the tables, columns, indexes and keys of a new ledger
    And the run is still in it, and can be sent
    And a copy of version <version> lies beside it, the owner's alone

    Examples:
      | version |
      | 1       |
      | 2       |
      | 3       |
      | 4       |
      | 5       |

  Scenario: What budgets have counted of a ledger of version 3 is still counted
    Given a ledger of schema version 3 with a run in it
    And budgets have counted of the run's batches:
      | state       | reserved | spent | kept |
      | in_progress | 500      |       |      |
      | unknown     | 400      |       |      |
      | ended       | 300      | 20    |      |
      | collected   | 7        | 90    |      |
      | unresolved  | 60       |       |      |
      | live        | 5        | 30    | 8    |
      | rejected    | 1000     |       |      |
      | packed      |          |       |      |
      | collected   | 70       |       |      |
    And budgets have counted 11 for runs that were removed
    When it is opened by this version
    Then a budget of the actor has 1205 reserved, 151 spent and 75 in doubt
    And a budget of the actor has still to count the batches 8 and 9

  Scenario: The command line says what it did
    Given a command's folder
    And a ledger of schema version 1 with a run in it
    When a command runs: status --ledger old.db
    Then the command line exits with 0 and says
      """
      was migrated from schema version 1 to 6
      old.db.v1.backup is a copy of the old file
      """

  Scenario: A second copy does not take the first one's place
    Given a ledger of schema version 1 with a run in it
    And somebody else's file where its copy would lie
    When it is opened by this version
    Then somebody else's file is as it was, and the copy has another name

  Scenario: While another process drives it nothing is changed
    Given a ledger of schema version 1 with a run in it
    And another process that drives it
    When it is opened too early by this version
    Then the migration's error says "another process drives the ledger"
    And it is still of version 1, without a copy

  Scenario: A process that dies midway leaves it to the next one
    Given a ledger of schema version 1 with a run in it
    When a process of this version dies during the migration
    Then it is still of version 1
    When it is opened by this version
    Then it has the tables, columns, indexes and keys of a new ledger
    And the run is still in it, and can be sent

  Scenario: Where no copy can be made nothing is changed
    Given a ledger of schema version 1 with a run in it
    When it is opened too early on a disk without room for a copy
    Then the migration's error says "no copy can be made beside it"
    And it is still of version 1, without a copy

  Scenario Outline: A version that nobody knows is named and left alone: <version>
    Given a ledger of schema version 1 with a run in it
    And it says that its version is <version>
    When it is opened too early by this version
    Then the migration's error says "has schema version <version>"

    Examples:
      | version |
      | 0       |
      | 3000    |

  Scenario: Who has a ledger open while another version migrates it writes nothing more
    Given a ledger that is open while another process raises its version
    When the one that has it open writes
    Then the migration's error says "was migrated or recovered by another process; nothing was written"

  Scenario: Two processes that open it at once migrate it once
    Given a ledger of schema version 1 with a run in it
    When two processes of this version open it at once
    Then it has the tables, columns, indexes and keys of a new ledger
    And a copy of version 1 lies beside it, the owner's alone
