@every_python
Feature: Durations are read as people write them
  Settings, YAML and flags take the same words.

  Scenario Outline: a duration is read as seconds
    Then the duration "<text>" is <seconds> seconds

    Examples:
      | text    | seconds |
      | 50ms    | 0.05    |
      | 30s     | 30      |
      | 10m     | 600     |
      | 1h30m   | 5400    |
      | 1h 30m  | 5400    |
      | 24h     | 86400   |
      | 2d      | 172800  |
      | 1.5h    | 5400    |
      | .5s     | 0.5     |
      | 0       | 0       |
      | 45      | 45      |
      | 0.25    | 0.25    |
      | PT10M   | 600     |
      | P1DT2H  | 93600   |
      | pt1.5s  | 1.5     |
      | P1W     | 604800  |

  Scenario: a number and a timedelta are durations
    Then the duration values 90, 0.5 and timedelta(minutes=2) are 90, 0.5 and 120 seconds

  Scenario Outline: what is no duration is refused with examples of what is
    Then the duration "<text>" is refused, and the message shows how to write one

    Examples:
      | text    |
      | soon    |
      | -5s     |
      | 5 weeks |
      | 10s x   |
      | PT      |
      | P       |
      | 1e400   |
      |         |

  Scenario: truth values, nothing and endless numbers are no durations
    Then the duration values true, null, infinity, not-a-number and -1 are refused

  Scenario Outline: a duration is written in the largest unit that is exact
    Then <seconds> seconds are written as the duration "<text>"

    Examples:
      | seconds  | text   |
      | 0        | 0s     |
      | 0.05     | 50ms   |
      | 1.5      | 1.5s   |
      | 30       | 30s    |
      | 90       | 90s    |
      | 600      | 10m    |
      | 5400     | 90m    |
      | 93600    | 26h    |
      | 172800   | 2d     |

  Scenario: every duration that is written is read back as the same number
    Then 2000 durations from 1 ms to 30 days survive writing and reading
