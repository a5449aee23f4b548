@every_python
Feature: Every fault of an actor's file is one clear message with file, line and remedy
  Never a traceback, and all of them at once where that is asked for.

  Scenario Outline: a fault is reported with its line
    Given an actor file
      """
      # line 1
      model: claude-haiku-4-5
      <fault>
      """
    When the actor file is loaded
    Then the actor error is at line 3
    And the actor error says "<says>"

    Examples: keys that are almost known
      | fault                     | says                                                            |
      | batch_procesing: true     | unknown key `batch_procesing`; did you mean `batch_processing`? |
      | batchProcessing: true     | did you mean `batch_processing`?                                |
      | batch-processing: true    | did you mean `batch_processing`?                                |
      | batching: true            | did you mean `batch_processing`?                                |
      | Batch: true               | did you mean `batch_processing`?                                |
      | systemprompt: x           | did you mean `system_prompt`?                                   |
      | system: x                 | did you mean `system_prompt`?                                   |
      | output_format: {}         | unknown key `output_format`; did you mean `response_format`?    |
      | response_model: Invoice   | did you mean `response_format`?                                 |
      | option: {}                | did you mean `options`?                                         |
      | temprature: 1             | did you mean `temperature`?                                     |
      | config: {sytem_prompt: x} | did you mean `system_prompt`?                                   |

    Examples: batch_processing
      | fault                                                         | says                                                                                               |
      | batch_processing: {lingre: 3s}                                | unknown key `lingre` in `batch_processing` (did you mean `linger`?); the known keys are linger, max_requests |
      | batch_processing: {colour: red}                               | unknown key `colour` in `batch_processing`; the known keys are linger                                        |
      | batch_processing: sometimes                                   | `batch_processing` must be true, false, or a mapping of linger                                          |
      | batch_processing:                                             | not empty                                                                                          |
      | batch_processing: [linger]                                    | not a list                                                                                         |
      | batch_processing: 1                                           | not 1                                                                                              |
      | batch_processing: {max_requests: true}                        | `batch_processing.max_requests`: True is not a number                                              |
      | batch_processing: {linger: soon}                              | `batch_processing.linger`: 'soon' is not a duration; write 30s                                     |
      | batch_processing: {max_requests: 0}                           | greater than or equal to 1, not 0                                                                  |
      | batch_processing: {max_requests: 200000}                      | less than or equal to 100000                                                                       |
      | batch_processing: {max_attempts: 1.5}                         | `batch_processing.max_attempts` must be a whole number, not 1.5                                         |
      | batch_processing: {preflight: 3}                              | `batch_processing.preflight` must be true or false or 'auto', not 3                                |
      | batch_processing: {on_timeout: explode}                       | 'park' or 'cancel', not 'explode'                                                                  |
      | batch_processing: {poll_interval: 10s, max_poll_interval: 1s} | max_poll_interval is shorter than poll_interval                                                    |

    Examples: values of the wrong kind
      | fault                 | says                                          |
      | system_prompt: [a]    | `system_prompt` must be a text, not a list         |
      | system_prompt: {a: b} | `system_prompt` must be a text, not a mapping      |
      | system_prompt: true   | `system_prompt` must be a text, not true           |
      | options: none         | `options` must be a mapping, not 'none'            |
      | options: {5: x}       | the key 5 is not a text; put it in quotes          |
      | name: a/b/c           | 'a/b/c' is not a name; write `namespace/name`, or just `name`. Both parts may have any characters except `/`, and at least one |
      | name: /b              | is not a name                                 |
      | provider: 5           | `provider` must be a text, not 5                   |
      | config: x             | `config` must be a mapping, not 'x'                |
      | version: [1]          | `version                                      |

    Examples: budgets where they would limit nothing
      | fault                         | says                                                                                                                  |
      | budget_usd: 0.0001            | `budget_usd` has no effect here, so nothing would limit the cost; move it under `batch_processing`                     |
      | actor_budget_usd: 5           | `actor_budget_usd` has no effect here, so nothing would limit the cost; move it under `batch_processing`               |
      | budget-USD: 5                 | `budget-USD` has no effect here, so nothing would limit the cost; move it under `batch_processing`, and call it `budget_usd` |
      | daily_budget_usd: 5           | nothing would limit the cost; use --daily-budget or CLAUDE_BATCH_DAILY_BUDGET_USD                                      |
      | config: {budget_usd: 0.0001}  | `budget_usd` has no effect here, so nothing would limit the cost; move it under `config.batch_processing`              |

    Examples: tools that are the API's definitions
      | fault                                                        | says                                                                                                                               |
      | tools: [a:b, {name: x, input_schema: {type: object}}]        | `tools`: item 2 is not a function (`module:function`), so it cannot be a tool; a definition alone belongs into `options.tools` |
      | tools: [{type: web_search_20250305, name: web_search}]       | `tools`: item 1 is not a function (`module:function`), so it cannot be a tool; a definition alone belongs into `options.tools` |
      | config: {tools: [{type: web_search_20250305, name: search}]} | a definition alone belongs into `options.tools`                                                                                |

    Examples: options that cannot be
      | fault                   | says                                                             |
      | options: {max_token: 5} | `max_token` is not a parameter of the Messages API; did you mean `max_tokens`? |
      | options: {messages: []} | `messages` is set                                   |
      | options: {model: x}     | write `model` beside `options`                                  |
      | options: {betas: one}   | `betas` must be a list of names                                  |
      | options: {betas: [1]}   | `betas` must be a list of names                                  |
      | options: {output_config: low} | `output_config` must be a mapping, not str                 |
      | options: {tools: [search]}    | tool 1 must be a mapping, not str                          |
      | options: {user_profile_id: 5} | `user_profile_id` must be a text, not int                  |

    Examples: response formats without a schema
      | fault                                           | says                 |
      | response_format: {type: json_object}            | give a JSON schema   |
      | response_format: {type: json_schema}            | is not a JSON schema |
      | response_format: {}                             | is not a JSON schema |
      | response_format: {type: string, enum: [yes, no]} | put words such as yes and no in quotes |
      | response_format: {type: json_schema, schema: 5} | is not a JSON schema |

    Examples: YAML
      | fault                          | says                                                                  |
      | model: claude-opus-5-5         | the key `model` is repeated (first in line 2); keep one |
      | x: {a: 1, a: 2}                | the key `a` is repeated (first in line 3)                       |
      | x: [{a: 1, a: 2}]              | the key `a` is repeated                                         |
      | x: }                           | invalid YAML                                                 |
      | x: !!python/object:os.system y | invalid YAML: could not determine a constructor              |
      | system_prompt: You: be brief   | invalid YAML: mapping values are not allowed here; put a text with a colon in quotes |
      | system_prompt: [Note] be brief | put a text with quotes or brackets in quotes as a whole               |
      | system_prompt: @all            | put a text that begins with this character in quotes                  |
      | system_prompt: *note*          | put a text that begins with * in quotes                               |
      | system_prompt: !now            | put a text that begins with ! in quotes                               |
      | system_prompt: "\q"            | write a backslash as                                                  |
      | system_prompt: > be brief      | begin the text on the line after                                      |
      | x: &a [*a]                     | an anchor contains itself                                                |
      | x: {? [a] : b}                 | invalid YAML                                                 |
      | 5: x                           | the key 5 is not a text; put it in quotes                                |
      | on: x                          | the key True is not a text (YAML reads words such as on and yes so); put it in quotes |
      | batch_processing: {on: 5}      | the key True is not a text                                      |

  Scenario Outline: a fault of the whole file is one message
    Given an actor file
      """
      <yaml>
      """
    When the actor file is loaded
    Then the actor error says "<says>"

    Examples:
      | yaml                                                                                | says                                                   |
      | name: nobody                                                                        | :1: `model` is missing; add `model: claude-opus-5-5`   |
      | - a                                                                                 | an actor must be a mapping of keys to values                |
      | just text                                                                           | an actor must be a mapping of keys to values                |
      | # nothing                                                                           | the file is empty                                      |
      | {model: m, system_prompt: a, options: {system: b}}                                  | `system_prompt` and `options.system` are alternatives      |
      | {model: m, response_format: {type: object}, options: {output_config: {format: {}}}} | are alternatives; keep one                                 |
      | {model: m, response_format: {type: object}, options: {output_config: 5}}            | `output_config` must be a mapping, not int                 |
      | {model: m, citations: true, response_format: {type: array, items: {type: string}}}  | :1: `citations`: with citations, the answer is requested as labelled fields, because the API does not accept a schema together with citations. This format has no fields |
      | {type: tool, config: {}}                                                            | is of type 'tool', which claude-batch cannot run       |
      | {type: graph}                                                                       | is of type 'graph', which claude-batch cannot run      |
      | actors: {a: {type: TOOL}}                                                           | actor local/a is of type 'tool'                        |
      | actors: {a: {config: {model: m}}, b: {config: {model: m}}}                          | the file has several actors (a, b); name one               |
      | {cleveragents: {default_actor: z}, actors: {a: {config: {model: m}}}}               | the default actor called 'z' is not in the file, which has a    |
      | actors: {}                                                                          | `actors` must be a mapping of ids to actors                 |
      | actors: [a]                                                                         | `actors` must be a mapping of ids to actors                 |
      | cleveragents: {version: 1}                                                          | `actors` must be a mapping of ids to actors                 |
      | {cleveragents: 5, actors: {a: {config: {model: m}}}}                                | `cleveragents` must be a mapping                            |
      | actors: {a: llm}                                                                    | actor a is a mapping of `type`, `config`, …, not 'llm' |
      | {actors: {a: {config: {model: m}}}, batch_processing: true}                         | `batch_processing` has no effect beside `actors`              |
      | {actors: {a: {config: {model: m}}}, budget_usd: 5}                                  | `budget_usd` has no effect here, so nothing would limit the cost; move it under `actors.<id>.config.batch_processing` |
      | {actors: {a: {config: {model: m}}}, batch_procesing: true}                          | did you mean `batch_processing`? Move it into       |
      | {type: 5, model: m}                                                                 | `type` must be a text, not 5                                |

  Scenario: a second document in the file is refused with its line
    Given an actor file
      """
      model: m
      ---
      model: n
      """
    When the actor file is loaded
    Then the actor error is at line 2
    And the actor error says "expected a single document"

  Scenario Outline: a fault of an actor's YAML names the remedy: <remedy>
    Given an actor file of the bytes "model: m\n<rest>"
    When the actor file is loaded
    Then the actor error is at line <line>
    And the actor error says "<remedy>"

    Examples:
      | rest                                 | line | remedy                                   |
      | options:\n\tmax_tokens: 5            | 3    | indent with spaces, not with tabs        |
      | x: 'abc\n                            | 3    | close the quote                          |
      | x: {a: b\n                           | 3    | close the bracket                        |
      | x:y\n                                | 3    | write a colon and a space after each key |
      | x: \x00                              | 2    | U+0000; remove it                        |

  Scenario: a fault in a nested config is reported with its own line
    Given an actor file
      """
      actors:
        a:
          type: llm
          config:
            model: m
            options:
              max_tokens: 5
              messages: []
            batch_processing:
              linger: 3s
              patience: 5s
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                                         |
      | 6    | `messages` is set               |
      | 11   | unknown key `patience` in `batch_processing` |

  Scenario: keys that are no text are reported once, each with its own line
    Given an actor file
      """
      model: m
      options:
        on: 5
      batch_processing:
        linger: 3s

        ~: 5
      ? 1.5
      : 5
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                       |
      | 3    | the key True is not a text |
      | 7    | the key None is not a text |
      | 8    | the key 1.5 is not a text  |

  Scenario: words that YAML reads as true or false are reported in schemas and tools
    Given an actor file
      """
      model: m
      response_format:
        type: object
        properties:
          no: {type: string}
          answer: {enum: [yes, no]}
          sure: {enum: [true, false], type: boolean}
          free: {anyOf: [{const: true}, {enum: [false, 1]}]}
          2024: {type: string}
          0x10: {type: string}
          kind: {const: off}
      options:
        tools:
          - name: switch
            input_schema:
              type: object
              properties:
                name: {type: string}
                on: {type: boolean}
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                                                                                    |
      | 5    | the key False is not a text (YAML reads words such as on and yes so); put it in quotes  |
      | 6    | `enum` has true or false, but no `type`; put words such as yes and no in quotes, or add |
      | 10   | the key 16 is not a text                                                                |
      | 11   | `const` has true or false, but no `type`                                                |
      | 19   | the key True is not a text                                                              |

  Scenario: a fault in a value that overrides a merged one is reported with its own line
    Given an actor file
      """
      defaults: &defaults
        batch_processing: {linger: 1s}
      model: m
      config:
        <<: *defaults
        batch_processing: {linger: soon}
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                     |
      | 6    | 'soon' is not a duration |

  Scenario: a long value is shown in part
    Given an actor file
      """
      model: m
      options: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
      """
    When the actor file is loaded
    Then the actor error reads "`options` must be a mapping, not 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…"

  Scenario: of several faults the first is raised, and the message tells how to see the others
    Given an actor file
      """
      model: [m]
      batch_procesing: true
      options: 5
      """
    When the actor file is loaded
    Then the actor error is at line 1
    And the actor error says "and 2 more; `claude-batch actors validate"

  Scenario: all faults are had at once, in the order of their lines
    Given an actor file
      """
      model: [m]
      batch_procesing: true
      options: 5
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                          |
      | 1    | `model` must be a text             |
      | 2    | unknown key `batch_procesing` |
      | 3    | `options` must be a mapping        |

  Scenario: faults of the file and of its actors are had together
    Given an actor file
      """
      actors:
        a: {config: {model: m, sytem_prompt: x}}
        b: 5
        c: {config: {}}
        d: {type: tool, x: [1]}
      options: {}
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says                             |
      | 2    | unknown key `sytem_prompt`       |
      | 3    | actor b is a mapping             |
      | 4    | `model` is missing               |
      | 6    | `options` has no effect beside `actors` |

  Scenario: all loading stops at any actor's fault
    Given an actor file
      """
      actors:
        a: {config: {model: m}}
        b: {config: {}}
      """
    When all actors of the file are loaded
    Then the actor error is at line 3

  Scenario: all loading stops at a fault of the file
    Given an actor file
      """
      model: m
      model: n
      """
    When all actors of the file are loaded
    Then the actor error is at line 2

  Scenario Outline: a sound file has no faults
    Given an actor file
      """
      <yaml>
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says |

    Examples:
      | yaml                                                       |
      | model: m                                                   |
      | actors: {a: {config: {model: m}}, b: {config: {model: m}}} |
      | actors: {a: {config: {model: m}}, b: {type: tool}}         |

  Scenario Outline: a file that no provider could answer for is a fault
    Given an actor file
      """
      <yaml>
      """
    When the actor file is checked
    Then the actor file has the faults
      | line | says   |
      | 1    | <says> |

    Examples:
      | yaml                                                                                   | says                    |
      | actors: {a: {type: tool}}                                                              | is of type 'tool'       |
      | actors: [a]                                                                            | `actors` must be a mapping   |
      | {cleveragents: {default_actor: z}, actors: {a: {type: tool}, b: {config: {model: m}}}} | called 'z' is not in the file |

  Scenario: a missing file is one message
    When the actor file "nowhere.yaml" is loaded
    Then the actor error says "nowhere.yaml: there is no such file"

  Scenario: a directory is no actor
    When the actor file "." is loaded
    Then the actor error says "the file cannot be read"

  Scenario: checking a missing file gives its one fault
    When the actor file "nowhere.yaml" is checked
    Then the actor file has the faults
      | line | says                  |
      |      | there is no such file |

  Scenario: a path that no file can have is one message
    When the actor file "a\0b" is loaded
    Then the actor error says "the file cannot be read"

  Scenario: a file that is not UTF-8 is one message
    Given an actor file of the bytes "model: \xff\xfe"
    When the actor file is loaded
    Then the actor error says "the file is not UTF-8 text (byte 8)"

  Scenario: a control character in the file is one message
    Given an actor file of the bytes "model: a\x00b"
    When the actor file is loaded
    Then the actor error says "invalid YAML"

  Scenario: a file nested too deeply is one message
    Given an actor file of the bytes "model: m\nx: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
    When the actor file is loaded
    Then the actor error says "nested more than 100 levels deep"

  Scenario: a value that YAML cannot read as its kind is one message
    Given an actor file
      """
      model: m
      x: !!int notanumber
      """
    When the actor file is loaded
    Then the actor error says "invalid YAML"

  Scenario: made in code, an actor is checked by the same rules
    Then actors made in code are checked as follows
      | fields                                    | error                            |
      | {"model": "m", "batch_procesing": true}   | did you mean `batch_processing`? |
      | {"model": "m", "budget_usd": 5}           | move it under `batch_processing` |
      | {"name": "x"}                             | `model` is missing               |
      | {"model": "m", "config": {"optoins": {}}} | did you mean `options`?          |
      | {"model": "m", "skills": ["a"]}           |                                  |
