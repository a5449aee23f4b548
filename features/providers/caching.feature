Feature: A run whose requests share a prefix pays for it once

  Scenario: Prompts with a long system prompt write it once, and read it from then on
    Given an API
    And a batch provider with {"cache": "auto"}
    When an actor with a long system prompt is asked 20 prompts in a run
    Then the first 6 requests are sent as they are without a cache, the others with a mark
    And 1 answers wrote to the cache for an hour, and 13 read from it
    And the results sum up to
      | response.cost | response.usage.cache_read_input_tokens |
      | 28823900      | 78078                                  |
    And the run's fields are
      | field                        | value    |
      | cost.total.cost              | 28823900 |
      | cost.total.tokens.cache_read | 78078    |
      | cost.total.saved_by_cache    | 32132100 |

  Scenario: Without it they are sent exactly as given
    Given an API
    And a batch provider
    When an actor with a long system prompt is asked 20 prompts in a run
    Then the first 20 requests are sent as they are without a cache, the others with a mark
    And 0 answers wrote to the cache for an hour, and 0 read from it

  Scenario: The same run is found again with and without marks
    Given an API
    And a batch provider with {"cache": "auto"}
    When an actor with a long system prompt is asked 8 prompts in a run
    Given a batch provider with {"cache": "off"}
    When an actor with a long system prompt is asked 8 prompts in a run
    Then it is the same run

  Scenario: `cache` in YAML is read as it is meant
    Then `cache` in YAML means as follows
      | yaml | means |
      | off  | off   |
      | auto | auto  |
      | on   | auto  |

  Scenario Outline: A run that is continued with another cache keeps its own, and says so: <first>, then <then>
    Given a command's API with {"latency": 7200}
    And a command's file "many.jsonl" of 12 prompts
    And a command's actor with a long system prompt
    When a command runs: submit long.yaml many.jsonl --cache <first>
    And a command runs: submit long.yaml many.jsonl --cache <first>
    Then the command line does not say: keeps the settings
    When a command runs: submit long.yaml many.jsonl --cache <then>
    Then the command line exits with 0 and says
      """
      RUN keeps the settings that it began with: cache <first> (not <then>). To send all its requests again
      """

    Examples:
      | first | then |
      | off   | auto |
      | auto  | off  |

  Scenario: Reports show the effect of the cache
    Given a command's API
    And a command's file "many.jsonl" of 12 prompts
    And a command's actor with a long system prompt
    When a command runs: run --cache auto long.yaml many.jsonl -o out.jsonl
    And a command runs: status RUN
    Then the command line prints
      """
      prompt cache: 
      """
    When a command runs: run long.yaml many.jsonl --new -o out.jsonl
    And a command runs: status RUN
    Then the command line does not say: prompt cache
