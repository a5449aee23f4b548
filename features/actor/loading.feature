@every_python
Feature: An actor is read from its YAML
  Flat or nested, with the host's keys carried along.

  Scenario: a flat file gives one actor
    Given an actor file
      """
      name: reviews/reviewer
      type: llm
      description: Reviews modules.
      version: "1.2"
      provider: anthropic
      model: claude-haiku-4-5
      system_prompt: You review.
      options:
        max_tokens: 200
        temperature: 0.2
      batch_processing: true
      """
    When the actor file is loaded
    Then the actor's fields are
      | field             | value                                                                      |
      | name              | "reviews/reviewer"                                                         |
      | type              | "llm"                                                                      |
      | description       | "Reviews modules."                                                         |
      | version           | "1.2"                                                                      |
      | resolved_provider | "anthropic"                                                                |
      | resolved_model    | "claude-haiku-4-5"                                                         |
      | parameters        | {"max_tokens": 200, "temperature": 0.2, "system": "You review."}           |
      | batch_processing  | true                                                                       |

  Scenario: a file without batch_processing is answered live
    Given an actor file
      """
      model: claude-haiku-4-5
      """
    When the actor file is loaded
    Then the actor's fields are
      | field            | value         |
      | name             | "local/actor" |
      | batch_processing | false         |
      | batch_mode       | null          |

  Scenario: batch_processing may say how to batch
    Given an actor file
      """
      model: claude-haiku-4-5
      batch_processing: {linger: 500ms, max_wait: PT4H, poll_interval: 10, on_timeout: cancel}
      """
    When the actor file is loaded
    Then the actor's batch mode is
      | linger | max_wait | poll_interval | max_poll_interval | on_timeout | max_requests |
      | 0.5    | 14400.0  | 10.0          | 300.0             | cancel     | 100000       |

  Scenario: batch_processing true means the default mode
    Given an actor file
      """
      model: claude-haiku-4-5
      batch_processing: true
      """
    When the actor file is loaded
    Then the actor's batch mode is
      | linger | max_wait | poll_interval | max_poll_interval | on_timeout | max_requests |
      | 2.0    | 93600.0  | 30.0          | 300.0             | park       | 100000       |

  Scenario Outline: a name without a namespace is local
    Given an actor file
      """
      name: <written>
      model: claude-haiku-4-5
      """
    When the actor file is loaded
    Then the actor's name is "<name>"

    Examples:
      | written      | name           |
      | reviewer     | local/reviewer |
      | team/checker | team/checker   |

  Scenario Outline: provider and model resolve in the host's order
    Given an actor file
      """
      <yaml>
      """
    When the actor file is loaded
    Then the actor's provider is "<provider>" and its model "<model>"

    Examples: the nearer word wins
      | yaml                                                                                 | provider  | model |
      | {provider: claude, model: m-1}                                                       | claude    | m-1   |
      | {provider: a, provider_type: b, model: m-1, model_id: m-2}                           | a         | m-1   |
      | {provider_type: b, model_id: m-2, config: {provider: c, model: m-3}}                 | b         | m-2   |
      | {config: {provider: c, model: m-3, actor: anthropic/m-4}}                            | c         | m-3   |
      | {config: {actor: anthropic/m-4}}                                                     | anthropic | m-4   |
      | {config: {actor: Anthropic/m-4}}                                                     | anthropic | m-4   |
      | {config: {actor: acme/m-4}}                                                          | acme      | m-4   |
      | {config: {actor: m-4}}                                                               | anthropic | m-4   |
      | {model: m-1, config: {actor: acme/m-4}}                                              | anthropic | m-1   |
      | {provider: "", provider_type: b, model: " ", model_id: m-2}                          | b         | m-2   |
      | {provider: Acme, config: {model: m-3}}                                               | acme      | m-3   |

    Examples: the provider's prefix is no part of the model
      | yaml                                                  | provider   | model         |
      | {provider: anthropic, model: anthropic/claude-x}      | anthropic  | claude-x      |
      | {provider: anthropic, model: Anthropic/claude-x}      | anthropic  | claude-x      |
      | {provider: CLAUDE, model: ANTHROPIC/claude-x}         | claude     | claude-x      |
      | {model: anthropic/claude-x}                           | anthropic  | claude-x      |
      | {model: claude-x}                                     | anthropic  | claude-x      |
      | {model: acme/claude-x}                                | acme       | claude-x      |
      | {provider: gateway, model: anthropic/claude-x}        | gateway    | anthropic/claude-x |
      | {provider: anthropic, model: bedrock/claude-x}        | anthropic  | bedrock/claude-x |

  Scenario: the default actor of a nested file is loaded, its config read as if it stood beside it
    Given an actor file
      """
      cleveragents:
        version: "2.0"
        default_actor: reviewer
      actors:
        other:
          type: llm
          config: {provider: anthropic, model: claude-haiku-4-5}
        reviewer:
          type: llm
          config:
            actor: anthropic/claude-opus-5-5
            system_prompt: You review.
            options: {max_tokens: 10}
            response_format: {type: object}
            batch_processing: {linger: 5s}
      """
    When the actor file is loaded
    Then the actor's fields are
      | field             | value                                                                                                                          |
      | name              | "local/reviewer"                                                                                                               |
      | resolved_model    | "claude-opus-5-5"                                                                                                              |
      | system_prompt     | "You review."                                                                                                                  |
      | parameters        | {"max_tokens": 10, "system": "You review.", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false}}}} |
      | batch_mode.linger | 5.0                                                                                                                            |

  Scenario: what stands beside config wins over what stands in it
    Given an actor file
      """
      model: claude-haiku-4-5
      batch_processing: false
      config: {batch_processing: true, system_prompt: inner}
      system_prompt: outer
      """
    When the actor file is loaded
    Then the actor's fields are
      | field            | value   |
      | batch_processing | false   |
      | system_prompt    | "outer" |

  Scenario: the only actor of a nested file needs no default
    Given an actor file
      """
      actors:
        one:
          config: {model: claude-haiku-4-5}
      """
    When the actor file is loaded
    Then the actor's name is "local/one"

  Scenario Outline: one of several actors is loaded by id or by name
    Given an actor file
      """
      actors:
        first: {config: {model: m-1}}
        second: {name: team/second, config: {model: m-2}}
      """
    When the actor file is loaded as "<wanted>"
    Then the actor's provider is "anthropic" and its model "<model>"

    Examples:
      | wanted      | model |
      | first       | m-1   |
      | local/first | m-1   |
      | second      | m-2   |
      | team/second | m-2   |

  Scenario: all actors of a file are loaded, those of other types as they are
    Given an actor file
      """
      actors:
        a: {type: llm, config: {model: m-1}}
        b: {type: tool, config: {command: [ls]}, options: [not, ours], batch_procesing: theirs}
        c: {type: graph, nodes: [a, b]}
      """
    When all actors of the file are loaded
    Then the actors's fields are
      | field  | value     |
      | 0.name | "local/a" |
      | 0.type | "llm"     |
      | 1.name | "local/b" |
      | 1.type | "tool"    |
      | 2.name | "local/c" |
      | 2.type | "graph"   |
    And each of the actors reads back equal from its own YAML, mapping and pickled copy

  Scenario: messages parameters beside the model count as options
    Given an actor file
      """
      model: claude-haiku-4-5
      temperature: 0.5
      max_tokens: 11
      config: {max_tokens: 99, top_k: 3}
      options: {temperature: 0.7}
      """
    When the actor file is loaded
    Then the actor's fields are
      | field      | value                                              |
      | parameters | {"max_tokens": 11, "top_k": 3, "temperature": 0.7} |

  Scenario: a key that has an effect only elsewhere is named once by a warning
    Given an actor file
      """
      name: tests/spare
      model: claude-haiku-4-5
      skills: [search]
      colour: red
      deadline: 2h
      budget: 5
      system_message: Be brief.
      config: {thinking: {type: enabled}}
      """
    And a program that logs
    When the actor file is loaded
    Then the actor's name is "tests/spare"
    And the log has 1 line that says "actor.yaml: actor tests/spare: `thinking` is kept for a host framework, and has no effect here. It belongs under `options`"
    And the log has 1 line that says "`deadline` is kept for a host framework, and has no effect here. It belongs under `batch_processing`"
    And the log has 1 line that says "`budget` is kept for a host framework, and has no effect here. It belongs under `batch_processing.budget_usd`"
    And the log has 1 line that says "`system_message` is kept for a host framework, and has no effect here. It belongs under `system_prompt`"
    And the log has 4 line that says "has no effect here"

  Scenario: dates stay the text that they are written as
    Given an actor file
      """
      model: claude-haiku-4-5
      version: 2026-11-21
      """
    When the actor file is loaded
    Then the actor's fields are
      | field   | value        |
      | version | "2026-11-21" |

  Scenario: anchors and merges are YAML's own
    Given an actor file
      """
      defaults: &defaults {max_tokens: 5, top_k: 2}
      model: claude-haiku-4-5
      options:
        <<: *defaults
        top_k: 3
        stop_sequences: [END]
      """
    When the actor file is loaded
    Then the actor's fields are
      | field      | value                                                    |
      | parameters | {"max_tokens": 5, "top_k": 3, "stop_sequences": ["END"]} |

  Scenario: a byte order mark is no fault
    Given an actor file of the bytes "\xef\xbb\xbfmodel: claude-haiku-4-5"
    When the actor file is loaded
    Then the actor's provider is "anthropic" and its model "claude-haiku-4-5"

  Scenario: a host's mapping is read like a file
    When the actor mapping {"name": "a", "model": "m-1", "batch_processing": true} is loaded
    Then the actor's name is "local/a"

  Scenario: a fault of a host's mapping names no line
    When the actor mapping {"model": "m-1", "batch_procesing": true} is loaded
    Then the actor error reads "unknown key `batch_procesing`; did you mean `batch_processing`?"

  Scenario: a host's mapping of another type is refused
    When the actor mapping {"type": "tool", "config": {}} is loaded
    Then the actor error says "is of type 'tool'"

  Scenario: a host's mapping whose keys are no text is refused
    When the actor mapping {"model": "m", 5: "x"} is loaded
    Then the actor error says "the key 5 is not a text"
