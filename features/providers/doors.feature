@every_python
Feature: Providers are opened and closed as their users expect

  Scenario: A provider closes with its block
    Given an API
    When a provider is used as a context manager, and another as an asynchronous one
    Then all 2 are answered
    And both are closed

  Scenario: The key can come from a variable of its own
    Given an API
    When a provider takes its key from OTHER_KEY
    Then all 1 are answered

  Scenario Outline: A credential that cannot be used is reported before anything is sent: <what>
    Given an API
    When a provider is used with <what>
    Then the error is a ActorConfigurationError that says
      """
      <words>
      """

    Examples:
      | what                        | words             |
      | no key                      | ANTHROPIC_API_KEY |
      | an unset variable           | NOT_SET_ANYWHERE  |
      | a key with a line break     | characters        |
      | a profile that is not there | credentials       |

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
      | ClaudeBatchProvider | {"prime": true}                               | it needs `cache: auto`                                                  |
      | ClaudeBatchProvider | {"prices": "no-such-file.yaml"}               | no-such-file.yaml: the prices cannot be read: No such file or directory |
      | ClaudeBatchProvider | {"middleware_timeout": "soon"}                | middleware_timeout: …                                                   |
      | ClaudeBatchProvider | {"middleware_timeout": 0}                     | middleware_timeout: …                                                   |
      | ClaudeBatchProvider | {"observers": [5]}                            | observers: 5 is not callable                                             |
      | ClaudeBatchProvider | {"patience": 1}                               | there is no setting 'patience'                                          |
      | ClaudeBatchProvider | {"lingre": 1}                                 | there is no setting 'lingre'                                            |
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
    When a text is submitted in place of a list
    Then the error is a InvalidRequestError

  Scenario: An unknown run is reported
    Given an API
    When the run run-nowhere is opened
    Then the error is a RunNotFoundError that says
      """
      run-nowhere
      """

  Scenario: A run is found by the beginning of its id
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    Then it is found by the beginning of its id, by open_run too

  Scenario: The same run asked with another output remembers the newer one
    Given an API
    And a batch provider
    When the same run is stored with two outputs
    Then in the ledger the outputs of the runs are ["second.jsonl"]

  Scenario: A run can be waited for without a loop
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"max_wait": 1}
    When a run of 1 prompts is submitted
    And the run is waited for without a loop
    Then the error is a BatchTimeoutError
    And the run can be cancelled and marked delivered without a loop

  Scenario: Every public name can be had, and no other
    Then every name in __all__ resolves
    And a name that does not exist is an AttributeError

  Scenario: An opened run closes the engine that it opened, one of a provider leaves it
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the run is closed, and the provider after it
    Then the provider was closed by its own close alone
    And an opened run runs an engine until it is closed, by each way to close it
    And an unknown run leaves no engine behind

  Scenario: A provider that actors share is closed with the last of them
    Given an API
    When two actors are loaded from a file, and one of them closes twice
    Then the other is answered still, and closes the provider
    And an actor that is loaded later is answered by a new provider

  Scenario: A provider that others have too is not closed with an actor
    Given an API
    When an actor is loaded whose provider others have, and is closed
    Then the others are answered still
