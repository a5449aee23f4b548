@every_python
Feature: pydantic-ai's agents run over the batched client

  Scenario: Concurrent agents and plain calls of one process share one batch
    Given an API for the batched client
    And a batch provider with {"linger": 1.5}
    When 6 pydantic-ai agents and 4 plain calls of that provider ask together
    Then each of 10 callers has the answer to its own question
    And the API has seen 1 batch
    And the API has processed 10 requests, none twice

  Scenario Outline: Agents with structured output get an instance of their type
    Given an API for the batched client
    And the batched client
    When pydantic-ai agents are run for <output>
    Then the pydantic-ai agents have an invoice

    Examples:
      | output            |
      | the tool's output |
      | native output     |

  Scenario: An agent whose provider creates the SDK client is batched by its http_client
    Given an API for the batched client
    And an http_client
    When pydantic-ai agents are run for the tool's output
    Then the pydantic-ai agents have an invoice
    And the API has seen 1 batch

  Scenario: Agents that call tools take one batch a turn
    Given an API for the batched client
    And the batched client
    When pydantic-ai agents are run with a tool
    Then the result's fields are
      | field  | value        |
      | output | "…sunny in…" |
    And the API has seen 2 batches

  Scenario: Agents without max_tokens, which pydantic-ai streams, are answered
    Given an API for the batched client
    And the batched client
    When pydantic-ai agents are run without max_tokens
    Then the call's fields are
      | field  | value |
      | stream | true  |
    And the result's fields are
      | field  | value             |
      | output | "Sandbox answer…" |

  Scenario: Agents that are run as streams get the whole answer
    Given an API for the batched client
    And the batched client
    When pydantic-ai agents are run as streams
    Then the result's fields are
      | field               | value             |
      | output              | "Sandbox answer…" |
      | usage.input_tokens  | 15                |
      | usage.output_tokens | 14                |
    And the sandbox's answers are as follows
      | call                 | field                 | value |
      | GET /sandbox/billing | 0.usage.input_tokens  | 15    |
      | GET /sandbox/billing | 0.usage.output_tokens | 14    |

  Scenario: Agents see the API's status where a request fails
    Given an API for the batched client
    And the batched client with {"max_attempts": 1}
    When pydantic-ai agents are run against an overloaded API
    Then the error's fields are
      | field       | value |
      | status_code | 529   |
    And the API has processed 1 requests, none twice
