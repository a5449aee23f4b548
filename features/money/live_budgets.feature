@both_backends
Feature: Live calls keep to budgets, each at the live price
  Before a call leaves, the most that it can cost live is reserved; what does not fit is held.

  Scenario: A call that does not fit is held, and goes live when the budget is raised
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 12 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --mode live --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0085 asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      RUN: 
      requests are held: the run's budget is $0.0085
      raise it with `claude-batch budget RUN USD`
      """
    And the API's bill is within $0.0085, and has answers
    When a command runs: status RUN --json
    Then the command line's status as JSON has
      | field | value  |
      | state | "held" |
    When a command runs: budget RUN 1
    And a command runs: run --mode live --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0085 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the file "out.jsonl" has 12 answers
    And the API's bill is within $1, and has 12 answers
    And the budgets account for the API's bill

  Scenario: Calls that leave at the same time fit into the budget together
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 12 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --mode live --model claude-haiku-4-5 --max-tokens 1000 --budget 0.023 asks.jsonl -o out.jsonl
    Then the command line exits with 3
    And the API's bill is within $0.023, and has 4 answers

  Scenario: Without a driving process what was held goes on once the budget is raised
    Given an API
    And a batch provider with {"mode": "live", "drive": false, "budget_usd": "0.000001"}
    When a run of 2 prompts is stored at once
    And the ledger is advanced
    Then the run's state becomes held
    When the run's budget is raised to $1
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then 2 results are answers and 0 are errors
    And the budgets account for the API's bill

  Scenario: Each live turn of a conversation is reserved by itself
    Given an API
    And a batch provider with {"mode": "live", "budget_usd": "1"}
    When the actor is asked: "Search [[sandbox:pause:2]]"
    Then the answer took 3 turns
    And the API's bill is within $1, and has 3 answers
    And the budgets account for the API's bill

  Scenario: A single live call that alone can cost more than the budget is refused
    Given an API that bills what its prompts say
    And a batch provider with {"mode": "live", "budget_usd": "0.004", "max_wait": "5s"}
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 1000 tokens at most
    Then the call is refused with BudgetExceededError: the call can cost up to
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 500 tokens at most
    Then the call has its answer
    And the budgets account for the API's bill

  Scenario: The possible cost of a lost live call counts against the budget
    Given an API
    And the API answers live calls with the first {"type": "drop_after"}
    And a batch provider with {"mode": "live", "budget_usd": "1"}
    When a run of 1 prompts is stored at once
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    And what 1 call can cost live is kept, and nothing is reserved
    When the run's lost requests are asked again
    And the results are read in order
    Then what 1 call can cost live is kept, and nothing is reserved

  Scenario: The possible cost of a call counts against the budget if its process dies
    Given an API
    When a process with {"mode": "live", "live_concurrency": 2, "budget_usd": "1"} asks a run of 6 prompts, and dies at after_live_claim
    And this process opens that run
    And the results are read in order
    Then what each lost call can cost live is kept, and nothing is reserved

  Scenario Outline: The possible cost of a call that ended with a 500 stays in doubt: <retry>
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live", "budget_usd": "1", "live_retry": "<retry>", "max_attempts": <attempts>}
    When a run of 1 prompts is stored at once
    And the results are read in order
    Then what 1 call can cost live is kept, and nothing is reserved

    Examples:
      | retry  | attempts |
      | safe   | 3        |
      | always | 3        |
      | always | 1        |

  Scenario: A transient failure releases the reservation of its call
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 529, "retry_after": 0.1}
    And a batch provider with {"mode": "live", "budget_usd": "1"}
    When a run of 3 prompts is stored at once
    And the results are read in order
    Then the budgets account for the API's bill

  Scenario: A budget that comes after live calls counts what they have cost
    Given an API
    And a batch provider with {"mode": "live"}
    When a run of 4 prompts is stored at once
    And the results are read in order
    And the provider is closed
    Given a batch provider with {"mode": "live", "actor_budget_usd": "1"}
    When a run of 2 prompts is stored at once
    And the results are read in order
    Then the API's bill is within $1, and has 6 answers
    And the budgets account for the API's bill
    And in the ledger the sums that budgets have in doubt are [0, 0]

  Scenario Outline: A budget that comes later counts what a failed live call may have cost: <retry>, <attempts>
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live", "live_retry": "<retry>", "max_attempts": <attempts>}
    When a run of 1 prompts is stored at once
    And the results are read in order
    And a command runs: budget --daily 1
    Then what 1 call can cost live is kept, and nothing is reserved

    Examples:
      | retry  | attempts |
      | safe   | 3        |
      | always | 3        |
      | always | 1        |

  Scenario: A budget that comes later counts each lost live call, also of a request that was asked again
    Given an API
    And the API answers the first 2 live calls with {"type": "drop_after"}
    And a batch provider with {"mode": "live"}
    When a run of 1 prompts is stored at once
    And the results are read in order
    And the run's lost requests are asked again
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    When the run's lost requests are asked again
    And the results are read in order
    And a command runs: budget --daily 1
    Then what 2 calls can cost live is kept, and nothing is reserved

  Scenario: A budget that comes later counts a lost live call of a run that was removed
    Given an API that bills what its prompts say
    And the API answers live calls with the first {"type": "drop_after"}
    And a command's file "one.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 900}
    And a command's file "two.jsonl" of 1 requests that use {"input_tokens": 11, "output_tokens": 900}
    When a command runs: run --mode live --model claude-haiku-4-5 --max-tokens 1000 one.jsonl -o one.out
    Then the command line exits with 1
    When a command runs: unknown RUN --resubmit
    And a command runs: resume RUN
    Then the command line exits with 0
    When a command runs: ledger prune --older-than 0s
    And a command runs: budget --actor local/command-line 0.012
    Then the command line exits with 0
    When a command runs: run --mode live --model claude-haiku-4-5 --max-tokens 1000 two.jsonl
    Then the command line exits with 3 and says
      """
      is held
      """
    And the API's bill is within $0.012, and has 2 answers

  Scenario Outline: A budget that comes with a live call counts what was spent, although the calls of others wait first: <countings>
    Given an API that bills what its prompts say, with {"live_latency": 0.2}
    And a limit of <countings> countings before a call is stored
    And a limit of 2 live calls that are looked at together
    And a batch provider
    When somebody asks {"input_tokens": 10, "output_tokens": 900} with 1000 tokens at most
    Then the call has its answer
    Given a batch provider with {"mode": "live", "live_concurrency": 1, "actor": "tests/other"}
    When a run of 20 prompts is stored at once
    Given a batch provider with {"mode": "live", "actor_budget_usd": "0.007"}
    When somebody asks {"input_tokens": 11, "output_tokens": 900} with 1000 tokens at most
    Then the call is refused with BudgetExceededError: the budget of the actor tests/asker is $0.007, $0.002255 of it spent
    When a command runs: budget --actor tests/asker 1
    And somebody asks {"input_tokens": 11, "output_tokens": 900} with 1000 tokens at most
    Then the call has its answer

    Examples:
      | countings |
      | 5         |
      | 0         |

  Scenario: Live calls between two budgets are counted by the second one
    Given an API
    And a batch provider with {"mode": "live"}
    When the actor is asked: "one"
    And a command runs: budget --daily 1
    And the actor is asked: "two"
    And a command runs: budget --daily none
    And the actor is asked: "three"
    And a command runs: budget --daily 1
    Then the command line exits with 0
    And the API's bill is within $1, and has 3 answers
    And the budgets account for the API's bill

  Scenario: A live call after midnight counts on its own day, although the one before it has just ended
    Given an API
    And a batch provider with {"mode": "live"}
    When the actor is asked: "one"
    And the ledger's batches are moved to the day before
    And the actor is asked: "two"
    Then in the ledger the states of the batches are ["live", "live"]

  Scenario: A request that fits a budget in a batch but not live is held past the margin, and sent in neither way
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"deadline": "120s", "deadline_margin": "118s", "budget_usd": "0.005"}
    When a run is stored of requests with at most 1500 tokens
    Then the run's state becomes held
    And the API has seen 1 batch
    And 0 calls were paid for live, none twice
    When the run's budget is raised to $1
    And the results are read in order
    Then 0 answers came from batches and 1 live, each paid once

  Scenario Outline: With mode auto, what fits in a batch and not live goes into a batch: <budget>
    Given an API that bills what its prompts say
    And a batch provider with {"mode": "auto", "budget_usd": "<budget>"}
    When a run is stored of requests with at most 1000, 1000 tokens
    And the results are read in order
    Then <batched> answers came from batches and <live> live, each paid once
    And the budgets account for the API's bill
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 1500 tokens at most
    Then the call has its answer

    Examples:
      | budget | batched | live |
      | 0.006  | 2       | 0    |
      | 0.02   | 0       | 2    |

  Scenario: A request that is held for the live API is not packed into a batch that has room
    Given an API
    And a batch provider with {"mode": "live", "actor_budget_usd": "0.004"}
    When a run is stored of requests with at most 1500 tokens
    Then the run's state becomes held
    And the status says "1 request is held: the budget of the actor tests/asker"
    Given a batch provider with {"actor_budget_usd": "0.004"}
    When a run is stored of requests with at most 1000 tokens
    And the results are read in order
    Then 1 answers came from batches and 0 live, each paid once
    And in the ledger the states of the requests are ["queued", "succeeded"]

  Scenario Outline: A call that is too large for its budget holds up no smaller one: <drive>
    Given an API
    And a batch provider with {"mode": "live", "budget_usd": "0.004", "drive": <drive>}
    When a run is stored of requests with at most 3000, 10, 3000, 20 tokens
    And it is <driven> until it is held
    Then in the ledger the states of the requests are ["queued", "succeeded", "queued", "succeeded"]
    And the run's fields are
      | field                | value |
      | status.held.requests | 2     |
    When the run's budget is raised to $1
    And it is <driven> until it is finished
    And the results are read in order
    Then 0 answers came from batches and 4 live, each paid once
    And the budgets account for the API's bill

    Examples:
      | drive | driven   |
      | true  | driven   |
      | false | advanced |

  Scenario: Many that do not fit hold up no smaller one behind them
    Given an API
    And a batch provider with {"mode": "live", "budget_usd": "0.004"}
    When a run is stored of requests with at most 1200 times 3000, 10 tokens
    And it is driven until it is held
    Then the status shows 1 requests succeeded
    And the run's fields are
      | field                | value |
      | status.held.requests | 1200  |
