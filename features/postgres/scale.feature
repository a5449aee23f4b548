Feature: The SQL of docs/explanation/scale.md does what the page says

  Scenario: Existing rows become a partition without being copied, and an empty one goes
    Given a schema with the tables of a ledger on PostgreSQL, and 1000 requests with results
    When the SQL of the page is run before "DETACH"
    Then the tables results, params, results_first, params_first have 1000 rows each
    When the requests from 9999990 to 10000009 are stored
    Then the tables results, params have 1020 rows each
    And the tables results_10m, params_10m have 10 rows each
    And the row of a request is found in one partition
    And a second result of a sending, and one of no batch, are refused
    When the requests from 0 to 9999999 are removed
    And the SQL of the page is run from "DETACH"
    Then the tables results, params have 10 rows each
