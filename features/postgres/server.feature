Feature: Tests have a PostgreSQL server of their own

  Background:
    Given a PostgreSQL server

  Scenario: A server keeps what was committed, even if it crashes
    Given a schema with a table of marks
    When mark 1 is committed
    And the PostgreSQL server is restarted "immediate"
    And mark 2 is committed
    And the PostgreSQL server is restarted "fast"
    Then the marks are 1, 2

  Scenario: Scenarios do not see each other's schemas and databases
    Given a schema with a table of marks
    When mark 1 is committed
    Given a database with a table of marks
    When mark 2 is committed
    Given a schema with a table of marks
    Then there are no marks

  Scenario: A standby that was detached has lost later commits when it is promoted
    Given a schema with a table of marks
    And a standby of it
    When mark 1 is committed
    And the standby has everything and is detached
    And mark 2 is committed
    And the PostgreSQL server crashes, and the standby is promoted
    Then the marks are 1
    And mark 3 is committed
    And the marks are 1, 3

  Scenario: A server ends with the process that started it, and leaves no files
    Then a server and its folder are gone when the process that started it is killed
