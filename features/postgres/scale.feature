Feature: The SQL of docs/explanation/scale.md does what the page says

  Scenario: Existing rows become a partition without being copied, and an empty one goes
    Given a schema with the tables of a ledger on PostgreSQL, and 1000 requests with results
    When the SQL of the page is run before "DETACH"
    Then the tables results, params, results_first, params_first have 1000 rows each
    When the requests from 9999990 to 10000009 are stored
    Then the tables results, params have 1020 rows each
    And the tables results_10m, params_10m have 10 rows each
    And the results of requests are looked for in partitions as follows
      | request  | partitions        |
      | 5        | ["results_first"] |
      | 10000003 | ["results_10m"]   |
    And further results are refused as follows
      | request  | sending | batch | error       |
      | 10000003 | 1       | 1     | unique      |
      | 10000003 | 2       | 99    | foreign key |
    When the requests from 0 to 9999999 are removed
    And the SQL of the page is run from "DETACH"
    Then the tables results, params have 10 rows each
