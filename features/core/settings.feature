@every_python
Feature: A setting comes from the nearest place that names it
  Keywords and flags, then the environment, then the actor's YAML, then the default.

  Scenario Outline: the nearer source wins
    Given the core environment variable "CLAUDE_BATCH_LINGER" is "<environment>"
    When the core mode is resolved from YAML "<yaml>" and keyword "<keyword>" for linger
    Then the core mode's linger is <seconds> seconds

    Examples:
      | keyword | environment | yaml | seconds |
      | 1s      | 2m          | 3m   | 1       |
      |         | 2m          | 3m   | 120     |
      |         |             | 3m   | 180     |
      |         |             |      | 2       |

  Scenario: the defaults are those of the documentation
    When the core mode is resolved from nothing
    Then the core mode reads as
      | linger | max_requests | poll_interval | max_poll_interval | max_wait | on_timeout | max_attempts | mode | auto_threshold | live_concurrency | live_retry | deadline | deadline_margin | fallback | budget_usd | actor_budget_usd | max_turns | turn_linger | validation_attempts | preflight | cache | prime | reuse | dedupe |
      | 2.0    | 100000       | 30.0          | 300.0             | 93600.0  | park       | 3            | batch | 10 | 8 | safe | None | None | live | None | None | 10 | 30.0 | 1 | auto      | off   | False | False | False  |

  Scenario Outline: a wrong value is told with the place that it came from
    Given the core environment variable "<variable>" is "<value>"
    When the core mode is resolved with the keywords "<keywords>"
    Then the core error says "<place>" and "<why>"

    Examples:
      | variable                  | value | keywords           | place                     | why                    |
      | CLAUDE_BATCH_LINGER       | soon  |                    | CLAUDE_BATCH_LINGER       | is not a duration      |
      | CLAUDE_BATCH_MAX_REQUESTS | many  |                    | CLAUDE_BATCH_MAX_REQUESTS | integer                |
      | CLAUDE_BATCH_MAX_REQUESTS |       | max_requests=0     | max_requests              | greater than or equal  |
      | CLAUDE_BATCH_ON_TIMEOUT   | panic |                    | CLAUDE_BATCH_ON_TIMEOUT   | 'park' or 'cancel'     |
      | CLAUDE_BATCH_CACHE        | all   |                    | CLAUDE_BATCH_CACHE        | 'off' or 'auto'        |
      | CLAUDE_BATCH_PRIME        | true  |                    | CLAUDE_BATCH_PRIME        | needs `cache: auto`    |
      | CLAUDE_BATCH_PREFLIGHT    | maybe |                    | CLAUDE_BATCH_PREFLIGHT    | boolean                |
      | CLAUDE_BATCH_LINGER       |       | poll_interval=10ms | poll_interval             | greater than or equal  |
      | CLAUDE_BATCH_LINGER       |       | max_poll_interval=1s | poll_interval           | max_poll_interval      |

  Scenario: a poll interval above the default maximum raises the maximum
    When the core mode is resolved with the keywords "poll_interval=20m"
    Then the core mode polls every 1200 to 1200 seconds

  Scenario: a keyword's poll interval raises a lower ranking maximum
    When the core mode is resolved from a YAML maximum of "1m" and a keyword of "5m"
    Then the core mode polls every 300 to 300 seconds

  Scenario: a keyword's poll interval that is no duration is told as such
    When the core mode is resolved from a YAML maximum of "1m" and a keyword of "often"
    Then the core error says "poll_interval" and "is not a duration"

  Scenario: settings of a ledger come from keywords, environment and defaults
    Given the core environment variable "CLAUDE_BATCH_SETTLING" is "2s"
    And the core environment variable "CLAUDE_BATCH_ARM_WINDOW" is "3s"
    When the core ledger settings are resolved with arm_window "1s"
    Then the core ledger settings have settling 2, arm_window 1 and not_found_after 86400

  Scenario: a ledger's setting that is no duration is told with its place
    Given the core environment variable "CLAUDE_BATCH_SETTLING" is "later"
    When the core ledger settings are resolved with arm_window "1s"
    Then the core error says "CLAUDE_BATCH_SETTLING" and "is not a duration"

  Scenario Outline: a ledger's setting that is no choice is told with its place: <value>
    Given the core environment variable "<variable>" is "<value>"
    When the core ledger settings are resolved with arm_window "1s"
    Then the core error says "<variable>" and "<why>"

    Examples:
      | variable                         | value  | why                               |
      | CLAUDE_BATCH_ON_UNKNOWN          | resend | 'resend' is neither wait nor resubmit |
      | CLAUDE_BATCH_EXCLUSIVE_WORKSPACE | maybe  | 'maybe' is neither true nor false |

  Scenario Outline: a ledger's setting may be written in words: <value>
    Given the core environment variable "CLAUDE_BATCH_EXCLUSIVE_WORKSPACE" is "<value>"
    When the core ledger settings are resolved with arm_window "1s"
    Then the core ledger's workspace is exclusive: <exclusive>

    Examples:
      | value | exclusive |
      | Yes   | True      |
      | 1     | True      |
      | off   | False     |

  Scenario: the ledger is named by argument, by environment, or lies in the data directory
    Given the core environment variable "CLAUDE_BATCH_LEDGER" is "/env/ledger.db"
    Then the core default ledger with argument "/arg/ledger.db" is "/arg/ledger.db"
    And the core default ledger is "/env/ledger.db"
    And without CLAUDE_BATCH_LEDGER the core default ledger lies in the user's data directory

  Scenario: the state directory is named by environment, or is the user's
    Given the core environment variable "CLAUDE_BATCH_STATE_DIR" is "/env/state"
    Then the core state directory is "/env/state"
    And without CLAUDE_BATCH_STATE_DIR the core state directory is the user's
