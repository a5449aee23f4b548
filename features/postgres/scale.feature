Feature: The SQL of docs/explanation/scale.md does what the page says

  Scenario: Existing rows become a partition without being copied, and an empty one goes
    Given a schema with the tables of a ledger on PostgreSQL, and 1000 requests with results
    When the SQL of the page is run up to "DETACH"
    Then results and params have 1000 rows, in "results_first" and "params_first"
    When the requests from 9999990 to 10000009 are stored
    Then results and params have 1020 rows
    And 10 of them are in "results_10m" and "params_10m"
    And the row of a request is found in one partition
    And a second result of a sending, and one of no batch, are refused
    When the requests up to 10000000 are removed
    And the rest of the SQL of the page is run
    Then results and params have 10 rows
