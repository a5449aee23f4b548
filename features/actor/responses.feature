@every_python
Feature: An answer shows what the API said
  Decoded only when somebody looks.

  Background:
    Given an actor response of batch "msgbatch_1", attempt 2
      """
      {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5",
       "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                   {"type": "text", "text": "Hel"},
                   {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}},
                   {"type": "text", "text": "lo"}],
       "stop_reason": "end_turn", "stop_sequence": null, "new_field": 1,
       "usage": {"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20,
                 "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}, "service_tier": "batch"}}
      """

  Scenario: Text, blocks, reason, model, usage, batch and attempt can be read
    Then the actor response shows
      | field | value |
      | text | "Hello" |
      | id | "msg_1" |
      | stop_reason | "end_turn" |
      | stop_sequence | null |
      | model | "claude-haiku-4-5" |
      | batch_id | "msgbatch_1" |
      | attempt | 2 |
      | content | [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hel"}, {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}, {"type": "text", "text": "lo"}] |
      | usage.input_tokens | 3 |
      | usage.output_tokens | 4 |
      | usage.cache_creation_input_tokens | 10 |
      | usage.cache_read_input_tokens | 20 |
      | usage.cache_creation_5m_input_tokens | 4 |
      | usage.cache_creation_1h_input_tokens | 6 |
      | usage.service_tier | "batch" |

  Scenario: the raw bytes and the SDK's message are there on demand
    Then the actor response's raw bytes are those that came
    And the actor response's message is the SDK's, with 4 blocks and a tool call

  Scenario: an answer becomes plain values for an output line
    Then the actor response's plain values have the keys "text, content, stop_reason, model, usage, batch_id, attempt, via, reused, cost_usd"
    And the actor response's plain values survive JSON

  Scenario: answers are equal by value, and survive pickling
    Then the actor response equals its pickled copy, also after it was read
    And the actor response differs from one of another batch, attempt or text, and from a string
    And the actor response can be told in a log by its repr

  Scenario: bytes that are no message give one clear error, and stay readable
    Given an actor response of batch "msgbatch_1", attempt 1
      """
      {"no": "message"}
      """
    Then reading the actor response's text raises a missing result of batch "msgbatch_1", and raw is kept

  Scenario: a result has a response or an error, and unwraps to it
    Then an actor result with a response is ok and unwraps to it
    And an actor result with an error is not ok and unwraps by raising it
    And an actor result with both or neither cannot be made

  Scenario: reading actors imports neither the SDK nor the ledger's database
    When Python imports "claude_batch.actor, claude_batch.providers.actor"
    Then the module "anthropic" is not imported
    And the module "sqlalchemy" is not imported
    And the module "httpx2" is not imported
