@long
Feature: A ledger of an older version on PostgreSQL is brought to this one, and never harmed

  Background:
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server

  Scenario Outline: It becomes a new one, with all that was in it: version <version>
    Given it is a ledger of schema version <version> with a run in it
    When a command runs: status
    Then the command line exits with 0 and says
      """
      was migrated from schema version <version> to 9
      """
    And the server's ledger has the tables, columns and indexes of a new one
    And the run is still in the server's ledger, and can be sent

    Examples:
      | version |
      | 6       |
      | 8       |

  Scenario: While a process of the older version drives it nothing is changed
    Given it is a ledger of schema version 6 with a run in it
    And a process of the older version that drives it
    When a command runs: status
    Then the command line exits with 3 and says
      """
      another process drives the ledger
      """
    And the command line says
      """
      (process 7 on elsewhere); end it first: this claude-batch brings it from schema version 6 to 9
      """
    And the server's ledger is still of schema version 6

  Scenario: Several processes of this version may open it at once
    Given it is a ledger of schema version 6 with a run in it
    When 3 processes open the server's ledger at once
    Then the server's ledger has the tables, columns and indexes of a new one

  Scenario: The changes of a process that dies midway are undone
    Given it is a ledger of schema version 6 with a run in it
    When a command's process dies at during_migration: status
    Then the server's ledger is still of schema version 6
    When a command runs: status
    Then the command line exits with 0
    And the server's ledger has the tables, columns and indexes of a new one
