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
    Then the actor response's fields are
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

  Scenario: the SDK's message is there on demand
    Then the actor response's fields are
      | field                                 | value       |
      | message.__class__.__module__          | "anthropic.types.message" |
      | message.__class__.__name__            | "Message"   |
      | message.content.1.__class__.__name__  | "TextBlock" |
      | message.content.1.text                | "Hel"       |
      | message.content.2.__class__.__name__  | "ToolUseBlock" |
      | message.content.2.input               | {"a": 1}    |
      | message.content.3.text                | "lo"        |
      | message.usage.cache_read_input_tokens | 20          |

  Scenario: an answer becomes plain values for an output line, and is short in a log
    Then the actor response's plain values are
      """
      {"text": "Hello",
       "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hel"},
                   {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}, {"type": "text", "text": "lo"}],
       "stop_reason": "end_turn", "model": "claude-haiku-4-5",
       "usage": {"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20,
                 "cache_creation_5m_input_tokens": 4, "cache_creation_1h_input_tokens": 6, "web_search_requests": 0,
                 "service_tier": "batch", "inference_geo": null, "speed": null},
       "batch_id": "msgbatch_1", "attempt": 2, "via": "batch", "reused": false, "cost_usd": null}
      """
    And the actor response's fields are
      | field    | value |
      | __repr__ | "ActorResponse('{\"id\": \"msg_1\", \"type\": \"message\", \"role\": \"assistant\", \"mod'…, batch_id='msgbatch_1', attempt=2)" |

  Scenario: the tokens of an advisor are a part of its answer's usage
    Given an actor response of batch "msgbatch_1", attempt 1
      """
      {"content": [], "usage": {"input_tokens": 3, "output_tokens": 4, "iterations": [
        {"type": "advisor_message", "model": "claude-opus-5-5", "input_tokens": 5, "output_tokens": 6}]}}
      """
    Then the answer's usage has these advisors
      """
      [{"model": "claude-opus-5-5", "input_tokens": 5, "output_tokens": 6, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "cache_creation_5m_input_tokens": 0, "cache_creation_1h_input_tokens": 0,
        "web_search_requests": 0, "service_tier": null, "inference_geo": null, "speed": null}]
      """

  Scenario: answers are equal by value, and survive pickling
    Then the response and another one, read and pickled, are compared as follows
      | batch      | attempt | first text | equal |
      | msgbatch_1 | 2       | Hel        | yes   |
      | msgbatch_2 | 2       | Hel        | no    |
      | msgbatch_1 | 1       | Hel        | no    |
      | msgbatch_1 | 2       | Yel        | no    |

  Scenario: bytes that are no message give one clear error, and stay readable
    Then bytes are read as a message as follows
      | raw                           | way     | found | error                         |
      | {"no": "message"}             | text    |       | cannot be read as a Message   |
      | {"no": "message"}             | message |       | cannot be read as a Message   |
      | {"no": "message"}             | to_dict |       | cannot be read as a Message   |
      | {"content": [], "usage": {}, "model": "m", "stop_reason": "end_turn"} | text |  |   |

  Scenario: a result has a response or an error, and unwraps to it
    Then results are made as follows
      | response | error given | ok  | has text | unwrapped        | error                        |
      | yes      | no          | yes | yes      | its response     |                              |
      | no       | yes         | no  | no       | raises its error |                              |
      | yes      | yes         |     |          |                  | either a response or an error |
      | no       | no          |     |          |                  | either a response or an error |

  Scenario: reading actors imports neither the SDK nor the ledger's database
    When Python imports "claude_batch.actor, claude_batch.providers.actor"
    Then the module "anthropic" is not imported
    And the module "sqlalchemy" is not imported
    And the module "httpx2" is not imported
