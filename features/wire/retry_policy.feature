Feature: Waits between two tries grow with the failures, to a limit

  Scenario Outline: <work> waits longer after each failure
    Then the wait of <work> is <first>, <second>, <fifth> and <hundredth> seconds after 1, 2, 5 and 100 failures

    Examples: by the failures alone
      | work      | first     | second  | fifth   | hundredth |
      | SENDING   | 1         | 2       | 16      | 300       |
      | STORING   | 0.25      | 0.5     | 4       | 75        |
      | READING   | 0.2-0.4   | 0.4-0.6 | 3.2-3.4 | 8-8.2     |
      | LIVE_CALL | 0.375-0.5 | 0.75-1  | 6-8     | 6-8       |
      | PACE      | 1         | 2       | 16      | 60        |

  Scenario Outline: <work> waits as an answer asks, within a limit
    Then the wait of <work> is <seconds> seconds after an answer that asks for <asked>

    Examples: what is asked, and what is done
      | work      | asked | seconds |
      | SENDING   | 7     | 7       |
      | SENDING   | 86400 | 3600    |
      | READING   | 0     | 0       |
      | READING   | 86400 | 30      |
      | LIVE_CALL | 0     | 0       |
      | LIVE_CALL | 86400 | 8       |
      | PACE      | 86400 | 86400   |
