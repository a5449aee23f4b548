@every_python
Feature: OpenTelemetry sees batches and requests, in the trace of who asked

  Scenario: A request is a span in its caller's trace, linked to its batch
    Given an API
    And a program that traces
    When 2 prompts are asked in a span of the program, and the provider is closed
    Then there is a span of a batch, linked to nothing but itself
    And there are 2 spans "chat claude-haiku-4-5" in the program's trace, linked to the batch's
    And the request spans have the conventions' attributes
    And each request span lasts from its asking to the end of its batch

  Scenario: A run that another process collects is linked to the trace of who submitted it
    Given an API that takes 1 seconds for a batch
    And a program that traces
    When 2 prompts are submitted in a span of the program, which ends
    And another provider, in no span, collects them
    Then there is a span of a batch, linked to the program's trace
    And there are 2 spans "chat claude-haiku-4-5" in the program's trace, linked to the batch's

  Scenario: Where nobody traces, requests belong to their batch
    Given an API
    And a program that traces
    When 1 prompts are asked in no span, and the provider is closed
    Then the request's span is a child of the batch's

  Scenario: A failure has its type
    Given an API
    And a program that traces
    When "[[sandbox:errored:invalid_request_error]] bad" is asked, and the provider is closed
    Then the request's span has the error "invalid_request_error"

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
    Then there are 2 spans "chat claude-haiku-4-5" in the program's trace, linked to none
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
    Then there is a span of a batch, linked to nothing but itself
    And there are no spans of requests

  Scenario: What is rare is counted, and what is missing is an error
    Given a program that traces
    When it is told of a batch with missing results, a retry, an unknown sending and a late answer
    Then the batch's span is an error
    And the metrics have
      | claude_batch.retries |
      | claude_batch.unknown |
    And the late answer is a span of its own
