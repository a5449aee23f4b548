@every_python
Feature: OpenTelemetry sees batches and requests, in the trace of who asked

  Scenario: A request is a span in its caller's trace, linked to its batch
    Given an API
    And a program that traces
    When 2 prompts are asked in a span of the program, and the provider is closed
    Then the observer's spans are
      | spans | name                  | kind   | parent   | links     | gen_ai.operation.name | gen_ai.provider.name | claude_batch.batch.succeeded | gen_ai.usage.output_tokens | begins           | ends           |
      | 1     | batch …               | CLIENT |          |           | batch                 | anthropic            | 2                            | 30                         | with the batch   | with the batch |
      | 2     | chat claude-haiku-4-5 | CLIENT | the work | the batch | chat                  | anthropic            |                              | 15                         | before the batch | with the batch |
    And the request spans have the conventions' attributes

  Scenario: A run that another process collects is linked to the trace of who submitted it
    Given an API that takes 1 seconds for a batch
    And a program that traces
    When 2 prompts are submitted in a span of the program, and collected by another provider
    Then the observer's spans are
      | spans | name                  | parent   | links     |
      | 1     | batch …               |          | the work  |
      | 2     | chat claude-haiku-4-5 | the work | the batch |

  Scenario: If the caller does not trace, requests belong to their batch
    Given an API
    And a program that traces
    When 1 prompts are asked in no span, and the provider is closed
    Then the observer's spans are
      | spans | name                  | parent    | links |
      | 1     | batch …               |           |       |
      | 1     | chat claude-haiku-4-5 | the batch |       |

  Scenario: A failure has its type
    Given an API
    And a program that traces
    When the actor is asked in vain: "[[sandbox:errored:invalid_request_error]] bad"
    And the provider is closed
    Then the observer's spans are
      | spans | name                  | parent    | status | error.type            | gen_ai.request.model |
      | 1     | batch …               |           | UNSET  |                       |                      |
      | 1     | chat claude-haiku-4-5 | the batch | ERROR  | invalid_request_error | claude-haiku-4-5     |

  Scenario: Metrics tell tokens, cost, the queue and the age of batches
    Given an API
    And a program that traces
    When 2 prompts are asked in a span of the program, and the provider is closed
    Then the metrics have
      | gen_ai.client.token.usage |
      | claude_batch.tokens       |
      | claude_batch.cost         |
      | claude_batch.requests     |
      | claude_batch.queue.depth  |
      | claude_batch.batch.age    |
    And the cost that was measured is that of the answers

  Scenario: A live call is a span in its caller's trace, and counts in the metrics
    Given an API
    And a program that traces with {"mode": "live"}
    When 2 prompts are asked in a span of the program, and the provider is closed
    Then the observer's spans are
      | spans | name                  | parent   | links | claude_batch.batch.id |
      | 2     | chat claude-haiku-4-5 | the work |       |                       |
    And the request spans have the conventions' attributes
    And the metrics have
      | gen_ai.client.token.usage |
      | claude_batch.tokens       |
      | claude_batch.requests     |
      | claude_batch.cost         |
    And the cost that was measured is that of the answers

  Scenario: Without spans of requests nothing is made for each
    Given an API
    And a program that traces with {"request_spans": false}
    When 2 prompts are asked in a span of the program, and the provider is closed
    Then the observer's spans are
      | spans | name    | parent | links |
      | 1     | batch … |        |       |

  Scenario: Rare events are counted, and missing results are errors
    Given a program that traces
    When it is told of a batch with missing results, a retry, an unknown sending and a late answer
    Then the observer's spans are
      | spans | name    | parent | status | error.type |
      | 65    | batch … |        | ERROR  |            |
      | 1     | chat    |        | ERROR  | expired    |
    And the metrics have
      | claude_batch.retries |
      | claude_batch.unknown |
