@every_python
Feature: The shape of an answer is checked before it is asked for, and when it is read

  Scenario: a model with all that a schema may hold becomes a schema that the API takes
    Given an actor made with {"model": "m", "options": {"output_config": {"effort": "low"}}}
    Then the actor asked for Invoice with "a" sends
      | field                                                      | value                   |
      | output_config.effort                                       | "low"                   |
      | output_config.format.type                                  | "json_schema"           |
      | output_config.format.schema.additionalProperties           | false                   |
      | output_config.format.schema.properties.issued.format       | "date"                  |
      | output_config.format.schema.$defs.Card.additionalProperties | false                   |
      | output_config.format.schema.$defs.Line.additionalProperties | false                   |
      | output_config.format.schema.$defs.Transfer.additionalProperties | false               |
      | output_config.format.schema.$defs.Currency.enum            | ["EUR", "USD"]          |
      | output_config.format.schema.$defs.Card.properties.number.maxLength |                 |
      | output_config.format.schema.$defs.Card.properties.number.description | "…maxLength: 500…" |

  Scenario: A model that the API cannot take is refused, and its field is named
    Then output formats are checked as follows
      | model    | error                                                                                       |
      | Node     | Node: the API does not accept its schema: field `children[]`: `$ref: #/$defs/Node` is recursive |
      | Book     | field `pages[].children[]`: `$ref: #/$defs/Node` is recursive                               |
      | Prices   | field `of`: keys that the schema does not name                                              |
      | Pair     | field `both`: a list with a schema for each position                                                    |
      | Whatever | field `inner[]`: it does not define the value's type                                        |
      | Odd      | Odd: the API does not accept its schema: Cannot generate a JsonSchema                           |
      | Alien    | Alien: the API does not accept its schema: Unable to generate pydantic-core schema              |

  Scenario: What a request sends does not depend on the requests before it
    Then a request is encoded after another one of the same actor as follows
      | first | second | sent |
      | Request("a", output_format=Card \| Transfer) | Request("a", output_format=Transfer \| Card) | …"anyOf":[{"$ref":"#/$defs/Transfer"},{"$ref":"#/$defs/Card"}]… |
      | Request("a", output_format=list[Flat \| Line]) | Request("a", output_format=list[Line \| Flat]) | …"anyOf":[{"$ref":"#/$defs/Line"},{"$ref":"#/$defs/Flat"}]… |
      | Request("a", output_format=Literal["c", "d"]) | Request("a", output_format=Literal["d", "c"]) | …"enum":["d","c"]… |
      | Request("a", output_format={"type": "object", "properties": {"c": {"type": "null"}, "d": {"type": "null"}}}) | Request("a", output_format={"type": "object", "properties": {"d": {"type": "null"}, "c": {"type": "null"}}}) | …"properties":{"d":{"type":"null"},"c":{"type":"null"}}… |
      | Request("a", options={"top_k": 3, "temperature": 1}) | Request("a", options={"temperature": 1, "top_k": 3}) | …"temperature":1,"top_k":3… |

  Scenario: A schema that the API cannot take is refused with the actor
    Then actors made in code are checked as follows
      | fields | error |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}}} | field `a`: `minimum` is not supported; write it in the `description` |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}}} | field `a`: `maxLength` is not supported |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string", "format": "phone"}}}} | field `a`: `format: phone` is not supported |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "strin"}}}}} | field `a[]`: `type: strin` is not a type |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": {"a": 1}}}}} | field `a`: `type: {'a': 1}` is not a type |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "array", "minItems": 2}}}} | field `a`: `minItems` must be 0 or 1 |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}}} | field `a`: keys that the schema does not name |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}} | field `a.b`: it does not define the value's type |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "object", "properties": 5}}}} | field `a`: `properties` must be a mapping |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "other.json"}]}}}} | field `a`: `$ref: other.json` points outside |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}} | field `a`: `$ref: #/$defs/none` points to nothing |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"$ref": "#"}}}} | field `a`: `$ref: #` is recursive |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"oneOf": [{"type": "null"}]}}}} | field `a`: `oneOf` is not supported; write `anyOf` |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"anyOf": {"type": "null"}}}}} | field `a`: `anyOf` must be a list |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"enum": [[1]]}}}} | field `a`: `enum` may contain texts |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"enum": []}}}} | field `a`: `enum` must be a list of at least one value |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string", "enum": ["maybe", true, false]}}}} | field `a`: `enum` has true or false, but the type is string; put words such as yes and no in quotes |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string", "const": false}}}} | field `a`: `const` has true or false, but the type is string |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string", "enum": [1, 2]}}}} | field `a`: `enum` has no value of the type string; correct the values or the type |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"}} | `required` must be a list of names |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}} | `required` names 'b', which is not in `properties` |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "object", "not": {"type": "null"}}}}} | field `a`: `not` is not supported |
      | {"model": "m", "response_format": {"type": "object", "properties": {"a": 7}}} | field `a`: a schema must be a mapping, not 7 |

  Scenario: a schema whose parts share parts many times over is checked at once
    Then a schema of 60 levels that each point twice to the next is taken

  Scenario: objects of an actor's schema are closed, at every depth, and nothing else is changed
    Given an actor made with {"model": "m", "response_format": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"type": {"const": "object"}}}}, "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}}, "$defs": {"c": {"type": "object", "properties": {}}}}}
    Then the actor's output_config is {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {"type": {"const": "object"}}, "additionalProperties": false}}, "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}}, "$defs": {"c": {"type": "object", "properties": {}, "additionalProperties": false}}, "additionalProperties": false}}}

  Scenario: an output format takes the place of the actor's own, and holds for raw params too
    Given an actor made with {"model": "m", "response_format": {"type": "object", "properties": {}}}
    Then the actor asked for Flat with {"params": {"messages": [{"role": "user", "content": "a"}], "output_config": {"effort": "low"}}} sends
      | field                                | value               |
      | output_config.format.schema.required | ["number", "total"] |
      | output_config.effort                 | "low"               |
    And the actor asked for Flat with {"prompt": "a"} sends
      | field                                | value               |
      | output_config.format.schema.required | ["number", "total"] |
      | output_config.effort                 |                     |
    And the actor is asked for these shapes as follows
      | shape | request | error |
      | Flat | {"id": "k", "params": {"messages": [{"role": "user", "content": "a"}], "output_config": {"format": {"type": "json_schema", "schema": {}}}}} | request 'k': `output_format` and its own |

  Scenario Outline: an answer is read once as what it is, and keeps its shape in another process
    Given an actor response of the text <text>, stopped by <reason>
    Then the actor response read as <model> <outcome>

    Examples:
      | text                                    | reason                        | model | outcome                                                                              |
      | '{"number": "7", "total": 2}'           | end_turn                      | Flat  | is {"number": "7", "total": 2.0}                                                     |
      | '{"number": "7", "total": "many"}'      | end_turn                      | Flat  | is refused with "the answer is not valid Flat: total: Input should be a valid number" |
      | '{"number": 7}'                         | end_turn                      | Flat  | is refused with "number: Input should be a valid string; total: Field required"      |
      | '{"number": "7", "to'                   | max_tokens                    | Flat  | is refused with "it was truncated (max_tokens); raise `max_tokens`"                  |
      | '{"numb'                                | model_context_window_exceeded | Flat  | is refused with "shorten the prompt"                                                 |
      | ''                                      | refusal                       | Flat  | is refused with "the model refused to answer"                                        |
      | ''                                      | tool_use                      | Flat  | is refused with "it is not finished (tool_use)"                                      |
      | '{"first": "Ada"}'                      | end_turn                      | Known | is {"first": "Ada"}                                                                  |
      | '{"total": 100}'                        | end_turn                      | Gross | is {"gross": 100, "total": null}                                                     |
      | '[1, 2]'                                | end_turn                      | JSON  | is [1, 2]                                                                            |
      | 'Hello'                                 | end_turn                      | JSON  | is refused with "the answer is not valid JSON: invalid character (byte 0). If no format was requested (`output_format`, or an actor's `response_format`), read its `.text`. It was billed" |
      | 'I look.' '{"number": "7", "total": 2}' | end_turn                      | Flat  | is {"number": "7", "total": 2.0}                                                     |
      | 'a' 'b'                                 | end_turn                      | Flat  | is refused with "Invalid JSON"                                                       |
