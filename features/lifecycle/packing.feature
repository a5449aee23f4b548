@every_python
Feature: Packing fills batches to the API's limits and no further

  Scenario Outline: A cut takes as many as the limits allow
    Given <count> queued requests of <size> bytes
    When a cut is planned with at most <requests> requests and <bytes> bytes
    Then the cut has <taken> requests

    Examples:
      | count | size | requests | bytes | taken |
      | 5     | 10   | 100000   | 10000 | 5     |
      | 5     | 10   | 3        | 10000 | 3     |
      | 5     | 100  | 100000   | 360   | 2     |
      | 5     | 100  | 100000   | 359   | 1     |
      | 1     | 5000 | 100000   | 100   | 1     |

  Scenario: The smallest max_requests of the runs in it counts, the shortest intervals too
    Given queued requests of runs with max_requests 5, 2 and 9
    When a cut is planned
    Then the cut has 2 requests
    And its poll interval is the shortest of the runs in it

  Scenario: A lane that fits into one batch is not looked at one by one
    Then a lane is cut as a whole exactly where a cut takes all of it

  Scenario: An empty queue gives no batch
    Given 0 queued requests of 1 bytes
    When a cut is planned
    Then there is no cut

  Scenario: The body is counted exactly
    Then the length of a body of 0 to 5 requests equals the bytes that are sent
