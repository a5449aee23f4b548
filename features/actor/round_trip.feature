@every_python
Feature: What is written of an actor reads back as the same actor

  Scenario: a flat file keeps its form, and the host's keys
    Given an actor file
      """
      name: local/reviewer
      model: claude-haiku-4-5
      system_prompt: |
        You review.
        Be brief.
      options:
        max_tokens: 100
      batch_processing:
        linger: 30s
        max_wait: 26h
      skills:
      - read
      - name: write
        level: 2
      tools: []
      memory:
        kind: none
      """
    When the actor file is loaded
    Then the actor's YAML is the file, word for word
    And the actor reads back equal from its own YAML, mapping and pickled copy

  Scenario Outline: every form reads back equal, by YAML and by mapping
    Given an actor file
      """
      <yaml>
      """
    When the actor file is loaded
    Then the actor reads back equal from its own YAML, mapping and pickled copy

    Examples:
      | yaml                                                                                                 |
      | model: m                                                                                             |
      | {model: m, batch_processing: true}                                                                   |
      | {model: m, batch_processing: false, description: null}                                               |
      | {name: x, type: LLM, provider_type: Anthropic, model_id: Anthropic/m, context_view: full}            |
      | {model: m, batch_processing: {poll_interval: 20m, linger: 1, max_wait: PT90M}}                       |
      | {config: {actor: anthropic/m, system_prompt: "a: b", batch_processing: true, memory: {a: 1}}}        |
      | {config: {model: m, options: {max_tokens: 4}}, options: {max_tokens: 5}}                             |
      | {actors: {a: {config: {model: m, batch_processing: {linger: 1s}}}}, routes: {r: [a]}}                |
      | {cleveragents: {version: "2", default_actor: b}, actors: {a: {type: tool}, b: {config: {model: m}}}} |
      | {actors: {a/b: {name: other, config: {model: m}}}}                                                   |
      | {actors: {a: {name: a, type: llm, model: m}}}                                                        |
      | {model: m, options: {stop_sequences: ["\n", "é", "yes", "1:30", "2026-01-01"]}}                      |
      | {model: m, version: 1.10}                                                                            |
      | {model: m, response_format: {type: json_schema, schema: {type: object}}}                             |

  Scenario: unset fields stay unset
    Given an actor file
      """
      model: m
      """
    When the actor file is loaded
    Then the actor's mapping is {"model": "m"}

  Scenario: nested stays nested, with the other actors as they were
    Given an actor file
      """
      cleveragents: {version: "2", default_actor: a}
      actors:
        a: {config: {model: m, batch_processing: {linger: 90}}}
        b: {type: llm, config: {model: n, system_prompt: hi}, skills: [s]}
        c: {type: graph, config: {nodes: [a, b]}}
      routes: {main: b}
      """
    When the actor file is loaded as "b"
    Then the actor's mapping is {"cleveragents": {"version": "2", "default_actor": "b"}, "actors": {"a": {"config": {"model": "m", "batch_processing": {"linger": 90}}}, "b": {"type": "llm", "config": {"model": "n", "system_prompt": "hi"}, "skills": ["s"]}, "c": {"type": "graph", "config": {"nodes": ["a", "b"]}}}, "routes": {"main": "b"}}
    And the actor reads back equal from its own YAML, mapping and pickled copy

  Scenario: an actor that was chosen by its name is the default of what is written
    Given an actor file
      """
      actors:
        a: {config: {model: m}}
        b: {config: {model: n}}
      """
    When the actor file is loaded as "a"
    Then the actor's mapping is {"cleveragents": {"default_actor": "a"}, "actors": {"a": {"config": {"model": "m"}}, "b": {"config": {"model": "n"}}}}
    And the actor reads back equal from its own YAML, mapping and pickled copy

  Scenario: durations are written as text
    Given an actor file
      """
      model: m
      batch_processing: {linger: 90, max_wait: PT2H}
      """
    When the actor file is loaded
    Then the actor's mapping is {"model": "m", "batch_processing": {"linger": "90s", "max_wait": "2h"}}

  Scenario Outline: a text with a line separator of Unicode stays the same: <prompt>
    Given an actor file
      """
      model: m
      system_prompt: <prompt>
      """
    When the actor file is loaded
    Then the actor reads back equal from its own YAML, mapping and pickled copy

    Examples:
      | prompt                       |
      | "a\Lb"                      |
      | "a\P  b\nc"                |
      | "a\Nb"                      |
      | "é\L \n  a word and more"  |

  Scenario: a value that YAML cannot hold is one clear error
    Then actors with an option that is an object are written as follows
      | way           | error                                    |
      | to_yaml       | actor local/actor cannot be written as   |
      | digest_fields | actor local/actor: its options cannot be written as |

  Scenario: the digest tells what changes the answers, and nothing else
    Given an actor file
      """
      name: a
      model: claude-haiku-4-5
      system_prompt: hi
      options: {max_tokens: 5, stop_sequences: [x]}
      """
    When the actor file is loaded
    Then a change of the actor changes its digest as follows
      | change                                                  | digest                                                                                                                 |
      | {}                                                      | {"model":"claude-haiku-4-5","parameters":{"max_tokens":5,"stop_sequences":["x"],"system":"hi"},"provider":"anthropic"} |
      | {"name": "b"}                                           | the same                                                                                                               |
      | {"description": "d"}                                    | the same                                                                                                               |
      | {"batch_processing": true}                              | the same                                                                                                               |
      | {"provider": "claude"}                                  | the same                                                                                                               |
      | {"provider": "Anthropic"}                               | the same                                                                                                               |
      | {"model": "anthropic/claude-haiku-4-5"}                 | the same                                                                                                               |
      | {"skills": ["s"]}                                       | the same                                                                                                               |
      | {"options": {"stop_sequences": ["x"], "max_tokens": 5}} | the same                                                                                                               |
      | {"model": "claude-opus-5-5"}                            | …"model":"claude-opus-5-5"…                                                                                            |
      | {"provider": "acme"}                                    | …"provider":"acme"…                                                                                                    |
      | {"system_prompt": "ho"}                                 | …"system":"ho"…                                                                                                        |
      | {"options": {"max_tokens": 6, "stop_sequences": ["x"]}} | …"max_tokens":6…                                                                                                       |
      | {"response_format": {"type": "object"}}                 | …"output_config"…                                                                                                      |
      | {"temperature": 0.1}                                    | …"temperature":0.1…                                                                                                    |

  Scenario Outline: a response format comes down to its schema
    Given an actor file
      """
      model: m
      options: {output_config: {effort: low}}
      response_format: <format>
      """
    When the actor file is loaded
    Then the actor's output_config is <expected>

    Examples:
      | format | expected |
      | {type: object, properties: {a: {type: string}}} | {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}}} |
      | {type: json_schema, schema: {type: object}} | {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false}}} |
      | {type: json_schema, json_schema: {name: n, schema: {type: object}}} | {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false}}} |
      | {type: json_schema, json_schema: {type: object}} | {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": false}}} |
      | {anyOf: [{type: object}]} | {"effort": "low", "format": {"type": "json_schema", "schema": {"anyOf": [{"type": "object", "additionalProperties": false}]}}} |
      | {type: text} | {"effort": "low"} |
