@long
Feature: What was answered before is not paid for again, where that is asked for

  Scenario: A larger run reuses the answers of a smaller one that knew nothing of it
    Given an API
    And a batch provider
    When prompts 0 to 4 are asked in a run
    Given a batch provider with {"reuse": true}
    When prompts 0 to 7 are asked in a run
    Then the API has processed 8 requests in all
    And the answers to 0 1 2 3 4 are reused, cost nothing, and are those of before
    And the answers to 5 6 7 are not reused
    And the costs of the runs together are what the API's bill comes to
    And the results came in order

  Scenario: An answer that nobody has judged is judged before it is reused, and asked for again if it is wrong
    Given an API
    And a batch provider
    When the actor is asked in vain for a Flat: "an invoice [[sandbox:invalid]]"
    Then it fails as OutputValidationError with "This is not of the shape that was asked for (1)."
    Given a batch provider with {"reuse": true, "validation_attempts": 2}
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid]]"
    Then the answer is an object of Flat
    And the answer took 2 turns
    And the API has processed 2 requests, none twice

  Scenario: Large requests that were answered are looked at a few at a time
    Given a command's API
    And a command's file "asks.jsonl" of 60 prompts of 750000 bytes, and one of 100
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the ledger's answers are indexed for 61 requests in no more than 25 MB

  Scenario: An answer that is removed while it is indexed is not taken for that of another request
    Given a command's API
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the ledger's answers are not indexed if other requests take their place meanwhile

  Scenario: A request whose answer was removed while it was looked up is asked like any other
    Given a command's API
    And a command's file "asks.jsonl" of 3 prompts
    And a command's file "more.jsonl" of 4 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Given the API has the faults
      """
      {"requests": [{"outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    When all that was delivered is removed while a command looks up its answers: run actor.yaml more.jsonl --reuse --max-attempts 1
    Then the command line exits with 1 and says
      """
      4 overloaded_error
      """
    When the API has no faults any more
    And a command runs: retry RUN --max-wait 5s
    Then the command line exits with 0 and says
      """
      finished: 4 succeeded of 4
      """

  Scenario: A run whose answers are all known needs no batch
    Given an API
    And a batch provider
    When prompts 0 to 3 are asked in a run
    Given a batch provider with {"reuse": true}
    When prompts 1 to 2 are asked in a run
    Then the API has processed 4 requests in all
    And the answers to 1 2 are reused, cost nothing, and are those of before
    And the run's fields are
      | field            | value |
      | status.finished  | true  |
      | status.batches.0 |       |

  Scenario Outline: <what> is another request
    Given an API
    And a batch provider
    When prompts 0 to 1 are asked in a run
    Given a batch provider with {"reuse": true}
    When prompts 0 to 2 are asked in a run with <options>
    Then the API has processed 5 requests in all
    And the answers to 0 1 2 are not reused

    Examples:
      | what           | options                                    |
      | other params   | {"max_tokens": 17}                         |
      | another header | {"betas": ["output-300k-2026-03-24"]}      |

  Scenario: Failures are asked again
    Given an API
    And a batch provider
    And the API has the faults
      """
      {"requests": [{"contains": "prompt 1", "outcome": "errored", "error": {"type": "invalid_request_error"}}]}
      """
    When prompts 0 to 1 are asked in a run
    And the API has no faults any more
    Given a batch provider with {"reuse": true}
    When prompts 0 to 2 are asked in a run
    Then the answers to 0 are reused, cost nothing, and are those of before
    And the answers to 1 2 are not reused

  Scenario: --new asks anew all the same
    Given an API
    And a batch provider with {"reuse": true}
    When prompts 0 to 1 are asked in a run
    And prompts 0 to 1 are asked in a run with {"new": true}
    Then the API has processed 4 requests in all
    And the answers to 0 1 are not reused

  Scenario: A request that was marked for the cache is known by what was asked
    Given an API
    And a batch provider with {"cache": "auto"}
    When an actor with a long system prompt is asked 8 prompts in a run
    Given a batch provider with {"cache": "auto", "reuse": true}
    When an actor with a long system prompt is asked 9 prompts in a run
    Then the API has processed 9 requests in all

  Scenario: An answer that has left the ledger is not reused, and a reused answer stays
    Given an API
    And a batch provider with {"reuse": true}
    When prompts 0 to 1 are asked in a run
    And prompts 0 to 2 are asked in a run
    And the run 1 is pruned
    And the results are read in order
    Then the answers to 0 1 are reused, cost nothing, and are those of before
    When prompts 0 to 3 are asked in a run
    Then the answers to 0 1 2 are reused, cost nothing, and are those of before
    When the runs 2, 3 are pruned
    And prompts 0 to 2 are asked in a run
    Then the answers to 0 1 2 are not reused
    And the API has processed 7 requests in all

  Scenario: A request with documents is known by what was asked, in runs and in calls
    Given an API
    And a batch provider
    When 2 requests about each of the documents A are asked in a run, in turn
    Given a batch provider with {"reuse": true, "cache": "auto"}
    When 3 requests about each of the documents A are asked in a run, in turn
    And the first request about the document A is asked by itself
    Then the answer is reused
    And the API has processed 3 requests in all

  Scenario: Reused answers are reused again, with a model that has no price too
    Given an API
    And a batch provider
    When prompts 0 to 0 are asked in a run
    Given a batch provider with {"reuse": true}
    When prompts 0 to 1 are asked in a run
    And prompts 0 to 2 are asked in a run
    Then the API has processed 3 requests in all
    And the answers to 0 1 are reused, cost nothing, and are those of before

  Scenario: Single calls take answers of runs, and of calls
    Given an API
    And a batch provider
    When prompts 0 to 0 are asked in a run
    Given a batch provider with {"reuse": true}
    When the prompt 0 is asked by itself
    Then the answer is reused
    When the prompt 1 is asked by itself
    Then the answer's fields are
      | field  | value |
      | reused | false |
    When the prompt 1 is asked by itself
    Then the answer is reused
    When the prompt 1 is asked by itself with the key "again"
    Then the answer is reused
    And the API has processed 2 requests in all

  Scenario: Equal requests of a run are sent once, and each has the answer
    Given an API
    And a batch provider with {"dedupe": true}
    When the prompts 0 1 0 2 1 0 are asked in a run
    Then the API has processed 3 requests in all
    And the results came in order
    And equal prompts have equal answers, of which the first alone has cost something
    And the costs of the runs together are what the API's bill comes to

  Scenario: Without it they are sent as often as they stand there
    Given an API
    And a batch provider
    When the prompts 0 1 0 are asked in a run
    Then the API has processed 3 requests in all

  Scenario: Doubles fail as their first one does, and are retried with it
    Given an API
    And a batch provider with {"dedupe": true}
    And the API has the faults
      """
      {"requests": [{"contains": "prompt 1", "outcome": "errored", "error": {"type": "invalid_request_error"}}]}
      """
    When the prompts 0 1 1 1 are asked in a run
    Then 1 results are answers and 3 are errors
    And result 4 failed with BatchRequestError
    And the error's fields are
      | field      | value                   |
      | error_type | "invalid_request_error" |
    When the API has no faults any more
    And what failed in the run is retried
    Then the API has processed 3 requests in all
    And equal prompts have equal answers, of which the first alone has cost something

  Scenario: Doubles are cancelled with their run
    Given an API that takes 60 seconds for a batch
    And a batch provider with {"dedupe": true}
    When a run of these prompts is submitted
      | prompt |
      | same   |
      | same   |
      | same   |
    Then the status shows 2 requests held
    When the run is cancelled
    And the run is waited for
    Then the status shows 3 requests canceled

  Scenario Outline: A process that dies <where> loses no double, and pays for none
    Given an API
    When a process with {"dedupe": true, "reuse": true} asks for 0 1 0 1 0, and dies at <point>
    And another process with {"dedupe": true, "reuse": true} asks for 0 1 0 1 0
    Then the API has processed 2 requests in all
    And equal prompts have equal answers, of which the first alone has cost something

    Examples:
      | where                       | point                     |
      | before the run is whole     | before_stored             |
      | when it is                  | after_stored              |
      | when the answers are stored | between_results_and_state |
      | when they are judged        | after_collected           |
      | when the doubles have them  | after_release             |

  Scenario: A run that is interrupted before it is whole leaves no turns of the answers that it took
    Given a command's API
    And a command's file "one.jsonl"
      """
      "Search [[sandbox:pause:2]]"
      """
    And a command's file "more.jsonl"
      """
      "Search [[sandbox:pause:2]]"
      "hello"
      """
    When a command runs: run actor.yaml one.jsonl -o one.out.jsonl
    Then the command line exits with 0
    And in the ledger the counts of conversations are [1]
    When a command runs, interrupted before the run is whole: run --reuse actor.yaml more.jsonl -o more.out.jsonl
    Then the command line exits with 3
    And in the ledger the states of the requests are ["succeeded"]
    And in the ledger the counts of conversations are [1]

  Scenario: A command reports how many answers were reused
    Given a command's API
    And a command's file "one.jsonl" of 3 prompts
    And a command's file "more.jsonl" of 5 prompts
    When a command runs: run actor.yaml one.jsonl -o one.out.jsonl
    And a command runs: run --reuse actor.yaml more.jsonl -o more.out.jsonl
    Then the command line exits with 0 and says
      """
      3 answers reused
      """
    And the lines of "more.out.jsonl" that are marked as reused are 3
    When a command runs: run --reuse --label once-more actor.yaml one.jsonl -o one.out.jsonl
    Then the command line says
      """
      has the same requests and is finished
      """
    Given a command's file "two.jsonl" of 2 prompts
    When a command runs: run --reuse actor.yaml two.jsonl -o two.out.jsonl
    Then the command line says
      """
      is finished: every request was answered before
      """
    When a command runs: run --reuse --model claude-haiku-4-5 one.jsonl -o other.jsonl
    And a command runs: run --reuse --model claude-haiku-4-5 --label again more.jsonl -o other.jsonl
    And a command runs: status RUN --json
    Then the command line's status as JSON has
      | field               | value |
      | cost.reused_answers | 3     |
