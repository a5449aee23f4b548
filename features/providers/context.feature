@every_python
Feature: A context travels beside a request, and comes back with its result

  Scenario: A JSON value is kept in the ledger, any other object in this process
    Then the ledger keeps contexts as follows
      | value                                  | kept |
      | Decimal(1)                             | no   |
      | {"a": [1, 2.5, None, True, "é"]}       | yes  |
      | "text"                                 | yes  |
      | 0                                      | yes  |
      | (1, 2)                                 | no   |
      | {1: "a"}                               | no   |
      | {"when": datetime.now()}               | no   |
      | float("nan")                           | no   |
      | b"bytes"                               | no   |
      | object()                               | no   |
      | Word.ONE                               | no   |
      | {"a": [Number.ONE]}                    | no   |
      | {Word.ONE: 1}                          | no   |
      | "\ud800"                               | no   |

  Scenario Outline: The context comes back, and is not sent: <who>, <how>
    Given an API that remembers what it is asked
    And <who>
    When requests with contexts are asked, <how>
    Then each result and its response have the very context of their request
    And nothing of a context was sent

    Examples:
      | who              | how                        |
      | a batch provider | many at once               |
      | a batch provider | many at once, as they come |
      | a batch provider | many at once synchronously |
      | a batch provider | submitted                  |
      | a batch provider | one by one                 |
      | a batch provider | one by one synchronously   |
      | a live actor     | many at once               |
      | a live actor     | many at once synchronously |
      | a live actor     | one by one                 |

  Scenario: Another process gets the JSON values
    Given an API
    And a batch provider
    When requests with contexts are asked, submitted
    Then another process gets the contexts that are JSON values, and None for the others

  Scenario: Single calls keep their contexts in the ledger too
    Given an API
    And a batch provider
    When requests with contexts are asked, one by one
    Then another process gets the contexts that are JSON values, and None for the others
    And a call that joins one of them by its key gets its context, or its own

  Scenario: The same run with other contexts is the same run, and has the newer ones
    Given an API
    And a batch provider
    When a run with the contexts ["old", "older", null] is submitted
    And a run with the contexts ["new", null, "newest"] is submitted
    Then both are one run, whose contexts in another process are ["new", null, "newest"]
    When a run with the contexts [null, null, null] is submitted
    Then both are one run, whose contexts in another process are ["new", null, "newest"]
    When a run with the contexts [object(), null, null] is submitted
    Then both are one run, whose contexts in another process are [null, null, null]

  Scenario Outline: Middleware sees the context, and keeps it: <how>
    Given an API
    And middleware which notes contexts and makes requests and responses anew
    And <who>
    When requests with contexts are asked, <how>
    Then each result and its response have the very context of their request
    And the middleware has seen each context before and after

    Examples:
      | who                          | how                        |
      | a batch provider that has it | many at once               |
      | a batch provider that has it | one by one                 |
      | a live provider that has it  | many at once               |
      | a live provider that has it  | one by one                 |

  Scenario Outline: A result that failed has its context too: <who>
    Given an API
    And middleware that fails at what says "secret"
    And <who>
    When the prompts ["secret", "[[sandbox:errored:invalid_request_error]] bad", "good"] are asked, each with a context
    Then 1 results are answers and 2 are errors
    And each of their results has its context

    Examples:
      | who                          |
      | a batch provider that has it |
      | a live provider that has it  |

  Scenario: A request that a budget holds has its context
    Given an API
    And a batch provider with {"budget_usd": "0.001"}
    When the prompts ["one", "two"] are asked, each with a context
    Then result 1 failed with BudgetExceededError
    And result 2 failed with BudgetExceededError
    And each of their results has its context

  Scenario: A response with a context is copied by value, with its context
    Then a response with a context equals the same answer without, and keeps it when it is pickled

  Scenario: Contexts are removed with their run, and with a run that is given up
    Given an API
    And a batch provider
    When a run with the contexts ["a", "b", "c"] is submitted
    Then in the ledger the contexts are [1, 2, 3]
    When the run 1 is pruned
    And a run with contexts is given up before it is stored
    Then in the ledger the contexts are []

  Scenario: The command line reads contexts, and writes them back
    Given a command's folder
    And a command's API
    And a command's file "in.jsonl"
      """
      {"id": "a", "prompt": "one", "context": {"row": 7}}
      {"id": "b", "prompt": "[[sandbox:errored:invalid_request_error]] two", "context": "x"}
      {"id": "c", "prompt": "three"}
      """
    When a command runs: run --model claude-haiku-4-5 in.jsonl -o out.jsonl
    Then in "out.jsonl" the contexts by id are {"a": {"row": 7}, "b": "x"}
