@every_python
Feature: What the API would refuse hours later is refused at once, with the item and the remedy

  Scenario Outline: max_tokens beyond the model's limit: <model>, <tokens>
    When the params of <model> are encoded for a batch, with
      """
      {"max_tokens": <tokens>}
      """
    Then they are refused with "<words>"

    Examples:
      | model                      | tokens | words                                                    |
      | claude-haiku-4-5           | 64001  | `max_tokens: 64001` is more than the 64,000 of claude-haiku-4-5; lower it |
      | claude-opus-4-5-20251101   | 64001  | is more than the 64,000                                  |
      | claude-opus-4-1-20250805   | 32001  | is more than the 32,000                                  |
      | claude-sonnet-4-20250514   | 64001  | is more than the 64,000                                  |
      | claude-opus-5-5            | 128001 | or add the beta output-300k-2026-03-24                   |
      | claude-opus-5-5            | 300001 | is more than the 128,000 of claude-opus-5-5; lower it    |
      | claude-fable-5             | 128001 | is more than the 128,000 of claude-fable-5; lower it     |
      | claude-of-tomorrow         | 128001 | is more than the 128,000                                 |
      | claude-opus-5-5            | -1     | is negative                                              |
      | claude-opus-5-5            | true   | `max_tokens` must be a whole number, not True                 |
      | claude-opus-5-5            | "9"    | `max_tokens` must be a whole number                           |

  Scenario: The beta lifts the limit, in batches, of the models that have it
    When the params of claude-opus-5-5 are encoded for a batch, with
      """
      {"max_tokens": 300000, "betas": ["output-300k-2026-03-24"]}
      """
    Then nothing was refused
    When the params of claude-opus-5-5 are encoded for a batch, with
      """
      {"max_tokens": 300001, "betas": ["output-300k-2026-03-24"]}
      """
    Then they are refused with "is more than the 300,000"
    When the params of claude-opus-5-5 are encoded for a live call, with
      """
      {"max_tokens": 300000, "betas": ["output-300k-2026-03-24"]}
      """
    Then they are refused with "in batches"
    When the params of claude-haiku-4-5 are encoded for a batch, with
      """
      {"max_tokens": 100000, "betas": ["output-300k-2026-03-24"]}
      """
    Then they are refused with "is more than the 64,000"

  Scenario Outline: what messages, schemas and tools cannot be: <params>
    When the params of claude-opus-5-5 are encoded for a batch, with
      """
      <params>
      """
    Then they are refused with "<words>"

    Examples:
      | params | words |
      | {"messages": "hello"} | `messages` must be a list of messages |
      | {"messages": ["hello"]} | message 1 must be a mapping of role and content, not str |
      | {"messages": [{"role": "robot", "content": "a"}]} | message 1: unknown role 'robot' |
      | {"messages": [{"role": "user", "content": {"type": "text"}}]} | message 1: its content must be a text or a list of blocks |
      | {"messages": [{"role": "assistant", "content": "a"}]} | message 1 has the role `assistant` |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": []}]} | message 2 has no content |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}]} | message 2, block 1: a document in an assistant's message is not allowed since API version 2026-10-21; put it into a user's |
      | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "a"}}]}]} | message 1, block 1: `media_type: image/tiff` is not allowed in a block of type image; use image/jpeg, |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/msword", "data": "a"}}]}]} | use application/pdf |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/markdown", "data": "a"}}]}]} | of `media_type: text/plain`, not 'text/markdown' |
      | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": ""}}]}]} | its source has no `data` |
      | {"messages": [{"role": "user", "content": [{"type": "document"}]}]} | a block of type document needs a `source` |
      | {"output_config": {"format": {"type": "xml"}}} | `output_config.format` is {type: json_schema |
      | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"$ref": "#"}}}}}} | the API does not accept the schema of `output_config.format`: field `a`: `$ref: #` is recursive |
      | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "messages": [{"role": "user", "content": [{"type": "document", "citations": {"enabled": true}, "source": {"type": "url", "url": "u"}}]}]} | the API does not accept a schema (`output_config.format`) together with citations |
      | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "search_result", "citations": {"enabled": true}}]}]}]} | together with citations |
      | {"tools": [{"name": "a b"}]} | tool 1: 'a b' is not a valid name |
      | {"tools": [{"input_schema": {}}]} | tool 1: None is not a valid name |
      | {"tools": [{"name": "a"}, {"name": "a"}]} | tool 2: another tool has the name 'a' |
      | {"tool_choice": {"type": "any"}} | `tool_choice: any` needs `tools` |
      | {"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"}} | claude-opus-5-5 does not accept a forced `tool_choice` (tool); use `auto` |
      | {"stop_sequences": "END"} | `stop_sequences` must be a list of texts |
      | {"stop_sequences": [1]} | `stop_sequences` must be a list of texts |

  Scenario Outline: A schema is refused for a model without structured outputs: <model>
    When the params of <model> are encoded for a batch, with
      """
      <params>
      """
    Then they are refused with "<model> has no structured outputs, which <asked>"

    Examples:
      | model                      | asked | params |
      | claude-3-haiku-20240307    | `output_config.format` | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} |
      | claude-3-7-sonnet-latest   | `output_config.format` | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} |
      | claude-opus-4-0            | `output_config.format` | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} |
      | claude-sonnet-4-20250514   | `output_config.format` | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}} |
      | claude-opus-4-20250514     | `strict` of tool 2     | {"tools": [{"name": "a", "strict": false}, {"name": "b", "strict": true}]} |

  Scenario Outline: A schema passes for a model that has structured outputs or is not known: <model>
    When the params of <model> are encoded for a batch, with
      """
      {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}, "tools": [{"name": "a", "strict": true}]}
      """
    Then nothing was refused

    Examples:
      | model                          |
      | claude-opus-4-1-20250805       |
      | claude-sonnet-4-5-20250929     |
      | claude-haiku-4-5               |
      | claude-opus-5-5                |
      | claude-sonnet-40               |
      | claude-of-tomorrow             |
      | us.anthropic.claude-3-haiku-v1 |
      | gateway/our-own                |

  Scenario: The table of models is overridden by what the caller knows of the model
    When the params of claude-3-haiku-20240307, which has structured_outputs: true, are encoded with a schema
    Then nothing was refused
    When the params of gateway/our-own, which has structured_outputs: false, are encoded with a schema
    Then they are refused with "gateway/our-own has no structured outputs"

  Scenario Outline: what is right, or not known here, passes: <params>
    When the params of claude-haiku-4-5 are encoded for a batch, with
      """
      <params>
      """
    Then nothing was refused

    Examples:
      | params |
      | {"temperature": 0.1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}]} |
      | {"tools": [{"name": "a"}], "tool_choice": {"type": "any"}} |
      | {"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}, {"type": "web_search_20260601", "name": "web_search"}], "tool_choice": {"type": "auto"}} |
      | {"messages": [{"role": "user", "content": [{"type": "of_tomorrow", "source": 5}, {"type": "document", "source": {"type": "file", "file_id": "f"}}]}]} |
      | {"messages": [{"role": "user", "content": ["of tomorrow", {"type": "text", "text": "a"}]}], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": false}}}} |
      | {"output_config": {"effort": "low", "format": null}, "stop_sequences": ["a"], "of_tomorrow": 1} |
