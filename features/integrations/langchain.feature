@every_python
Feature: LangChain's ChatAnthropic is answered from batches

  Scenario: Everything that a chat model does is batched, and shares batches
    Given an API for the batched client
    And a batch provider with {"linger": 1.2}
    And a LangChain model
    When a LangChain model is asked at once by ainvoke, abatch, astream, structured output
    Then a LangChain model has answered in each way
    And the API has seen 1 batch
    And the API has processed 5 requests, none twice

  Scenario: A chat model works without an event loop
    Given an API for the batched client
    And a batch provider
    And a LangChain model
    When a LangChain model is asked in turn by invoke, stream
    Then a LangChain model has answered in each way

  Scenario Outline: More prompts than LangChain has threads make one batch without an event loop: <way>
    Given an API for the batched client
    And a batch provider with {"linger": 1.5}
    And a LangChain model
    When a LangChain model is asked 50 questions by <way>
    Then each of 50 callers has the answer to its own question
    And the API has seen 1 batch

    Examples:
      | way                     |
      | batch                   |
      | batch_as_completed      |
      | batch of a chain        |

  Scenario: A batch without an event loop has LangChain's configs, callbacks, order and errors
    Given an API for the batched client
    And a batch provider with {"linger": 0.3}
    And a LangChain model
    Then a LangChain model answers batches as follows
      | inputs                         | config                             | exceptions | outputs                                      | raised                       | traced | batches |
      | a, b                           | [{"tags": ["x"]}, {"tags": ["y"]}] | no         | a, b                                         |                              | x y    | 1       |
      | a, [[sandbox:errored:invalid_request_error]], c    | {"tags": ["x"]}                    | yes        | a, AnthropicInvalidRequestError, c           |                              | x x x  | 1       |
      | a, [[sandbox:errored:invalid_request_error]] 2, c  | {"tags": ["x"]}                    | no         |                                              | AnthropicInvalidRequestError | x x x  | 1       |
      | e, b, f, d                     | {"max_concurrency": 2}             | no         | e, b, f, d                                   |                              |        | 2       |
      | g                              | {"tags": ["x"]}                    | no         | g                                            |                              | x      | 1       |
      | a, b                           | [{}]                               | no         |                                              | ValueError                   |        | 0       |
      |                                | {}                                 | no         |                                              |                              |        | 0       |

  Scenario Outline: A batch that fails keeps its answers, and repeating it pays for none of them again: <way>
    Given an API for the batched client
    And a batch provider with {"linger": 0.5}
    And a LangChain model
    When a LangChain model is asked by <way> for 4 prompts, of which 1 fails, and then for the others
    Then the API has processed 4 requests, none twice
    And the API has seen 1 batch

    Examples:
      | way    |
      | batch  |
      | abatch |

  Scenario: A batch that fails before it is sent costs nothing
    Given an API for the batched client
    And a batch provider with {"linger": 2}
    And a LangChain model
    When a LangChain model is asked for a batch of 3, of which one fails at once
    Then in the ledger the states of the requests come to be ["canceled", "canceled"]
    And the API has seen 0 batches

  Scenario: A chat model keeps its headers, its betas and its own time-out
    Given an API for the batched client that takes 30 seconds
    And a batch provider
    And a LangChain model with {"timeout": 0.2, "max_retries": 0, "betas": ["a-2026-01-01"]}
    When a LangChain model is asked in turn by ainvoke
    Then the batched client fails with APITimeoutError
    And the batched client's batches were created with
      | anthropic-version | anthropic-beta | anthropic-user-profile-id |
      | 2026-10-21        | a-2026-01-01   |                           |

  Scenario: A chat model counts tokens at the real API
    Given an API for the batched client
    And a batch provider
    And a LangChain model
    When a LangChain model counts tokens
    Then the API was called 1 times by POST /v1/messages/count_tokens

  Scenario: A temperature is sent where the caller sets one, and only there
    Given an API for the batched client
    And a batch provider
    And a LangChain model
    When a LangChain model is asked in turn by ainvoke
    Given a LangChain model with {"temperature": 0.5}
    When a LangChain model is asked in turn by ainvoke
    Then the batched client's batches were created with
      | anthropic-version | anthropic-beta | anthropic-user-profile-id |
      | 2023-06-01        |                |                           |
      | 2026-10-21        |                |                           |

  Scenario: A parameter that the model does not take is refused at once
    Given a batch provider
    Then LangChain models of claude-opus-5-5 are made as follows
      | kind    | settings                 | kind of error           | error       |
      | batched | {"temperature": 0.5}     | InvalidRequestError     | temperature |
      | batched | {"top_k": 5}             | InvalidRequestError     | top_k       |
      | live    | {"temperature": 0.5}     | InvalidRequestError     | temperature |
      | batched | {"base_url": "http://x"} | ActorConfigurationError | base_url    |
      | batched | {"api_key": "sk-x"}      | ActorConfigurationError | api_key     |

  Scenario: LangChain's own default that the model does not take is dropped with a warning
    Given an API for the batched client
    And a batch provider
    And LangChain has a default temperature
    And a LangChain model with {"model": "claude-opus-5-5"}
    When a LangChain model is asked in turn by ainvoke
    Then a LangChain model has answered in each way
    And the log's fields are
      | field | value                       |
      | 0     | "…temperature…0.7…dropped…" |
      | 1     |                             |

  Scenario Outline: A live chat model is LangChain's own, with the provider's server and key
    Given an API for the batched client
    And a provider without batches, with <provider>
    And a LangChain model with <settings>
    When a LangChain model is asked in turn by invoke
    Then a LangChain model has answered in each way
    And the sandbox's bill sums up as
      | what    | count |
      | live    | 1     |
      | batches | 0     |
    And the sandbox's answers are as follows
      | call             | field                       | value     |
      | GET /sandbox/log | 0.headers.anthropic-version | <version> |

    Examples:
      | provider                                       | settings             | version    |
      | {}                                             | {}                   | 2026-10-21 |
      | {"base_url": "the API's", "api_key": "sk-any"} | {"temperature": 0.5} | 2023-06-01 |

  Scenario: Without the extra the error names what to install
    Given the extra langchain is not installed
    And a batch provider
    Then LangChain models of claude-opus-5-5 are made as follows
      | kind    | settings | kind of error           | error                                 |
      | batched | {}       | ActorConfigurationError | pip install 'claude-batch[langchain]' |
