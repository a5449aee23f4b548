@every_python
Feature: Providers are opened and closed as their users expect

  Scenario: The key is found when it is needed; one that cannot be used is reported, and not shown
    Given an API
    Then a provider finds its credentials as follows
      | environment                      | settings                              | answered | error             |
      | {"ANTHROPIC_API_KEY": "sk-key"}  | {}                                    | yes      |                   |
      | {"OTHER_KEY": "sk-key"}          | {"api_key_env": "OTHER_KEY"}          | yes      |                   |
      | {}                               | {}                                    |          | ANTHROPIC_API_KEY |
      | {}                               | {"api_key_env": "NOT_SET_ANYWHERE"}   |          | NOT_SET_ANYWHERE  |
      | {}                               | {"api_key": "sk-one\nsk-two"}           |          | characters        |
      | {"ANTHROPIC_PROFILE": "nobody", "ANTHROPIC_CONFIG_DIR": "nowhere"} | {}                                    |          | credentials       |

  Scenario: An unusable setting is reported when it is given
    Then providers are made with settings as follows
      | provider            | settings                                      | error                                                                   |
      | ClaudeBatchProvider | {"linger": "soon"}                            | linger                                                                  |
      | ClaudeBatchProvider | {"poll_interval": 0.01}                       | poll_interval                                                           |
      | ClaudeBatchProvider | {"max_requests": 0}                           | max_requests                                                            |
      | ClaudeBatchProvider | {"poll_interval": 10, "max_poll_interval": 5} | max_poll_interval                                                       |
      | ClaudeBatchProvider | {"on_timeout": "explode"}                     | on_timeout                                                              |
      | ClaudeBatchProvider | {"settling": "later"}                         | settling                                                                |
      | ClaudeBatchProvider | {"deadline": "soon"}                          | is neither a duration nor a time                                        |
      | ClaudeBatchProvider | {"deadline": "2026-11-22"}                    | is neither a duration nor a time                                        |
      | ClaudeBatchProvider | {"deadline": 1795770000.5}                    | deadline: 1795770000.5 is a duration, of 57 years. For a point in time, write it as such: 2026-11-27T09:00:00Z |
      | ClaudeBatchProvider | {"deadline": "1795770000"}                    | deadline: '1795770000' is a duration, of 57 years. For a point in time  |
      | ClaudeBatchProvider | {"prime": true}                               | it needs `cache: auto`                                                  |
      | ClaudeBatchProvider | {"prices": "no-such-file.yaml"}               | no-such-file.yaml: the prices cannot be read: No such file or directory |
      | ClaudeBatchProvider | {"middleware_timeout": "soon"}                | middleware_timeout: …                                                   |
      | ClaudeBatchProvider | {"middleware_timeout": 0}                     | middleware_timeout: …                                                   |
      | ClaudeBatchProvider | {"observers": [5]}                            | observers: 5 is not callable                                             |
      | ClaudeBatchProvider | {"patience": 1}                               | there is no setting 'patience'                                          |
      | ClaudeBatchProvider | {"lingre": 1}                                 | there is no setting 'lingre'; did you mean 'linger'?                    |
      | ClaudeBatchProvider | {"timeout": 600}                              | there is no setting 'timeout'; the longest wait is `max_wait=`          |
      | ClaudeProvider      | {"linger": 1}                                 | there is no setting 'linger'                                            |
      | ClaudeProvider      | {"max_turns": 0}                              | max_turns: Input should be greater                                      |
      | ClaudeProvider      | {"concurrency": 0}                            | concurrency: 0 is less than 1                                           |
      | ClaudeProvider      | {"max_retries": -1}                           | max_retries: -1 is less than 0                                          |
      | ClaudeProvider      | {"timeout": "soon"}                           | timeout: 'soon' is not a duration                                       |
      | ClaudeProvider      | {"live_retry": "maybe"}                       | live_retry: Input should be 'safe' or 'always'                          |
      | ClaudeProvider      | {"middleware": [5]}                           | middleware: 5 has neither                                               |
      | ClaudeProvider      | {"prices": "no-such-file.yaml"}               | no-such-file.yaml: the prices cannot be read: No such file or directory |

  Scenario: A mode is checked however it is made
    Then a mode of batch processing is checked as follows
      | mode                       | error |
      | "often"                    | often |
      | {"poll_interval": "often"} | often |
      | {"poll_interval": "1m"}    |       |

  Scenario: Defaults of the provider fill what requests leave open
    Given an API
    And a batch provider with {"default_options": {"max_tokens": 7}}
    When 1 prompts are asked at once
    Then all 1 are answered

  Scenario: A text is not taken for a list of its letters
    Given an API
    And a batch provider
    Then runs are submitted as follows
      | requests  | requests stored | error             |
      | "letters" |                 | requests must be a list or another iterable, not one str |
      | ["a"]     | 1               |                   |

  Scenario: A run is found by its id, or by its beginning; an unknown one is reported
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    Then the run is opened as follows
      | by                               | shown     | error       |
      | the first 8 characters of its id | <Run RUN> |             |
      | the whole of its id              | <Run RUN> |             |
      | run-nowhere                      |           | run-nowhere |

  Scenario: The same run asked with another output remembers the newer one
    Given an API
    And a batch provider
    Then a run is stored with an output as follows
      | output       | outputs in the ledger |
      | first.jsonl  | ["first.jsonl"]       |
      | second.jsonl | ["second.jsonl"]      |

  Scenario: A run can be waited for and cancelled without a loop
    Given an API with {"latency": 30, "cancel_latency": 0.1}
    And a batch provider with {"max_wait": 1}
    When a run of 1 prompts is submitted
    And the run is waited for without a loop
    Then the error is a BatchTimeoutError
    When the run is cancelled without a loop
    Then the status shows 1 requests canceled

  Scenario: Every public name can be had, and no other
    Then every name in __all__ resolves, and no other
