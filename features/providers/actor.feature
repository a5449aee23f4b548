@every_python
Feature: An actor is a configuration bound to its provider

  Scenario: asking the actor asks its provider, with its configuration
    Then what an actor is asked reaches its provider as follows
      | way              | given      | how                        | noted                                         |
      | respond          | "one"      | {"key": "k"}               | ["one", "k"]                                  |
      | respond_all      | ["two"]    | {"ordered": false}         | [["two"], false]                              |
      | respond_sync     | "three"    | {"key": "l"}               | ["three", "l"]                                |
      | respond_all_sync | ["four"]   | {}                         | [["four"], true]                              |
      | submit           | ["a", "b"] | {"label": "l", "new": true} | [["a", "b"], {"label": "l", "new": true}]    |
      | submit_sync      | ["a", "b"] | {}                         | [["a", "b"], {"label": null, "new": false}]   |

  Scenario: what a provider cannot do is refused before anything is asked, with the remedy
    Then what an actor is asked reaches its provider as follows
      | way              | given    | runs | noted | error                                              |
      | submit           | ["a"]    | no   |       | local/a…write `batch_processing: true`             |
      | submit_sync      | ["a"]    | no   |       | local/a…write `batch_processing: true`             |
      | respond_all      | "prompt" | yes  |       | requests must be a list or another iterable        |
      | respond_all_sync | "prompt" | yes  |       | requests must be a list or another iterable        |
      | submit           | "prompt" | yes  |       | requests must be a list or another iterable        |
      | submit_sync      | "prompt" | yes  |       | requests must be a list or another iterable        |

  Scenario: an actor of another type cannot be bound
    Then what an actor is asked reaches its provider as follows
      | kind | way     | given | noted | error          |
      | tool | respond | "one" |       | of type 'tool' |

  Scenario: an actor is made without a file, and its requests travel in batches by default
    Then actors are made without a file as follows
      | model   | given                                                  | actor                                                                                      | batch_processing  | provider     | error                       |
      | a-model | {}                                                     | {"provider": "anthropic", "model": "a-model"}                                              | true              | claude-batch |                             |
      | a-model | {"system_prompt": "Be brief.", "max_tokens": 9}        | {"provider": "anthropic", "model": "a-model", "system_prompt": "Be brief.", "options": {"max_tokens": 9}} | true | claude-batch |                   |
      | a-model | {"options": {"top_k": 3}, "max_tokens": 9, "name": "n"} | {"provider": "anthropic", "model": "a-model", "name": "local/n", "options": {"top_k": 3, "max_tokens": 9}} | true | claude-batch |               |
      | a-model | {"batch_processing": {"linger": "1s"}}                 | {"provider": "anthropic", "model": "a-model"}                                              | {"linger": "1s"}  | claude-batch |                             |
      | a-model | {"batch_processing": false}                            | {"provider": "anthropic", "model": "a-model"}                                              | false             | claude       |                             |
      |         | {}                                                     |                                                                                            |                   |              | `model` is missing          |
      | a-model | {"system_prompt": 5}                                   |                                                                                            |                   |              | must be a text, not 5       |
      | a-model | {"systm": "x"}                                         |                                                                                            |                   |              | has no setting 'systm'      |
      | a-model | {"system": "x"}                                        |                                                                                            |                   |              | the system prompt is `system_prompt=` of make_actor |
      | a-model | {"output_format": {}}                                  |                                                                                            |                   |              | `output_format=` of respond |

  Scenario: an actor is loaded from a file and bound to who answers for it
    Given an actor file
      """
      actors:
        a: {config: {provider: acme, model: m}}
        b: {config: {provider: acme, model: n}}
      """
    And a registry with the provider "acme"
    Then the actor of the file is bound as follows
      | name | settings         | called  | repr                              | provider  | its settings     |
      | b    | {"region": "eu"} | local/b | Actor('local/b', provider='acme') | _Provider | {"region": "eu"} |

  Scenario: without a registry of its own an actor finds Claude
    Given an actor file
      """
      model: claude-haiku-4-5
      """
    Then the actor of the file is bound as follows
      | name | settings | called      | repr                                    | provider       | its settings |
      |      | {}       | local/actor | Actor('local/actor', provider='claude') | ClaudeProvider |              |
