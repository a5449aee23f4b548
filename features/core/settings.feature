@every_python
Feature: A setting comes from the nearest place that names it
  Keywords and flags, then the environment, then the actor's YAML, then the default.

  Scenario: The nearer source wins
    Then an actor's settings are resolved as follows
      | keywords         | environment                   | yaml             | linger |
      | {"linger": "1s"} | {"CLAUDE_BATCH_LINGER": "2m"} | {"linger": "3m"} | 1      |
      |                  | {"CLAUDE_BATCH_LINGER": "2m"} | {"linger": "3m"} | 120    |
      |                  | {"CLAUDE_BATCH_LINGER": ""}   | {"linger": "3m"} | 180    |
      |                  | {"CLAUDE_BATCH_LINGER": ""}   |                  | 2      |

  Scenario: The defaults are those of the documentation
    Then a setting without any source is as follows
      | setting             | value  |
      | linger              | 2      |
      | max_linger          | 30     |
      | max_requests        | 100000 |
      | parallel_batches    | none   |
      | poll_interval       | 30     |
      | max_poll_interval   | 300    |
      | max_wait            | 93600  |
      | on_timeout          | park   |
      | max_attempts        | 3      |
      | retry_on            | none   |
      | mode                | batch  |
      | auto_threshold      | 10     |
      | live_concurrency    | 8      |
      | live_retry          | safe   |
      | deadline            | none   |
      | deadline_margin     | none   |
      | fallback            | live   |
      | budget_usd          | none   |
      | actor_budget_usd    | none   |
      | max_turns           | 10     |
      | turn_linger         | 30     |
      | validation_attempts | 1      |
      | preflight           | auto   |
      | cache               | off    |
      | prime               | no     |
      | reuse               | no     |
      | dedupe              | no     |
      | failure_ttl         | 600    |
      | on_disconnect       | keep   |

  Scenario: An invalid value is reported with its source
    Then an actor's settings are resolved as follows
      | environment                           | keywords                    | error                                        |
      | {"CLAUDE_BATCH_LINGER": "soon"}       |                             | CLAUDE_BATCH_LINGER: …is not a duration      |
      | {"CLAUDE_BATCH_MAX_REQUESTS": "many"} |                             | CLAUDE_BATCH_MAX_REQUESTS: …integer          |
      | {"CLAUDE_BATCH_MAX_REQUESTS": ""}     | {"max_requests": "0"}       | max_requests: …greater than or equal         |
      | {"CLAUDE_BATCH_ON_TIMEOUT": "panic"}  |                             | CLAUDE_BATCH_ON_TIMEOUT: …'park' or 'cancel' |
      | {"CLAUDE_BATCH_CACHE": "all"}         |                             | CLAUDE_BATCH_CACHE: …'off' or 'auto'         |
      | {"CLAUDE_BATCH_PRIME": "true"}        |                             | CLAUDE_BATCH_PRIME: …needs `cache: auto`     |
      | {"CLAUDE_BATCH_PREFLIGHT": "maybe"}   |                             | CLAUDE_BATCH_PREFLIGHT: …boolean             |
      |                                       | {"poll_interval": "10ms"}   | poll_interval: …greater than or equal        |
      |                                       | {"max_poll_interval": "1s"} | poll_interval: …max_poll_interval            |
      | {"CLAUDE_BATCH_RETRY_ON": "overload"} |                             | CLAUDE_BATCH_RETRY_ON: …(did you mean overloaded_error?) |
      |                                       | {"retry_on": ["529", "401"]} | retry_on: …authentication_error concerns the account   |
      |                                       | {"retry_on": 5}             | retry_on: …5 is not a list of error types    |

  Scenario: Types of errors are named in any place, by type or status
    Then an actor's settings are resolved as follows
      | keywords                          | environment                          | yaml                             | retry_on                           |
      | {"retry_on": [413, "api_error"]}  | {"CLAUDE_BATCH_RETRY_ON": "404"}     |                                  | api_error, request_too_large       |
      |                                   | {"CLAUDE_BATCH_RETRY_ON": "404,400"} | {"retry_on": ["conflict_error"]} | invalid_request_error, not_found_error |
      | {"retry_on": "[not_found_error, 413]"} | {"CLAUDE_BATCH_RETRY_ON": "404"} |                                  | not_found_error, request_too_large |
      |                                   | {"CLAUDE_BATCH_RETRY_ON": "[\"conflict_error\", 404]"} |               | conflict_error, not_found_error    |
      | {"retry_on": "[]"}                |                                      | {"retry_on": ["conflict_error"]} | none                               |
      |                                   |                                      | {"retry_on": ["conflict_error"]} | conflict_error                     |
      |                                   |                                      | {"retry_on": []}                 | none                               |

  Scenario: A poll interval raises a lower maximum of a source that ranks lower
    Then an actor's settings are resolved as follows
      | keywords                   | yaml                                               | poll_interval | max_poll_interval | error                             |
      | {"poll_interval": "20m"}   |                                                    | 1200          | 1200              |                                   |
      | {"poll_interval": "5m"}    | {"poll_interval": "1s", "max_poll_interval": "1m"} | 300           | 300               |                                   |
      | {"poll_interval": "often"} | {"poll_interval": "1s", "max_poll_interval": "1m"} |               |                   | poll_interval: …is not a duration |

  Scenario: Settings of a ledger come from keywords, environment and defaults
    Then a ledger's settings are resolved as follows
      | keywords             | environment                                                      | settling | arm_window | not_found_after |
      | {"arm_window": "1s"} | {"CLAUDE_BATCH_SETTLING": "2s", "CLAUDE_BATCH_ARM_WINDOW": "3s"} | 2        | 1          | 86400           |

  Scenario: An invalid setting of a ledger is reported with its source
    Then a ledger's settings are resolved as follows
      | environment                                   | error                                                                |
      | {"CLAUDE_BATCH_SETTLING": "later"}            | CLAUDE_BATCH_SETTLING: …is not a duration                            |
      | {"CLAUDE_BATCH_ON_UNKNOWN": "resend"}         | CLAUDE_BATCH_ON_UNKNOWN: …'resend' is neither wait nor resubmit      |
      | {"CLAUDE_BATCH_EXCLUSIVE_WORKSPACE": "maybe"} | CLAUDE_BATCH_EXCLUSIVE_WORKSPACE: …'maybe' is neither true nor false |
      | {"CLAUDE_BATCH_BATCHES_PER_HOUR": "-1"}       | CLAUDE_BATCH_BATCHES_PER_HOUR: -1 is less than 0                     |
      | {"CLAUDE_BATCH_REQUESTS_PER_MINUTE": "1.5"}   | CLAUDE_BATCH_REQUESTS_PER_MINUTE: '1.5' is not a whole number        |

  Scenario: A ledger's setting may be written in words
    Then a ledger's settings are resolved as follows
      | environment                                 | exclusive_workspace |
      | {"CLAUDE_BATCH_EXCLUSIVE_WORKSPACE": "Yes"} | yes                 |
      | {"CLAUDE_BATCH_EXCLUSIVE_WORKSPACE": "1"}   | yes                 |
      | {"CLAUDE_BATCH_EXCLUSIVE_WORKSPACE": "off"} | no                  |

  Scenario: A variable that would be ignored is refused if its name is nearly that of a setting
    Then the names of environment variables are checked as follows
      | environment                               | error                                                          |
      | {"CLAUDE_BATCH_BUDGET": "5"}              | …CLAUDE_BATCH_BUDGET is not a setting; did you mean CLAUDE_BATCH_BUDGET_USD?… |
      | {"CLAUDE_BATCH_DAILY_BUDGET": "5"}        | …did you mean CLAUDE_BATCH_DAILY_BUDGET_USD?…                  |
      | {"CLAUDE_BATCH_BUDGETS_OF_DAY": "5"}      | …did you mean CLAUDE_BATCH_DAILY_BUDGET_USD?…                  |
      | {"CLAUDE_BATCH_BUDGET_OF_ACTOR": "5"}     | …did you mean CLAUDE_BATCH_ACTOR_BUDGET_USD?…                  |
      | {"CLAUDE_BATCH_POLL_INTERVALL": "5s"}     | …did you mean CLAUDE_BATCH_POLL_INTERVAL?…                     |
      | {"CLAUDE_BATCH_LEDGERS": "x"}             | …did you mean CLAUDE_BATCH_LEDGER?…                            |
      | {"CLAUDE_BATCH_SHARED_WORKSPACE": "1"}    | …did you mean CLAUDE_BATCH_EXCLUSIVE_WORKSPACE?…               |
      | {"CLAUDE_BATCH_BUDGET": ""}               |                                                                |
      | {"CLAUDE_BATCH_BUDGET_USD": "5"}          |                                                                |
      | {"CLAUDE_BATCH_DASHBOARD_TOKEN": "t"}     |                                                                |
      | {"CLAUDE_BATCH_LEDGER_PORT": "tcp://x:1"} |                                                                |
      | {"CLAUDE_BATCH_SERVICE_HOST": "10.0.0.1"} |                                                                |
      | {"CLAUDE_BATCH_NODE_MODULES": "x"}        |                                                                |
      | {"OTHER_BUDGET": "5"}                     |                                                                |

  Scenario: A command refuses such a variable before it stores anything
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's environment has CLAUDE_BATCH_BUDGET = 0.01
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      did you mean CLAUDE_BATCH_BUDGET_USD?
      """
    And the command line has sent nothing

  Scenario: The ledger and the state directory are named by argument, by environment, or are the user's
    Then the default ledger is found as follows
      | argument       | environment                               | ledger                      |
      | /arg/ledger.db | {"CLAUDE_BATCH_LEDGER": "/env/ledger.db"} | /arg/ledger.db              |
      |                | {"CLAUDE_BATCH_LEDGER": "/env/ledger.db"} | /env/ledger.db              |
      |                |                                           | <the user's data>/ledger.db |
      | ./host=a       |                                           | ./host=a                    |
      | host=a password=secret |                                   | …in libpq's words…          |
      |                | {"CLAUDE_BATCH_LEDGER": " dbname = b"}    | …in libpq's words…          |
      | postgresql://u:***@h/d |                                   | …Set CLAUDE_BATCH_LEDGER to the URL with its password, and leave out --ledger; or write the password |
      | postgresql://u@h/d?sslpassword=***&schema=s |              | …the ledger's URL has *** for its password… |
      | postgresql://u:a***@h/d |                                  | postgresql://u:a***@h/d     |
    And the commands of a message name their ledger as follows
      | message                                      | ledger                   | environment                             | words                                                            |
      | run `claude-batch resume run-1` or `x`       | a b.db                   |                                         | run `claude-batch resume run-1 --ledger 'a b.db'` or `x`         |
      | run `claude-batch resume`                    | a.db                     | {"CLAUDE_BATCH_LEDGER": "a.db"}         | run `claude-batch resume`                                        |
      | run `claude-batch resume`                    | postgres://u:***@h/d     | {"CLAUDE_BATCH_LEDGER": "postgres://u:secret@h/d"} | run `claude-batch resume`                             |
      | run `claude-batch resume`                    | a.db                     | {"CLAUDE_BATCH_LEDGER": "dbname = b"}   | run `claude-batch resume --ledger a.db`                          |
    And the default state directory is found as follows
      | environment                              | folder             |
      | {"CLAUDE_BATCH_STATE_DIR": "/env/state"} | /env/state         |
      |                                          | <the user's state> |

  Scenario Outline: commands that only read the ledger do without pydantic, which is slow to import
    When Python imports "<modules>"
    Then the module "pydantic" is not imported

    Examples:
      | modules                                                            |
      | claude_batch.cli.status_command, claude_batch.cli.status_report    |
      | claude_batch.cli.status_command, claude_batch.providers.transcript |
      | claude_batch.cli.cost, claude_batch.providers.cost_report          |
      | claude_batch.cli.app, claude_batch.ledger.backends.sqlite          |
