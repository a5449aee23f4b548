Feature: A JSON schema that means harm reaches no network and hangs no process
  Schemas come from files, input lines and ledgers that somebody else may have written.

  Scenario: A remote reference is refused when the actor is loaded
    Given a server that counts its requests
    Then actors with these response formats are loaded as follows
      | what | error | schema |
      | at the top | actor.yaml:3: …`$ref: SERVER/a.json` points outside | {"$ref": "SERVER/a.json"} |
      | beside a local reference | actor.yaml:3: …`$ref: SERVER/a.json` points outside | {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}, "allOf": [{"$ref": "SERVER/a.json"}]} |
      | in dependentSchemas | actor.yaml:3: …field `a`: `$ref: SERVER/a.json` points outside | {"type": "object", "dependentSchemas": {"a": {"$ref": "SERVER/a.json"}}} |
      | in an unused definition | actor.yaml:3: …field `x`: `$dynamicRef: SERVER/a.json` points outside | {"type": "object", "$defs": {"x": {"$dynamicRef": "SERVER/a.json"}}} |
      | in an unknown keyword | actor.yaml:3: …`$recursiveRef: SERVER/a.json` points outside | {"type": "object", "contentSchema": {"items": {"$recursiveRef": "SERVER/a.json"}}} |
      | by a relative reference | actor.yaml:3: …`$ref: a.json` points outside | {"$id": "SERVER/", "type": "object", "then": {"$ref": "a.json"}} |
      | by an inner base | actor.yaml:3: …`$id` is allowed only at the top of a schema | {"type": "object", "then": {"$id": "SERVER/", "type": "object"}} |
      | behind a local reference | actor.yaml:3: …`$ref: SERVER/a.json` points outside | {"type": "object", "then": {"$ref": "#/default"}, "default": {"$ref": "SERVER/a.json"}} |
    And the server that counts has seen no request

  Scenario: A schema without end is refused when the actor is loaded
    Then actors with these response formats are loaded as follows
      | what | error | schema |
      | patterns of names | actor.yaml:3: …keys that the schema does not name | {"type": "object", "dependentSchemas": {"a": {"patternProperties": {"^(a+)+$": {}}}}} |
      | a backreference | actor.yaml:3: …`pattern: (a)\1` cannot be used: backreferences are not supported | {"type": "string", "pattern": "(a)\\1"} |
      | a pattern that is too large | actor.yaml:3: …cannot be used: Compiled regex exceeds size limit | {"type": "object", "then": {"pattern": "((a{1000}){1000}){1000}"}} |
      | a hidden recursion | actor.yaml:3: …`$ref: #/$defs/x` is recursive | {"type": "object", "then": {"$ref": "#/$defs/x"}, "$defs": {"x": {"not": {"$ref": "#/$defs/x"}}}} |
      | references that multiply | actor.yaml:3: …the schema has more than 10,000 parts | DOUBLING |
      | a reference to nothing | actor.yaml:3: …`$ref: #/$defs/y` points to nothing | {"type": "object", "then": {"$ref": "#/$defs/y"}} |
      | what is evaluated twice | actor.yaml:3: …`unevaluatedProperties` is not | {"type": "object", "then": {"unevaluatedProperties": false}} |
      | levels | actor.yaml:3: …the schema is nested more than 150 | DEEP |

  Scenario: References into lists are followed, and words that are data or names are no keywords
    Then actors with these response formats are loaded as follows
      | error | schema |
      |       | {"anyOf": [{"type": "string"}], "then": {"allOf": [{"$ref": "#/anyOf/0"}]}} |
      |       | {"type": "object", "properties": {"pattern": {"type": "string"}, "$ref": {"type": "string", "default": {"$ref": "http://example.com"}}}, "additionalProperties": false} |

  Scenario: An input line whose schema has a remote reference is refused with its name
    Given a server that counts its requests
    And a command's folder
    And a command's file "asks.jsonl"
      """
      {"params": {"messages": [{"role": "user", "content": "one"}], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "then": {"$ref": "SERVER/a.json"}}}}}}
      """
    When a command runs: estimate --offline --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl:1: request '1':
      points outside; only `#/$defs/…` is supported
      """
    And the server that counts has seen no request

  Scenario: A response format that is Python code is refused with its line, and is not run
    Given a command's folder
    And a command's file "asks.jsonl"
      """
      {"prompt": "one", "response_format": "__import__('pathlib').Path('ran').touch()"}
      {"prompt": "two", "response_format": ["__import__('pathlib').Path('ran').touch()"]}
      {"prompt": "three"}
      """
    When a command runs: estimate --offline --model claude-haiku-4-5 --skip-invalid asks.jsonl
    Then the command line exits with 0 and says
      """
      asks.jsonl:1: `response_format` must be a JSON schema, not str
      asks.jsonl:2: `response_format` must be a JSON schema, not list
      """
    And the command line has left no "ran"

  Scenario: A pattern that backtracks judges an answer at once
    Then answers are judged by patterns in a bounded process as follows
      | pattern    | answer                                      | verdict                     |
      | ^(a+)+$    | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | …does not match '^(a+)+$'…  |
      | ^(a+)+$    | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  | None                        |
      | ^(a\|a)*$  | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | …does not match…            |
      | [0-9]{4}-  | on 2026-05-03                               | None                        |

  Scenario: A schema of a ledger that was written before is not followed, and its answers are taken
    Given a server that counts its requests
    Then answers to stored params with these schemas are taken as they are as follows
      | what | taken | logged | schema |
      | a remote reference | yes | …answers cannot be validated by their schema…points outside… | {"type": "object", "dependentSchemas": {"a": {"$ref": "SERVER/a.json"}}} |
      | patterns of names | yes | …answers cannot be validated by their schema…keys that the schema… | {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": false} |
      | a faulty keyword | yes | …answers cannot be validated by their schema…is not of type… | {"type": "object", "required": "a"} |
      | links without end | yes | …answers cannot be validated by their schema…nested too deeply… | CHAIN |
    And the server that counts has seen no request
