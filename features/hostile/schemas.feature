Feature: A JSON schema that means harm reaches no network and hangs no process
  Schemas come from files, input lines and ledgers that somebody else may have written.

  Scenario Outline: A remote reference is refused when the actor is loaded: <where>
    Given a server that counts its requests
    And an actor's file whose response format is <schema>
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says of the server "<says>"
    And the server that counts has seen no request

    Examples:
      | where                     | says                                                            | schema |
      | at the top                | `$ref: SERVER/a.json` points outside                            | {"$ref": "SERVER/a.json"} |
      | beside a local reference  | `$ref: SERVER/a.json` points outside                            | {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}, "allOf": [{"$ref": "SERVER/a.json"}]} |
      | in dependentSchemas       | field `a`: `$ref: SERVER/a.json` points outside                 | {"type": "object", "dependentSchemas": {"a": {"$ref": "SERVER/a.json"}}} |
      | in an unused definition   | field `x`: `$dynamicRef: SERVER/a.json` points outside          | {"type": "object", "$defs": {"x": {"$dynamicRef": "SERVER/a.json"}}} |
      | in an unknown keyword     | `$recursiveRef: SERVER/a.json` points outside                   | {"type": "object", "contentSchema": {"items": {"$recursiveRef": "SERVER/a.json"}}} |
      | by a relative reference   | `$ref: a.json` points outside                                   | {"$id": "SERVER/", "type": "object", "then": {"$ref": "a.json"}} |
      | by an inner base          | `$id` is allowed only at the top of a schema                     | {"type": "object", "then": {"$id": "SERVER/", "type": "object"}} |
      | behind a local reference  | `$ref: SERVER/a.json` points outside                            | {"type": "object", "then": {"$ref": "#/default"}, "default": {"$ref": "SERVER/a.json"}} |

  Scenario Outline: A schema without end is refused when the actor is loaded: <what>
    Given an actor's file whose response format is <schema>
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says "<says>"

    Examples:
      | what                       | says                                   | schema |
      | patterns of names          | keys that the schema does not name     | {"type": "object", "dependentSchemas": {"a": {"patternProperties": {"^(a+)+$": {}}}}} |
      | a backreference            | `pattern: (a)\1` cannot be used: backreferences are not supported | {"type": "string", "pattern": "(a)\\1"} |
      | a pattern that is too large | cannot be used: Compiled regex exceeds size limit | {"type": "object", "then": {"pattern": "((a{1000}){1000}){1000}"}} |
      | a hidden recursion         | `$ref: #/$defs/x` is recursive         | {"type": "object", "then": {"$ref": "#/$defs/x"}, "$defs": {"x": {"not": {"$ref": "#/$defs/x"}}}} |
      | references that multiply   | the schema has more than 10,000 parts  | DOUBLING |
      | a reference to nothing     | `$ref: #/$defs/y` points to nothing    | {"type": "object", "then": {"$ref": "#/$defs/y"}} |
      | what is evaluated twice    | `unevaluatedProperties` is not         | {"type": "object", "then": {"unevaluatedProperties": false}} |
      | levels                     | the schema is nested more than 150     | DEEP |

  Scenario: References into lists are followed
    Given an actor's file whose response format is {"anyOf": [{"type": "string"}], "then": {"allOf": [{"$ref": "#/anyOf/0"}]}}
    When the actor file is loaded
    Then the actor file was taken

  Scenario: Words that are data or names are no keywords
    Given an actor's file whose response format is {"type": "object", "properties": {"pattern": {"type": "string"}, "$ref": {"type": "string", "default": {"$ref": "http://example.com"}}}, "additionalProperties": false}
    When the actor file is loaded
    Then the actor file was taken

  Scenario: An input line whose schema has a remote reference is refused with its name
    Given a server that counts its requests
    And a command's folder
    And a command's file of a request whose schema refers to the server that counts
    When a command runs: estimate --offline --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl:1: request '1':
      points outside; only `#/$defs/…` is supported
      """
    And the server that counts has seen no request

  Scenario: A pattern that backtracks judges an answer at once
    When answers are judged in a bounded process
      | pattern    | answer                                      | verdict                     |
      | ^(a+)+$    | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | does not match '^(a+)+$'    |
      | ^(a+)+$    | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  | None                        |
      | ^(a\|a)*$  | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | does not match              |
      | [0-9]{4}-  | on 2026-05-03                               | None                        |

  Scenario Outline: A schema of a ledger that was written before is not followed, and its answers are taken: <what>
    Given a server that counts its requests
    And a program that logs
    Then an answer to stored params with the schema <schema> is taken as it is
    And the log has 1 line that says "answers cannot be validated by their schema"
    And the log has 1 line that says "<says>"
    And the server that counts has seen no request

    Examples:
      | what               | says                  | schema |
      | a remote reference | points outside        | {"type": "object", "dependentSchemas": {"a": {"$ref": "SERVER/a.json"}}} |
      | patterns of names  | keys that the schema     | {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": false} |
      | a faulty keyword   | is not of type        | {"type": "object", "required": "a"} |
      | links without end  | nested too deeply     | CHAIN |
