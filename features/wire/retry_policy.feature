Feature: Waits between two tries grow with the failures, to a limit

  Scenario: Each kind of work waits longer after each failure
    Then the waits after so many failures are, in seconds, as follows
      | of        | 1         | 2       | 5       | 100   |
      | SENDING   | 1         | 2       | 16      | 300   |
      | STORING   | 0.25      | 0.5     | 4       | 75    |
      | READING   | 0.2-0.4   | 0.4-0.6 | 3.2-3.4 | 8-8.2 |
      | LIVE_CALL | 0.375-0.5 | 0.75-1  | 6-8     | 6-8   |
      | PACE      | 1         | 2       | 16      | 60    |

  Scenario: A wait that an answer asks for is kept, within a limit
    Then an answer's own wait is kept within a limit as follows
      | of        | asked | seconds |
      | SENDING   | 7     | 7       |
      | SENDING   | 86400 | 3600    |
      | READING   | 0     | 0       |
      | READING   | 86400 | 30      |
      | LIVE_CALL | 0     | 0       |
      | LIVE_CALL | 86400 | 8       |
      | PACE      | 86400 | 3600    |

  Scenario: A server that asks for no wait again and again is not called without a pause
    Then an answer's own wait after so many failures is, in seconds, as follows
      | of        | asked | 1    | 2       | 100 |
      | SENDING   | 0.001 | 0.001 | 1      | 1   |
      | READING   | 0     | 0    | 0.4-0.6 | 1   |
      | LIVE_CALL | 0     | 0    | 0.75-1  | 1   |
      | PACE      | 0     | 0    | 1       | 1   |
      | PACE      | 7     | 7    | 7       | 7   |
