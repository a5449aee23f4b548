Feature: The sandbox's answers are deterministic and about their prompts

  Scenario: An answer quotes the beginning of its prompt and the names that its code defines
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 1000, "messages": [{"role": "user",
       "content": "Review this module, please, and say what is wrong with it now:\nclass Ledger:\n    async def open(self): ...\n"}]}
      """
    Then the sandbox's message says "Review this module, please, and say what is wrong with it now: …"
    And the sandbox's message says "It has 4 lines and defines Ledger, open."
    And the sandbox's message stops for "end_turn" with 1 blocks

  Scenario: Of many definitions the first are named
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 1000, "messages": [{"role": "user",
       "content": "def a():\ndef b():\ndef c():\ndef d():\ndef e():\ndef f():\ndef g():\ndef h():\ndef i():\ndef j():"}]}
      """
    Then the sandbox's message says "a, b, c, d, e, f, g, h and 2 more."

  Scenario: A word that only looks like code names nothing
    Given a sandbox
    When the sandbox is sent a live prompt "A first class answer"
    Then the sandbox's message says "begins: "A first class answer""

  Scenario: Documents and tool results are part of the prompt
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 1000, "messages": [{"role": "user", "content": "Go"},
       {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "look", "input": {}}, {"type": "tool_use", "id": "u", "name": "look", "input": {}}]},
       {"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "one"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.com"}},
        {"type": "tool_result", "tool_use_id": "t", "content": "two"},
        {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "three"}, {"type": "image", "source": {"type": "url", "url": "https://example.com"}}]},
        {"type": "text", "text": "four"}]}]}
      """
    Then the sandbox's message says "begins: "one two three four""

  Scenario: A conversation is answered at its last message
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 1000, "output_config": {"effort": "low"}, "messages": [
        {"role": "user", "content": "First"},
        {"role": "assistant", "content": [{"type": "text", "text": "Second"}]},
        {"role": "assistant", "content": "Third"},
        {"role": "user", "content": "Fourth"}]}
      """
    Then the sandbox's message says "begins: "Fourth""

  Scenario Outline: An answer ends where the params say
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": <max_tokens>, "stop_sequences": <stop>,
       "messages": [{"role": "user", "content": "Hello"}]}
      """
    Then the sandbox's message stops for "<reason>" with <blocks> blocks

    Examples:
      | max_tokens | stop           | reason        | blocks |
      | 2          | []             | max_tokens    | 1      |
      | 2          | null           | max_tokens    | 1      |
      | 900        | ["begins"]     | stop_sequence | 1      |
      | 900        | ["Sandbox"]    | stop_sequence | 0      |
      | 900        | ["never", " "] | end_turn      | 1      |

  Scenario: A JSON schema gets a valid instance: Shapes
    Given a sandbox
    Then the sandbox makes an instance of a schema as follows
      | schema                                                                                                                                                          | instance                       |
      | {"type": "object", "additionalProperties": false, "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["a"]} | {"a": 1, "b": true, "c": null} |
      | {"properties": {"a": {"const": 7}}, "required": ["a", "z"], "additionalProperties": {"type": "integer"}}                                                        | {"a": 7, "z": 1}               |
      | {"type": "array", "items": {"type": "number"}}                                                                                                                  | [1]                            |
      | {"items": {"type": "number"}, "description": "{minItems: 3, uniqueItems: True}"}                                                                                | [1, 2, 3]                      |
      | {"type": "array", "items": {"enum": ["x", "y"]}, "description": "{minItems: 2, uniqueItems: True}"}                                                             | ["x", "y"]                     |
      | {"type": "array", "items": {"type": "string"}, "description": "{minItems: 2, uniqueItems: True}"}                                                               | ["T", "T1"]                    |
      | {"type": "array", "items": {"type": "boolean"}, "description": "{minItems: 2, uniqueItems: True}"}                                                              | [true, true]                   |
      | {"type": "array", "items": {}, "description": "{maxItems: 0}"}                                                                                                  | []                             |
      | {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": false}                                                                    | [1, true]                      |
      | {"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "description": "{minItems: 2}"}                                                               | [1, null]                      |
      | {"type": "array", "items": true}                                                                                                                                | ["T"]                          |
      | {"enum": ["red", "green"]}                                                                                                                                      | "red"                          |
      | {"type": ["integer", "null"]}                                                                                                                                   | 1                              |
      | {"type": []}                                                                                                                                                    | null                           |

  Scenario: A JSON schema gets a valid instance: Combinations and references
    Given a sandbox
    Then the sandbox makes an instance of a schema as follows
      | schema                                                                                                                                                                                   | instance         |
      | {"anyOf": [{"type": "integer"}, {"type": "null"}]}                                                                                                                                       | 1                |
      | {"oneOf": [{"const": "a"}]}                                                                                                                                                              | "a"              |
      | {"type": "object", "additionalProperties": false, "properties": {"x": {"type": "integer"}}, "required": ["x"], "anyOf": [{"properties": {"y": {"type": "integer"}}, "required": ["y"]}]} | {"y": 1, "x": 1} |
      | {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}, true]}                                          | {"b": 1, "a": 1} |
      | {"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer", "description": "{minimum: 5}"}}}                                                                                                | 5                |
      | {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 3}}}                                                                                                                                 | 3                |
      | {"$ref": "#/$defs/none"}                                                                                                                                                                 | "T"              |
      | {"$ref": "#/$defs/none/deeper", "$defs": {"none": 7}}                                                                                                                                    | "T"              |

  Scenario: A JSON schema gets a valid instance: Strings
    Given a sandbox
    Then the sandbox makes an instance of a schema as follows
      | schema                                                                 | instance                               |
      | {"type": "string"}                                                     | "T"                                    |
      | {"type": "string", "format": "date", "description": "{minLength: 12}"} | "2026-11-21xx"                         |
      | {"type": "string", "description": "{maxLength: 0}"}                    | ""                                     |
      | {"type": "string", "format": "date-time"}                              | "2026-11-21T12:00:00Z"                 |
      | {"type": "string", "format": "uuid"}                                   | "00000000-0000-4000-8000-000000000000" |
      | {"type": "string", "format": "email"}                                  | "sandbox@example.com"                  |
      | {"type": "string", "pattern": "^[0-9]{5}$"}                            | "00000"                                |
      | {"type": "string", "pattern": "^neverever$"}                           | "T"                                    |
      | {"type": "string", "pattern": "["}                                     | "T"                                    |

  Scenario: A JSON schema gets a valid instance: Numbers
    Given a sandbox
    Then the sandbox makes an instance of a schema as follows
      | schema                                                                             | instance |
      | {"type": "integer", "description": "{minimum: 10}"}                                | 10       |
      | {"type": "integer", "description": "{maximum: -3}"}                                | -3       |
      | {"type": "integer", "description": "{exclusiveMinimum: 4}"}                        | 5        |
      | {"type": "integer", "description": "{exclusiveMaximum: 0}"}                        | -1       |
      | {"type": "integer", "description": "{minimum: 3, multipleOf: 5}"}                  | 5        |
      | {"type": "integer", "description": "{maximum: 0, minimum: -4, multipleOf: 3}"}     | 0        |
      | {"type": "integer", "description": "{minimum: 2.5}"}                               | 3        |
      | {"type": "integer", "description": "{maximum: 0.5}"}                               | 0        |
      | {"type": "number", "description": "{exclusiveMinimum: 0, exclusiveMaximum: 0.5}"}  | 0.375    |
      | {"type": "number", "description": "{exclusiveMinimum: 2}"}                         | 3        |
      | {"minimum": 1.5}                                                                   | 1.5      |
      | {"type": "number", "description": "{minimum: 1, maximum: 1.4, multipleOf: 0.5}"}   | 1        |
      | {"type": "number", "description": "{minimum: 1.2, maximum: 1.4, multipleOf: 0.5}"} | 1.0      |

  Scenario: A recursive schema gets an instance that ends
    Given a sandbox
    Then the sandbox makes an instance of a schema as follows
      | schema                                                                                                                                                                                                             | instance                               |
      | {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "additionalProperties": false, "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}, "required": ["next"]}}}                       | {"next": {"next": …{"next": null}…}}   |
      | {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "additionalProperties": false, "properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/N"}}}, "required": ["next"]}}}                          | {"next": [{"next": …{"next": []}…}]}   |
      | {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "additionalProperties": false, "properties": {"next": {"type": ["array", "null"], "items": {"$ref": "#/$defs/N"}, "minItems": 1}}, "required": ["next"]}}} | {"next": [{"next": …{"next": null}…}]} |
      | {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}                                                                                                                                                       | "T"                                    |

  Scenario: The SDK parses a structured answer into its model
    Given a sandbox
    Then the official SDK parses a structured answer of the sandbox

  Scenario Outline: A tool is called where it is asked for
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "tools": [
         {"name": "look", "input_schema": {"type": "object", "properties": {"far": {"type": "boolean"}}}},
         {"name": "final", "input_schema": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}}],
       "tool_choice": <choice>, "messages": [{"role": "user", "content": "<prompt>"}]}
      """
    Then the sandbox's answer has the fields
      | field           | value      |
      | stop_reason     | "tool_use" |
      | content.0.type  | "tool_use" |
      | content.0.name  | "<tool>"   |
      | content.0.input | <input>    |

    Examples:
      | choice                           | prompt                  | tool  | input         |
      | {"type": "any"}                  | Go                      | final | {"n": 3}      |
      | {"type": "any"}                  | Use [[tool:look]] first | look  | {"far": true} |
      | {"type": "tool", "name": "look"} | Go                      | look  | {"far": true} |
      | {"type": "auto"}                 | Use [[tool:final]]      | final | {"n": 3}      |
      | null                             | Use [[tool:look]]       | look  | {"far": true} |

  Scenario Outline: Otherwise the answer to an offer of tools is text
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "tools": <tools>,
       "tool_choice": <choice>, "messages": [{"role": "user", "content": <content>}]}
      """
    Then the sandbox's message stops for "end_turn" with 1 blocks

    Examples:
      | tools                                             | choice                        | content                                                                                                                                                                                           |
      | [{"name": "look", "input_schema": {}}]            | {"type": "auto"}              | "Go"                                                                                                                                                                                              |
      | [{"name": "look", "input_schema": {}}]            | {"type": "none"}              | "[[tool:look]]"                                                                                                                                                                                   |
      | [{"name": "look", "input_schema": {}}]            | {"type": "none"}              | "[[sandbox:tools]]"                                                                                                                                                                               |
      | [{"name": "look", "input_schema": {}}]            | {"type": "auto"}              | "[[tool:other]]"                                                                                                                                                                                  |
      | [{"name": "look", "input_schema": {}}]            | null                          | "Go"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "[[tool:look]]"}] |
      | []                                                | {"type": "auto"}              | "Go"                                                                                                                                                                                              |
      | null                                              | {"type": "none"}              | "Go"                                                                                                                                                                                              |
      | [{"type": "mcp_toolset", "mcp_server_name": "n"}] | {"type": "any"}               | "Go"                                                                                                                                                                                              |
      | [{"type": "mcp_toolset", "mcp_server_name": "n"}] | {"type": "tool", "name": "x"} | "Go"                                                                                                                                                                                              |

  Scenario: The answer that follows the calls of tools has the requested schema
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "tools": [{"name": "look", "input_schema": {"type": "object"}}],
       "output_config": {"format": {"type": "json_schema", "schema":
         {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}}},
       "messages": [{"role": "user", "content": "Go [[sandbox:tools]]"},
         {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "far"}]}]}
      """
    Then the sandbox's answer has the fields
      | field          | value       |
      | content.0.text | "{\"n\":1}" |

  Scenario: A cited document is cited
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "data": "Not cited."}},
        {"type": "document", "title": "Sky", "source": {"type": "text", "data": "The sky is blue."}, "citations": {"enabled": true}},
        {"type": "text", "text": "What colour?"}]}]}
      """
    Then the sandbox's answer has the fields
      | field                                | value              |
      | content.0.citations.0.type           | "char_location"    |
      | content.0.citations.0.cited_text     | "The sky is blue." |
      | content.0.citations.0.document_index | 1                  |
      | content.0.citations.0.document_title | "Sky"              |

  Scenario: Pages of a PDF are cited, and blocks of what has blocks
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "messages": [{"role": "user", "content": [
        {"type": "document", "title": "Scan", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}, "citations": {"enabled": true}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}, "citations": {"enabled": true}},
        {"type": "document", "source": {"type": "content", "content": "Whole."}, "citations": {"enabled": true}}]}]}
      """
    Then the sandbox's answer has the fields
      | field                                   | value                     |
      | content.0.citations.0.type              | "page_location"           |
      | content.0.citations.0.cited_text        | "The first page of Scan." |
      | content.0.citations.0.start_page_number | 1                         |
      | content.0.citations.1.type              | "content_block_location"  |
      | content.0.citations.1.cited_text        | "One."                    |
      | content.0.citations.1.end_block_index   | 1                         |
      | content.0.citations.2.cited_text        | "Whole."                  |

  Scenario: A system prompt that lists fields is answered in them, each cited, unless it is too long
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "system": [{"type": "text", "text": "Fields:\n[[a]] {\"type\": \"integer\"}\n[[b]] {\"type\": \"array\", \"items\": {\"enum\": [\"x\"]}}"}],
       "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "data": "Sky."}, "citations": {"enabled": true}}]}]}
      """
    Then the sandbox's answer has the fields
      | field                            | value    |
      | content.0.text                   | "[[a]] " |
      | content.1.text                   | "1"      |
      | content.1.citations.0.cited_text | "Sky."   |
      | content.3.text                   | "[[b]] " |
      | content.4.text                   | "x"      |
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 1, "system": "[[a]] {\"type\": \"integer\"}",
       "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "data": "Sky."}, "citations": {"enabled": true}}]}]}
      """
    Then the sandbox's answer has the fields
      | field          | value        |
      | content.0.text | "[[a]"       |
      | stop_reason    | "max_tokens" |

  Scenario: A line of a system prompt that only looks like a field asks for none
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "system": "[[x]] {y}\n[[z]] {\"type\": \"array\", \"minItems\": \"many\"}",
       "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "data": "Sky."}, "citations": {"enabled": true}}]}]}
      """
    Then the sandbox's message stops for "end_turn" with 1 blocks

  Scenario: In a batch too
    Given a sandbox
    When the sandbox is sent a batch with the params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "data": "The sky is blue."}, "citations": {"enabled": true}}]}]}
      """
    And the sandbox's batches have had their time
    Then the sandbox's answers are as follows
      | call                                     | field                                              | value            |
      | GET /v1/messages/batches/{batch}/results | r0.result.message.content.0.citations.0.cited_text | The sky is blue. |

  Scenario Outline: A responder makes the answers
    Given a sandbox with a responder
    When the sandbox is sent a live prompt "<prompt>"
    Then the sandbox's message stops for "<reason>" with <blocks> blocks

    Examples:
      | prompt  | reason     | blocks |
      | text    | end_turn   | 1      |
      | blocks  | end_turn   | 2      |
      | call    | tool_use   | 1      |
      | message | pause_turn | 1      |
      | own     | end_turn   | 1      |

  Scenario Outline: A responder that fails ends its request, not the batch
    Given a sandbox with a responder
    When the sandbox is sent a live prompt "<prompt>"
    Then the sandbox answers <status> <kind> saying "<message>"

    Examples:
      | prompt | status | kind             | message                  |
      | error  | 529    | overloaded_error | too much                 |
      | raise  | 500    | api_error        | raised KeyError          |
      | wrong  | 500    | api_error        | int is neither text      |
      | odd    | 500    | api_error        | responder gave no answer |
      | absent | 500    | api_error        | responder gave no answer |
      | unsent | 500    | api_error        | responder gave no answer |
      | reason | 500    | api_error        | responder gave no answer |

  Scenario: A responder's answers and usage go into batches and the bill
    Given a sandbox with a responder
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt  |
      | a         | text    |
      | b         | message |
      | c         | raise   |
      | d         | own     |
    Then the sandbox's results end as
      | custom_id | ending    |
      | a         | succeeded |
      | b         | succeeded |
      | c         | api_error |
      | d         | succeeded |
    And the sandbox's bill agrees with the usage of its results
