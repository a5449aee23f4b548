@every_python
Feature: Packing fills batches to the API's limits and no further

  Scenario: A cut takes as many as the limits allow
    Then of queued requests a cut takes as many as follows
      | requests | bytes of each | most requests | most bytes | taken   |
      | 5        | 10            | 100000        | 10000      | 5       |
      | 5        | 10            | 3             | 10000      | 3       |
      | 5        | 100           | 100000        | 360        | 2       |
      | 5        | 100           | 100000        | 359        | 1       |
      | 1        | 5000          | 100000        | 100        | 1       |
      | 0        | 1             | 100000        | 10000      | nothing |

  Scenario: The smallest max_requests of the runs in it counts, the shortest intervals too
    Then of runs with these settings, one request each, a cut is as follows
      | runs                                                                                                                                                  | count | poll_interval | max_poll_interval |
      | [{"max_requests": 5, "poll_interval": 30}, {"max_requests": 2, "poll_interval": 7, "max_poll_interval": 70}, {"max_requests": 9, "poll_interval": 1}] | 2     | 7             | 70                |

  Scenario: A lane that fits into one batch is not looked at one by one
    Then a lane is cut as a whole exactly where a cut takes all of it

  Scenario: The body is counted exactly
    Then the length of a body of 0 to 5 requests equals the bytes that are sent
