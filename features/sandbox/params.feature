Feature: The sandbox finds mistakes in params only after the batch has ended

  Scenario Outline: A mistake is an errored line, whose error is nested twice
    Given a sandbox
    When the sandbox is sent a batch with the params
      """
      <params>
      """
    Then the sandbox answers 200
    And the sandbox's line for "r0" is errored: <kind> saying "<message>"
    And the sandbox's bill sums up as
      | what | count |
      | paid | 0     |

    Examples: The three that are required
      | params                                                                             | kind                  | message                          |
      | {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}                  | invalid_request_error | model: Field required            |
      | {"model": "claude-opus-4-6", "messages": [{"role": "user", "content": "x"}]}              | invalid_request_error | max_tokens: Field required       |
      | {"model": "claude-opus-4-6", "max_tokens": 9}                                             | invalid_request_error | messages: Field required         |
      | {"model": 7, "max_tokens": 9, "messages": []}                                      | invalid_request_error | model: Input should be a valid string |
      | {"model": "claude-opus-4-6", "max_tokens": "9", "messages": []}                           | invalid_request_error | max_tokens: Input should be a valid integer |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": 7}                              | invalid_request_error | messages: Input should be a valid list |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": []}                             | invalid_request_error | at least one message             |
      | {"model": "claude-opus-4-6", "max_tokens": 99999999999999999999999, "messages": []}       | invalid_request_error | max_tokens: 99999999999999999999999 > 128000 |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": 7, "messages": []}                | invalid_request_error | system: Input should be          |
      | "text"                                                                             | invalid_request_error | body: Input should be a valid dictionary |
      | {"model": "unknown-9", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]} | not_found_error  | model: unknown-9                 |
      | {"model": "invalid-9", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]} | not_found_error  | model: invalid-9                 |

    Examples: What a batch does not take
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "x"}]}   | invalid_request_error | "stream=True" is not supported |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "speed": "fast", "messages": [{"role": "user", "content": "x"}]}  | invalid_request_error | speed: Not          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "store": true, "messages": [{"role": "user", "content": "x"}]}    | invalid_request_error | store: Not          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "cache_hint": {}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | cache_hint: Not     |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "context_hint": {}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | context_hint: Not |
      | {"model": "claude-opus-4-6", "max_tokens": 0, "messages": [{"role": "user", "content": "x"}]}                   | invalid_request_error | greater than or equal to 1 |
      | {"model": "claude-opus-4-6", "max_tokens": 128001, "messages": [{"role": "user", "content": "x"}]}              | invalid_request_error | 128001 > 128000     |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "temprature": 1, "messages": [{"role": "user", "content": "x"}]}  | invalid_request_error | temprature: Extra inputs |

    Examples: Sampling parameters, which the SDK's version has removed
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "temperature": 1, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | temperature: Extra inputs |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "top_p": 0.5, "messages": [{"role": "user", "content": "x"}]}     | invalid_request_error | top_p: Extra inputs |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "top_k": 5, "messages": [{"role": "user", "content": "x"}]}       | invalid_request_error | top_k: Extra inputs |

    Examples: Messages
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"content": "x"}]}                           | invalid_request_error | messages.0.role: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": 7}]}             | invalid_request_error | messages.0.content: Input should be a valid string or list |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": ""}]}            | invalid_request_error | messages.0: user messages must have non-empty content |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "pope", "content": "x"}]}           | invalid_request_error | messages.0.role: Input should be |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "y"}, {"type": "document"}]}]} | invalid_request_error | messages.1.content.1: document blocks |

    Examples: Output and tools
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": 7, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | output_config: Input |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "xml"}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | format.type |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema"}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | format.schema |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {"properties": 7}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | format.schema: not a valid JSON schema |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a", "input_schema": 7}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tools.0.input_schema |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {}}}, "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "y"}, "citations": {"enabled": true}}]}]} | invalid_request_error | cannot be combined with citations |
      | {"model": "claude-3-haiku-20240307", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | 'claude-3-haiku-20240307' does not support output format |
      | {"model": "claude-sonnet-4-20250514", "max_tokens": 9, "tools": [{"name": "a", "strict": true}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | 'claude-sonnet-4-20250514' does not support strict tools |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": 7, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tools: Input should be |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"input_schema": {}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tools.0.name |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | must be unique |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tool_choice": "any", "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tool_choice: Input |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tool_choice": {"type": "all"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tool_choice.type |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | while providing tools |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "b"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | not found in tools |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": ["a"]}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | not found in tools |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a b"}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tools.0.custom.name: String should match pattern |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a", "input_schema": {"type": "string"}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | input_schema.type: Input should be 'object' |
      | {"model": "claude-opus-5-5", "max_tokens": 9, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tool_choice.type: 'any' is not supported for claude-opus-5-5 |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "a"}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | tools.0.custom.input_schema: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "mcp_servers": [], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | mcp_servers: Extra inputs are not permitted |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "object", "properties": {}}}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | 'additionalProperties' must be explicitly set to false |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false, "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | output_config.format.schema: For 'integer' type, properties maximum, minimum are not supported |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false, "properties": {"n": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 9}]}}}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | output_config.format.schema: For 'string' type, property 'maxLength' is not supported |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": {"type": "array", "minItems": 2, "items": {"type": "string"}}}}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | output_config.format.schema: For 'array' type, 'minItems' values other than 0 or 1 are not supported |
      | {"model": "claude-opus-4-6", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | Thinking may not be enabled when tool_choice forces tool use. |

    Examples: Blocks
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": ["text"], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | system.0: Input should be a valid dictionary |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": [{"type": "text"}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | system.0.text: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": [{"type": "text", "text": ""}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | text content blocks must be non-empty |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text"}]}]} | invalid_request_error | messages.0.content.0.text.text: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cachecontrol": {}}]}]} | invalid_request_error | messages.0.content.0.text.cachecontrol: Extra inputs are not permitted |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]} | invalid_request_error | text.text: Input should be a valid string |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]} | invalid_request_error | messages: text content blocks must be non-empty |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document"}]}]} | invalid_request_error | messages.0.content.0.document.source: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": "abc"}]}]} | invalid_request_error | document.source: Input should be a valid dictionary |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "citations": true, "source": {"type": "text", "data": "x"}}]}]} | invalid_request_error | document.citations: Input should be a valid dictionary |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content"}}]}]} | invalid_request_error | source.content.content: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": ["abc"]}}]}]} | invalid_request_error | source.content.content.0: Input should be a valid dictionary |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [{"type": "text"}]}}]}]} | invalid_request_error | content.0.text.text: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 7}]}]} | invalid_request_error | tool_result.content: Input should be a valid string or list |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]} | invalid_request_error | A maximum of 4 blocks with cache_control may be provided. Found 5. |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]}]} | invalid_request_error | messages.0.content.0: Input tag 'image_url' found |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "eA=="}}]}]} | invalid_request_error | image.source.base64.media_type: Input should be 'image/jpeg' |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "eA=="}}]}]} | invalid_request_error | document.source.base64.media_type: Input should be 'application/pdf' |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]} | invalid_request_error | does not support assistant message prefill |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "tools": [{"name": "look", "input_schema": {"type": "object"}}], "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]} | invalid_request_error | does not support assistant message prefill |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": [{"type": "text", "text": "x", "cache_control": {"type": "persistent"}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | cache_control.type: Input should be 'ephemeral' |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "2h"}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | cache_control.ephemeral.ttl: Input should be '5m' or '1h' |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}], "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | must not come after a ttl='5m' |

    Examples: Calls of tools and their results
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}]} | invalid_request_error | messages.0.content.0: unexpected `tool_use_id` found |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "1"}]}]} | invalid_request_error | tool_result.tool_use_id: Input should be a valid string |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}, {"role": "user", "content": "y"}]} | invalid_request_error | messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t. |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}, {"role": "assistant", "content": "z"}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}]} | invalid_request_error | messages.4.content.0: unexpected `tool_use_id` found |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}, {"type": "tool_result", "tool_use_id": "t", "content": "1"}]}]} | invalid_request_error | messages.2.content.1: each tool_use must have a single result |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}, {"role": "user", "content": "y"}, {"role": "assistant", "content": "z"}, {"role": "user", "content": "x"}]} | invalid_request_error | messages.1: `tool_use` ids were found |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]}]} | invalid_request_error | messages.0: `tool_use` blocks can only be in `assistant` messages |

    Examples: Thinking
      | params                                                                             | kind                  | message                          |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "thinking": {"type": "deep"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | thinking: Input tag 'deep' found |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "thinking": {"type": "enabled"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | thinking.enabled.budget_tokens: Field required |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": "2000"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | budget_tokens: Input should be a valid integer |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1023}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | budget_tokens: Input should be greater than or equal to 1024 |
      | {"model": "claude-opus-4-6", "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | `max_tokens` must be greater than `thinking.budget_tokens` |
      | {"model": "claude-haiku-4-5", "max_tokens": 9, "thinking": {"type": "adaptive"}, "messages": [{"role": "user", "content": "x"}]} | invalid_request_error | adaptive thinking is not supported |

  Scenario Outline: Under the older version the sampling parameters are taken, within bounds
    Given a sandbox
    When the sandbox is sent a batch with the params under "2023-06-01" with beta "none"
      """
      {"model": "claude-opus-4-6", "max_tokens": 9, <sampling>, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox's results end as
      | custom_id | ending   |
      | r0        | <ending> |

    Examples:
      | sampling                                             | ending                |
      | "temperature": 0.5, "top_k": 40                      | succeeded             |
      | "temperature": 1, "thinking": {"type": "adaptive"}   | succeeded             |
      | "top_p": 0.95, "thinking": {"type": "adaptive"}      | succeeded             |
      | "temperature": 1, "top_p": 1                         | invalid_request_error |
      | "temperature": 0.5, "thinking": {"type": "adaptive"} | invalid_request_error |
      | "top_p": 0.9, "thinking": {"type": "adaptive"}       | invalid_request_error |
      | "top_k": 4, "thinking": {"type": "adaptive"}         | invalid_request_error |
      | "temperature": 1.5                                   | invalid_request_error |
      | "temperature": "warm"                                | invalid_request_error |
      | "top_p": -0.1                                        | invalid_request_error |
      | "top_k": true                                        | invalid_request_error |

  Scenario: Newer models take no sampling parameters under any version
    Given a sandbox
    When the sandbox is sent a batch with the params under "2023-06-01" with beta "none"
      """
      {"model": "claude-opus-4-8", "max_tokens": 9, "temperature": 0.5, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox's line for "r0" is errored: invalid_request_error saying "`temperature` is not supported for claude-opus-4-8"

  Scenario: Under the older version an assistant's message may hold a document
    Given a sandbox
    When the sandbox is sent a batch with the params under "2023-06-01" with beta "none"
      """
      {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "x"},
       {"role": "assistant", "content": [{"type": "document", "source": {"type": "text", "data": "y"}}]}, {"role": "assistant", "content": "z"}, {"role": "user", "content": "y"}]}
      """
    Then the sandbox's line for "r0" succeeded

  Scenario: An assistant's message may be empty, and the first, and a tool may return an empty text
    Given a sandbox
    When the sandbox is sent a batch with the params under "2026-10-21" with beta "none"
      """
      {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "assistant", "content": "x"},
       {"role": "user", "content": "y"}, {"role": "assistant", "content": []}, {"role": "user", "content": "z"},
       {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]},
       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": ""}]}]},
       {"role": "assistant", "content": ""}]}
      """
    Then the sandbox's line for "r0" succeeded

  Scenario: A conversation to be compacted may end with the assistant's message
    Given a sandbox
    When the sandbox is sent a batch with the params under "2026-10-21" with beta "compact-1"
      """
      {"model": "claude-opus-4-6", "max_tokens": 9, "compaction": {"type": "summarize"},
       "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
      """
    Then the sandbox's line for "r0" succeeded

  Scenario Outline: The beta for long output raises the limit, in batches
    Given a sandbox
    When the sandbox is sent a batch with the params under "2026-10-21" with beta "other-1, output-300k-2026-03-24"
      """
      {"model": "claude-opus-4-6", "max_tokens": <max_tokens>, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox's results end as
      | custom_id | ending   |
      | r0        | <ending> |

    Examples:
      | max_tokens | ending                |
      | 300000     | succeeded             |
      | 300001     | invalid_request_error |

  Scenario: Text that is not UTF-8 is refused like any other invalid body
    Given a sandbox
    Then the sandbox's answers to Latin-1 bodies are as follows
      | call                      | body                                                                    | status | answer           |
      | POST /v1/messages/batches | {"requests":[{"custom_id":"ÿ","params":{}}]}                            | 400    | …not valid JSON… |
      | POST /v1/messages         | {"model":"ÿ","max_tokens":1,"messages":[]}                              | 400    | …not valid JSON… |
      | POST /v1/messages         | {"model":"m","max_tokens":1,"messages":[{"role":"user","content":"ÿ"}]} | 400    | …not valid JSON… |
      | POST /v1/messages/batches | {"requests":[{"custom_id":"a","params":{"model":"ÿ"}}]}                 | 200    | …in_progress…    |
    And the sandbox's results end as
      | custom_id | ending                |
      | a         | invalid_request_error |
    And the sandbox's answers to Latin-1 bodies are as follows
      | call                      | body                                                                                                                                                                              | status | answer        |
      | POST /v1/messages/batches | {"requests":[{"custom_id":"a","params":{"model":"claude-opus-4-6","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"x","cache_control":{},"y":"ÿ"}]}]}}]} | 200    | …in_progress… |
    And the sandbox's results end as
      | custom_id | ending                |
      | a         | invalid_request_error |
    And the sandbox's bill has 4 records
