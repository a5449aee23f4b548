@every_python
Feature: What the API would refuse hours later is refused at once, with the item and the remedy

  Scenario: max_tokens beyond the model's limit
    Then changed params are encoded for a batch as follows
      | changes                                                    | error                                                                     |
      | {"model": "claude-haiku-4-5", "max_tokens": 64001}         | `max_tokens: 64001` is more than the 64,000 of claude-haiku-4-5; lower it |
      | {"model": "claude-opus-4-5-20251101", "max_tokens": 64001} | is more than the 64,000                                                   |
      | {"model": "claude-opus-4-1-20250805", "max_tokens": 32001} | is more than the 32,000                                                   |
      | {"model": "claude-sonnet-4-20250514", "max_tokens": 64001} | is more than the 64,000                                                   |
      | {"model": "claude-opus-5-5", "max_tokens": 128001}         | or add the beta output-300k-2026-03-24                                    |
      | {"model": "claude-opus-5-5", "max_tokens": 300001}         | is more than the 128,000 of claude-opus-5-5; lower it                     |
      | {"model": "claude-fable-5", "max_tokens": 128001}          | is more than the 128,000 of claude-fable-5; lower it                      |
      | {"model": "claude-of-tomorrow", "max_tokens": 128001}      | is more than the 128,000                                                  |
      | {"model": "claude-opus-5-5", "max_tokens": -1}             | is negative                                                               |
      | {"model": "claude-opus-5-5", "max_tokens": true}           | `max_tokens` must be a whole number, not True                                  |
      | {"model": "claude-opus-5-5", "max_tokens": "9"}            | `max_tokens` must be a whole number                                            |
      | {"model": "claude-opus-5-5", "max_tokens": 0}              | `max_tokens: 0` asks for no answer; give at least 1                            |
      | {"model": 5, "max_tokens": 9}                              | `model` must be a text that is not empty, not 5                                |
      | {"model": "", "max_tokens": 9}                             | `model` must be a text that is not empty, not ''                               |
      | {"model": null, "max_tokens": 9}                           | `model` is missing                                                             |
      | {"model": "MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM", "max_tokens": 9} | `model` has 257 characters; at most 256 are possible |

  Scenario: Sampling parameters of another kind or range
    Then changed params are encoded for a batch as follows
      | changes                                                    | error                                                                          |
      | {"model": "claude-haiku-4-5", "temperature": "hot"}        | `temperature` must be a number from 0 to 1, not 'hot'                          |
      | {"model": "claude-haiku-4-5", "temperature": 2.5}          | `temperature` must be a number from 0 to 1, not 2.5                            |
      | {"model": "claude-haiku-4-5", "temperature": true}         | `temperature` must be a number from 0 to 1, not True                           |
      | {"model": "claude-haiku-4-5", "temperature": 1}            |                                                                                |
      | {"model": "claude-haiku-4-5", "top_p": 3}                  | `top_p` must be a number from 0 to 1, not 3                                    |
      | {"model": "claude-haiku-4-5", "top_p": 0}                  |                                                                                |
      | {"model": "claude-haiku-4-5", "top_k": -1}                 | `top_k` must be a whole number of at least 0, not -1                           |
      | {"model": "claude-haiku-4-5", "top_k": 1.5}                | `top_k` must be a whole number of at least 0, not 1.5                          |
      | {"model": "claude-haiku-4-5", "top_k": 40}                 |                                                                                |

  Scenario: The beta lifts the limit, in batches, of the models that have it
    Then changed params are encoded for a batch as follows
      | changes                                                                                  | error                    |
      | {"model": "claude-opus-5-5", "max_tokens": 300000, "betas": ["output-300k-2026-03-24"]}  |                          |
      | {"model": "claude-opus-5-5", "max_tokens": 300001, "betas": ["output-300k-2026-03-24"]}  | is more than the 300,000 |
      | {"model": "claude-haiku-4-5", "max_tokens": 100000, "betas": ["output-300k-2026-03-24"]} | is more than the 64,000  |
    And changed params are encoded for a live call as follows
      | changes                                                                                 | error      |
      | {"model": "claude-opus-5-5", "max_tokens": 300000, "betas": ["output-300k-2026-03-24"]} | in batches |

  Scenario: Thinking and sampling parameters that a model does not accept are refused
    Then changed params are encoded for a batch as follows
      | changes                                                                                                                                                              | error                                                                            |
      | {"model": "claude-opus-5-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                             | claude-opus-5-5 does not accept `thinking: {type: enabled}`; use                 |
      | {"model": "claude-opus-4-7", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                             | claude-opus-4-7 does not accept `thinking: {type: enabled}`; use                 |
      | {"model": "claude-sonnet-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                             | claude-sonnet-5 does not accept `thinking: {type: enabled}`; use                 |
      | {"model": "claude-opus-5-5", "max_tokens": 4000, "thinking": {"type": "adaptive"}}                                                                                   |                                                                                  |
      | {"model": "claude-opus-4-6", "max_tokens": 4000, "thinking": {"type": "adaptive"}}                                                                                   |                                                                                  |
      | {"model": "claude-opus-4-6", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                             |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                            |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1023}}                                                            | `thinking.budget_tokens: 1023` is less than 1,024                                |
      | {"model": "claude-haiku-4-5", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 2000}}                                                            | is not less than `max_tokens: 2000`                                              |
      | {"model": "claude-opus-4-6", "max_tokens": 4000, "temperature": 0.2, "thinking": {"type": "adaptive"}}                                                               | `temperature: 0.2` is not allowed with `thinking`; remove one of them            |
      | {"model": "claude-opus-4-6", "max_tokens": 4000, "temperature": 1, "thinking": {"type": "adaptive"}}                                                                 |                                                                                  |
      | {"model": "claude-opus-4-6", "max_tokens": 4000, "temperature": 0.2, "thinking": {"type": "disabled"}}                                                               |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "top_p": 0.9, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                              | raise it to at least 0.95                                                        |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "top_p": 0.95, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                             |                                                                                  |
      | {"model": "claude-haiku-4-5", "temperature": 0, "top_p": 1}                                                                                                          | claude-haiku-4-5 accepts only one of `temperature` and `top_p`; remove the other |
      | {"model": "claude-haiku-4-5", "temperature": 0, "top_p": null}                                                                                                       |                                                                                  |
      | {"model": "claude-sonnet-4-0", "temperature": 0, "top_p": 1}                                                                                                         |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                | `top_k` is not allowed with `thinking`                                           |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}}  | a forced `tool_choice` (any) is not allowed with `thinking                       |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "auto"}} |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 2000}, "betas": ["interleaved-thinking-2025-05-14"]}              |                                                                                  |
      | {"model": "claude-of-tomorrow", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                          |                                                                                  |
      | {"model": "us.anthropic.claude-opus-5-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}                                                |                                                                                  |
      | {"model": "claude-opus-5-5", "max_tokens": 4000, "thinking": {"type": "disabled"}}                                                                                   |                                                                                  |
      | {"model": "claude-opus-5-5", "max_tokens": 4000, "thinking": {"type": "of tomorrow"}}                                                                                |                                                                                  |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled"}}                                                                                   | `thinking.budget_tokens` must be a whole number, not None                        |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": "2k"}}                                                            | `thinking.budget_tokens` must be a whole number, not '2k'                        |

  Scenario: Messages, schemas and tools of an invalid form are refused
    Then changed params are encoded for a batch as follows
      | changes | error |
      | {"model": "claude-opus-5-5", "messages": "hello"} | `messages` must be a list of messages |
      | {"model": "claude-opus-5-5", "messages": ["hello"]} | message 1 must be a mapping of role and content, not str |
      | {"model": "claude-opus-5-5", "messages": [{"role": "robot", "content": "a"}]} | message 1: unknown role 'robot' |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": {"type": "text"}}]} | message 1: its content must be a text or a list of blocks |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": []}]} | message 2 has no content |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}]} | message 2, block 1: a document in an assistant's message is not allowed since API version 2026-10-21; put it into a user's |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "a"}}]}]} | message 1, block 1: `media_type: image/tiff` is not allowed in a block of type image; use image/jpeg, |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/msword", "data": "a"}}]}]} | use application/pdf |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/markdown", "data": "a"}}]}]} | of `media_type: text/plain`, not 'text/markdown' |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": ""}}]}]} | its source has no `data` |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "document"}]}]} | a block of type document needs a `source` |
      | {"model": "claude-opus-5-5", "output_config": {"format": {"type": "xml"}}} | `output_config.format` is {type: json_schema |
      | {"model": "claude-opus-5-5", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"$ref": "#"}}}}}} | the API does not accept the schema of `output_config.format`: field `a`: `$ref: #` is recursive |
      | {"model": "claude-opus-5-5", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "messages": [{"role": "user", "content": [{"type": "document", "citations": {"enabled": true}, "source": {"type": "url", "url": "u"}}]}]} | the API does not accept a schema (`output_config.format`) together with citations |
      | {"model": "claude-opus-5-5", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "search_result", "citations": {"enabled": true}}]}]}]} | together with citations |
      | {"model": "claude-opus-5-5", "tools": [{"name": "a b"}]} | tool 1: 'a b' is not a valid name |
      | {"model": "claude-opus-5-5", "tools": [{"input_schema": {}}]} | tool 1: None is not a valid name |
      | {"model": "claude-opus-5-5", "tools": [{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}]} | tool 2: another tool has the name 'a' |
      | {"model": "claude-opus-5-5", "tool_choice": {"type": "any"}} | `tool_choice: any` needs `tools` |
      | {"model": "claude-opus-5-5", "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "a"}} | claude-opus-5-5 does not accept a forced `tool_choice` (tool); use `auto` |
      | {"model": "claude-opus-5-5", "stop_sequences": "END"} | `stop_sequences` must be a list of texts |
      | {"model": "claude-opus-5-5", "stop_sequences": [1]} | `stop_sequences` must be a list of texts |
      | {"model": "claude-opus-5-5", "output_config": "low"} | `output_config` must be a mapping, not str |
      | {"model": "claude-opus-5-5", "thinking": 5} | `thinking` must be a mapping, not int |
      | {"model": "claude-opus-5-5", "metadata": [1]} | `metadata` must be a mapping, not list |
      | {"model": "claude-opus-5-5", "cache_control": "ephemeral"} | `cache_control` must be a mapping, not str |
      | {"model": "claude-opus-5-5", "tool_choice": "any"} | `tool_choice` must be a mapping, not str |
      | {"model": "claude-opus-5-5", "system": 5} | `system` must be a text or a list of blocks, not int |
      | {"model": "claude-opus-5-5", "system": [{"type": "text"}]} | `system`: block 1: its `text` must be a text, not None |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]} | message 1, block 1: its `text` must be a text, not int |
      | {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "é"}}]}]} | the `data` of its source is not base64 |
      | {"model": "claude-opus-5-5", "system": ["a"]} | `system`: block 1 must be a mapping, not str |
      | {"model": "claude-opus-5-5", "tools": {"name": "a"}} | `tools` must be a list of tools, not dict |
      | {"model": "claude-opus-5-5", "tools": [{"name": "a", "input_schema": 5}]} | tool 1: its `input_schema` must be a JSON schema of `type: object` |
      | {"model": "claude-opus-5-5", "tools": [{"name": "a", "input_schema": {"type": "string"}}]} | tool 1: its `input_schema` must be a JSON schema of `type: object` |
      | {"model": "claude-opus-5-5", "tools": [5]} | tool 1 must be a mapping, not int |
      | {"model": "claude-opus-5-5", "betas": "a-1"} | `betas` must be a list of names, not 'a-1' |
      | {"model": "claude-opus-5-5", "betas": [{}]} | `betas` must be a list of names, not [{}] |

  Scenario: Conversations and cache marks that the API does not accept are refused
    Then changed params are encoded for a batch as follows
      | changes | error |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "user", "content": "b"}]} | message 2: the call of a tool 't' has no result (`tool_result`) in the next message |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "b"}]} | message 2: the call of a tool 't' has no result |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}, {"role": "user", "content": "b"}]} | |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}, {"type": "tool_result", "tool_use_id": "t"}]}]} | message 3: the call of a tool 't' has two results |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}, {"role": "assistant", "content": "b"}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]} | message 5: the `tool_use_id` 't' of a result is that of no call (`tool_use`) in the message before |
      | {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]} | message 1: the `tool_use_id` 't' of a result is that of no call |
      | {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}], "thread": {"type": "continue", "id": "x"}} | |
      | {"messages": [], "thread": {"type": "continue", "id": "x"}} | |
      | {"messages": [], "thread": {"type": "create"}} | `messages` is missing or empty |
      | {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t"}]}]} | message 1: `tool_use` blocks belong into assistant's messages |
      | {"messages": [{"role": "user", "content": " \n"}, {"role": "user", "content": "a"}]} | message 1 has only whitespace, which the API does not accept |
      | {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]} | message 1, block 1: its `text` is empty, which the API does not accept |
      | {"messages": [{"role": "user", "content": [{"type": "text", "text": "\n"}]}]} | message 1 has only whitespace, which the API does not accept |
      | {"messages": [{"role": "user", "content": " "}]} | message 1 has only whitespace, which the API does not accept |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": " "}]}, {"role": "user", "content": "b"}]} | message 2 has only whitespace |
      | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]} | message 1, block 1: the type `image_url` is OpenAI's; write {type: image, source: …} |
      | {"system": [{"type": "text", "text": ""}]} | `system`: block 1: its `text` is empty |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]} | claude-opus-4-6 does not accept an `assistant` message as the last one (prefill); end with a `user` message |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}]} | claude-opus-4-6 does not accept an `assistant` message as the last one |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]} | |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "compaction": {"type": "summarize"}} | |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "fallback_credit_token": "t"} | |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]} | |
      | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]} | |
      | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{ "}]} | the last message ends with whitespace, which the API does not accept; remove it |
      | {"model": "claude-haiku-4-5", "max_tokens": 4000, "thinking": {"type": "adaptive"}} | claude-haiku-4-5 does not accept `thinking: {type: adaptive}`; use `{type: enabled, budget_tokens: …}` |
      | {"tools": [{"name": "a"}]} | tool 1: it has no `input_schema` |
      | {"model": "claude-haiku-4-5", "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "b"}} | `tool_choice` names 'b', which is no tool; the tools are a |
      | {"model": "claude-haiku-4-5", "tools": [{"name": "a", "input_schema": {}}, {"type": "mcp_toolset"}], "tool_choice": {"type": "tool", "name": "b"}} | |
      | {"model": "claude-haiku-4-5", "tools": [{"name": "a", "input_schema": {}}], "mcp_servers": [{"type": "url", "name": "s", "url": "u"}], "tool_choice": {"type": "tool", "name": "b"}} | |
      | {"model": "claude-haiku-4-5", "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "b"}, "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "b", "input_schema": {}}}}]}, {"role": "user", "content": "c"}]} | |
      | {"model": "claude-haiku-4-5", "tool_choice": {"type": "any"}, "thread": {"type": "continue", "previous_message_id": "m"}} | |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "b", "input_schema": {}}}}]}, {"role": "assistant", "content": "c"}]} | |
      | {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}], "messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]}]} | |
      | {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]} | a `cache_control` of `ttl: 1h` stands after one of `5m` |
      | {"tools": [{"name": "a", "input_schema": {}, "cache_control": {"type": "ephemeral"}}], "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]}]} | |
      | {"cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]}]} | 5 blocks have `cache_control`; the API accepts at most 4 |

  Scenario: A schema is refused for a model without structured outputs
    Then changed params are encoded for a batch as follows
      | changes | error |
      | {"model": "claude-3-haiku-20240307", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} | claude-3-haiku-20240307 has no structured outputs, which `output_config.format` |
      | {"model": "claude-3-7-sonnet-latest", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} | claude-3-7-sonnet-latest has no structured outputs, which `output_config.format` |
      | {"model": "claude-opus-4-0", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} | claude-opus-4-0 has no structured outputs, which `output_config.format` |
      | {"model": "claude-sonnet-4-20250514", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} | claude-sonnet-4-20250514 has no structured outputs, which `output_config.format` |
      | {"model": "claude-opus-4-20250514", "tools": [{"name": "a", "input_schema": {}, "strict": false}, {"name": "b", "input_schema": {}, "strict": true}]} | claude-opus-4-20250514 has no structured outputs, which `strict` of tool 2 |

  Scenario: A schema passes for a model that has structured outputs or is not known
    Then changed params are encoded for a batch as follows
      | changes                                                                                                                                                                   | error |
      | {"model": "claude-opus-4-1-20250805", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}       |       |
      | {"model": "claude-sonnet-4-5-20250929", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}     |       |
      | {"model": "claude-haiku-4-5", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}               |       |
      | {"model": "claude-opus-5-5", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}                |       |
      | {"model": "claude-sonnet-40", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}               |       |
      | {"model": "claude-of-tomorrow", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}             |       |
      | {"model": "us.anthropic.claude-3-haiku-v1", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]} |       |
      | {"model": "gateway/our-own", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "input_schema": {}, "strict": true}]}                |       |

  Scenario: The table of models is overridden by what the caller knows of the model
    Then changed params are encoded for a batch as follows
      | changes                                                                                                                  | capabilities                  | error                                     |
      | {"model": "claude-3-haiku-20240307", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} | {"structured_outputs": true}  |                                           |
      | {"model": "gateway/our-own", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}         | {"structured_outputs": false} | gateway/our-own has no structured outputs |

  Scenario: Params that are valid, or unknown here, pass
    Then changed params are encoded for a batch as follows
      | changes | error |
      | {"temperature": 0.1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}]} |  |
      | {"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}} |  |
      | {"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}, {"type": "web_search_20260601", "name": "web_search"}], "tool_choice": {"type": "auto"}} |  |
      | {"messages": [{"role": "user", "content": [{"type": "of_tomorrow", "source": 5}, {"type": "document", "source": {"type": "file", "file_id": "f"}}]}]} |  |
      | {"messages": [{"role": "user", "content": ["of tomorrow", {"type": "text", "text": "a"}]}], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": false}}}} |  |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "\n\n"}, {"type": "tool_use", "id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}, {"type": "text", "text": " "}]}]} |  |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": []}, {"role": "user", "content": "b"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "c"}]} |  |
      | {"messages": [{"role": "assistant", "content": [{"type": "compaction", "content": "a"}]}, {"role": "system", "content": "", "output_config": {"effort": "low"}}, {"role": "user", "content": "b"}]} |  |
      | {"output_config": {"effort": "low", "format": null}, "stop_sequences": ["a"], "of_tomorrow": 1} |  |
