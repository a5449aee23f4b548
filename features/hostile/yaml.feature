Feature: A YAML file that means harm is refused with its line
  Files that expand, nest or count without end must neither hang the process nor exhaust its memory.

  Scenario Outline: An actor file with <what> is refused
    Given a hostile actor file with <what>
    When a bounded command runs: actors validate hostile.yaml
    Then the command line exits with 2 and says "hostile.yaml:<line>: invalid YAML: <says>"

    Examples:
      | what                                | line | says                                              |
      | merge keys that double 30 times     | 17   | its aliases expand to more than 100,000 values    |
      | aliases that double 30 times        | 17   | its aliases expand to more than 100,000 values    |
      | aliases that are nested 3000 deep   | 101  | it is nested more than 100 levels deep            |
      | merge keys that are nested 3000 deep | 52  | it is nested more than 100 levels deep            |
      | lists that are nested 200000 deep   | 3    | it is nested more than 100 levels deep            |
      | mappings that are nested 3000 deep  | 102  | it is nested more than 100 levels deep            |
      | 300000 sexagesimal places           | 3    | a number of more than 1,000 characters            |
      | 300000 sexagesimal places, by a tag | 3    | a number of more than 1,000 characters            |
      | 300000 sexagesimal places of a float | 3   | a number of more than 1,000 characters            |
      | a number of 300000 digits           | 3    | a number of more than 1,000 characters            |
      | a hexadecimal number of 300000 digits | 3  | a number of more than 1,000 characters            |

  Scenario Outline: A price file with <what> is refused
    Given a hostile <kind> file with <what>
    When a bounded command runs: estimate --offline --prices <file> --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 2 and says "<says>"

    Examples:
      | kind         | file        | what                                | says                                                                   |
      | price        | prices.yaml | aliases that double 30 times        | prices.yaml:17: invalid YAML: its aliases expand to more than 100,000 values |
      | price        | prices.yaml | lists that are nested 200000 deep   | prices.yaml:3: invalid YAML: it is nested more than 100 levels deep         |
      | price        | prices.yaml | a price of 300000 digits            | prices.yaml:4: invalid YAML: a number of more than 1,000 characters         |
      | price (JSON) | prices.json | a price of 1000000 digits in JSON   | prices.json:4: invalid YAML: a number of more than 1,000 characters         |

  Scenario Outline: A value that its tag does not fit is refused with its line
    Given an actor file
      """
      # line 1
      model: claude-haiku-4-5
      x: <value>
      """
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says "invalid YAML: this is not a valid <kind>"

    Examples:
      | value          | kind      |
      | !!bool often   | bool      |
      | !!int ""       | int       |
      | !!float many   | float     |
      | !!timestamp x  | timestamp |

  Scenario: A character that YAML does not allow is refused with its line
    Given an actor file of the bytes "model: m\nname: a\x1bb\n"
    When the actor file is loaded
    Then the actor error is at line 2
    And the actor error says "special characters are not allowed"

  Scenario Outline: A number in base 60 is refused with its line, because nobody means it: <value>
    Given an actor file
      """
      # line 1
      model: claude-haiku-4-5
      <value>
      """
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says "would be a number in base 60; put a text in quotes"

    Examples:
      | value                                  |
      | batch_processing: {budget_usd: 1:30}   |
      | batch_processing: {deadline: 17:30}    |
      | options: {temperature: 1:30.5}         |

  Scenario Outline: A value that cannot be kept or computed with is refused with its line
    Given an actor file
      """
      # line 1
      model: claude-haiku-4-5
      <line>
      """
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says "<says>"

    Examples:
      | line                                   | says                                  |
      | name: "\ud83d"                         | an escape is half of a surrogate pair |
      | batch_processing: {linger: 9999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999} | is not a duration                     |

  Scenario: Anchors and merge keys of an ordinary size go on working
    Given an actor file
      """
      shared: &shared {max_tokens: 500, metadata: &who {user_id: someone}}
      model: claude-haiku-4-5
      options: {<<: *shared, metadata: *who, stop_sequences: ["1:2:3"]}
      """
    When the actor file is loaded
    Then the actor's fields are
      | field                  | value     |
      | options.max_tokens     | 500       |
      | options.metadata       | {"user_id": "someone"} |
      | options.stop_sequences | ["1:2:3"] |

  Scenario: The separators of Unicode are text, as in YAML 1.2, and not line breaks
    Then a system prompt in YAML is read as follows
      | yaml                                          | prompt                |
      | "system_prompt: \"a\u0085b\""                 | 'a\x85b'              |
      | "system_prompt: a\u2028b"                     | 'a\u2028b'            |
      | "system_prompt: \|\n  a\u2028b\n  c\u2029"    | 'a\u2028b\nc\u2029\n' |
      | "system_prompt: >\n  a\u2028  b"              | 'a\u2028  b\n'        |
      | "system_prompt: \"a\\Lb\""                   | 'a\u2028b'            |
      | "# a\u2028name: [\nsystem_prompt: a"          | 'a'                   |
