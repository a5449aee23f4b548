@every_python
Feature: Durations are read as people write them
  Settings, YAML and flags take the same words.

  Scenario: A duration is read as seconds
    Then durations are read as follows
      | text   | seconds |
      | 50ms   | 0.05    |
      | 30s    | 30      |
      | 10m    | 600     |
      | 1h30m  | 5400    |
      | 1h 30m | 5400    |
      | 24h    | 86400   |
      | 2d     | 172800  |
      | 1.5h   | 5400    |
      | .5s    | 0.5     |
      | 0      | 0       |
      | 45     | 45      |
      | 0.25   | 0.25    |
      | PT10M  | 600     |
      | P1DT2H | 93600   |
      | pt1.5s | 1.5     |
      | P1W    | 604800  |

  Scenario: Numbers and timedeltas are durations; truth values, nothing and endless numbers are not
    Then durations in Python are read as follows
      | value          | seconds | error |
      | 90             | 90      |       |
      | 0.5            | 0.5     |       |
      | {"minutes": 2} | 120     |       |
      | true           |         | True  |
      | null           |         | None  |
      | Infinity       |         | inf   |
      | NaN            |         | nan   |
      | -1             |         | -1    |

  Scenario: A text that is no duration is refused with examples of durations
    Then durations are read as follows
      | text    | error           |
      | soon    | 'soon' … 30s, 10m, 24h, 7d, ISO 8601 |
      | -5s     | '-5s' … 30s     |
      | 5 weeks | '5 weeks' … 30s |
      | 10s x   | '10s x' … 30s   |
      | PT      | 'PT' … 30s      |
      | P       | 'P' … 30s       |
      | 1e400   | '1e400' … 30s   |
      | 99999999999999d | '99999999999999d' is longer than 100 years |
      |         | '' … 30s        |

  Scenario: A duration is written in the largest unit that is exact
    Then durations are written as follows
      | seconds | text |
      | 0       | 0s   |
      | 0.05    | 50ms |
      | 0.00001 | 0.00001s |
      | 0.0000000015 | 0.0000000015s |
      | 0.3333333333333333 | 0.3333333333333333s |
      | 1.5     | 1.5s |
      | 30      | 30s  |
      | 90      | 90s  |
      | 600     | 10m  |
      | 5400    | 90m  |
      | 93600   | 26h  |
      | 172800  | 2d   |

  Scenario: every duration that is written is read back as the same number
    Then 1 to 719 times a unit is written and read back as follows
      | unit  | changed |
      | 0.001 | []      |
      | 0.37  | []      |
      | 1     | []      |
      | 60    | []      |
      | 3600  | []      |
