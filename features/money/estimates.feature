Feature: The cost of a run is estimated before it is sent
  Tokens are counted by the API for a few requests, else estimated from earlier answers, else from the size.

  Scenario: An estimate counts a few requests at the API, and sends and stores nothing
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 100 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: estimate --model claude-haiku-4-5 --max-tokens 1000 --max-requests 30 asks.jsonl
    Then the command line exits with 0
    And the command line prints
      """
      100 requests
      at least 4 batches
      (estimated from the API's count of a few)
      tokens out: 5,000 low, 25,000 expected, 100,000 at most (max_tokens)
      the sum that a budget reserves
      batches save
      """
    And the command line has sent nothing
    And there is no ledger yet
    And the API has counted tokens 8 times

  Scenario: Without a key tokens are estimated from their size, and after a run from its answers
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 20 requests that use {"input_tokens": 40, "output_tokens": 100}
    And a command's environment lacks ANTHROPIC_API_KEY
    When a command runs: estimate --model claude-haiku-4-5 asks.jsonl --json
    Then the command line exits with 0 and says
      """
      the API cannot count tokens (there is no API key); they are estimated instead
      """
    Then the command line's status as JSON has
      | field           | value  |
      | requests        | 20     |
      | counted         | "rule" |
      | output_expected | 20480  |
      | output_most     | 81920  |
    Given a command's environment has ANTHROPIC_API_KEY = sk-ant-x
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      estimate: about $0.
      (estimated from their size)
      """
    When a command runs: estimate --offline --model claude-haiku-4 asks.jsonl --json
    Then the command line's status as JSON has
      | field           | value   |
      | counted         | "rule"  |
    When a command runs: estimate --offline --model claude-haiku-4-5 asks.jsonl --json
    Then the command line's status as JSON has
      | field           | value   |
      | counted         | "seen"  |
      | input_tokens    | 800     |
      | output_low      | 2000    |
      | output_expected | 2000    |
      | cost            | 5400000 |
      | cost_low        | 5400000 |
      | live_cost       | 10800000 |
      | saved_by_batch  | 5400000 |
    When a command runs: cost RUN --json
    Then the command line's status as JSON has
      | field | value   |
      | cost  | 5400000 |

  Scenario: Requests that run in the US are estimated at its price
    Given an API that bills what its prompts say
    And a command's file "actor.yaml"
      """
      name: tests/asker
      model: claude-haiku-4-5
      options: {inference_geo: us}
      batch_processing: true
      """
    And a command's file "asks.jsonl" of 20 requests that use {"input_tokens": 40, "output_tokens": 100, "inference_geo": "us"}
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: cost RUN --json
    Then the command line's status as JSON has
      | field | value   |
      | cost  | 5940000 |
    When a command runs: estimate --offline actor.yaml asks.jsonl --json
    Then the command line's status as JSON has
      | field     | value    |
      | cost      | 5940000  |
      | live_cost | 11880000 |

  Scenario: What web searches may cost is reported beside the estimate
    Given an API that bills what its prompts say
    And a command's file "actor.yaml"
      """
      name: tests/seeker
      model: claude-haiku-4-5
      options:
        tools: [{type: web_search_20250305, name: web_search, max_uses: 5}]
      batch_processing: true
      """
    And a command's file "asks.jsonl" of 20 requests that use {"input_tokens": 40, "output_tokens": 100}
    When a command runs: estimate --offline actor.yaml asks.jsonl
    Then the command line prints
      """
      the expected cost does not include web searches, which may cost up to $1
      """
    When a command runs: estimate --offline actor.yaml asks.jsonl --json
    Then the command line's status as JSON has
      | field           | value      |
      | search_fees     | 1000000000 |
      | search_fees_usd | 1.0        |
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      the expected cost does not include web searches, which may cost up to $1
      """

  Scenario: An offline estimate uses the token counts of runs that the API has counted
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 40, "output_tokens": 100}
    When a command runs: run --preflight --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command runs: estimate --offline --model claude-haiku-4-5 asks.jsonl --json
    Then the command line's status as JSON has
      | field           | value     |
      | counted         | "counted" |
      | input_tokens    | 52        |
      | output_expected | 2048      |
    When a command runs: estimate --offline --model claude-sonnet-4-5 asks.jsonl --json
    Then the command line's status as JSON has
      | field           | value     |
      | counted         | "rule"    |

  Scenario: The estimate includes what a cached prefix may save
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 50 lines like
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "ask N"}], "system": [{"type": "text", "text": "(2000 letters)", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "(1200 letters)", "cache_control": {"type": "ephemeral"}}]}}
      """
    When a command runs: estimate --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 0
    And the command line prints
      """
      the prompt cache may save up to $0.0
      """

  Scenario Outline: The estimate marks what a run with --cache auto would mark: <size> bytes, <flags>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of <count> lines like
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "ask N"}], "system": "(<size> letters)"}}
      """
    When a command runs: estimate --offline --json --model claude-haiku-4-5 asks.jsonl <flags>
    Then the command line's status as JSON has
      | field          | value   |
      | saved_by_cache | <saved> |

    Examples: 6,029 tokens by the rule, at 500 nano-dollars; one write costs twice that, 5 or 9 reads a tenth
      | count | size  | flags                | saved    |
      | 12    | 20000 |                      | 0        |
      | 12    | 20000 | --cache auto         | 10550750 |
      | 12    | 20000 | --cache auto --prime | 21402950 |
      | 12    | 5000  | --cache auto         | 0        |
      | 6     | 20000 | --cache auto         | 0        |

  Scenario: Requests without a price or without a bound are listed beside the sums
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      "plain"
      {"params": {"model": "claude-nobody-9", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}}
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}}
      {"params": {"model": "claude-haiku-4-5"}}
      """
    When a command runs: estimate --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl:4: 
      """
    When a command runs: estimate --skip-invalid --model claude-haiku-4-5 asks.jsonl
    Then the command line exits with 0
    And the command line prints
      """
      3 requests
      2 requests have no known upper bound
      requests without a price: 1 of claude-nobody-9 (name one with --prices)
      """

  Scenario: A run that can cost more than is confirmed is not sent
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 10 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --confirm-above 0.01 asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      estimate: about $0.00
      more than --confirm-above $0.01, and there is no terminal to confirm it on
      """
    And the command line has sent nothing
    And the command line's ledger has 0 runs
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --confirm-above 1 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --confirm-above 0.01 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      the answers are given again at no cost
      """
    And the command line does not say: estimate

  Scenario: The requests that a known run sends again are confirmed first, and only these
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "one"
      "two [[sandbox:canceled]]"
      "three [[sandbox:canceled]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has caused 1 batches of 3 requests
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --confirm-above 0.001
    Then the command line exits with 2 and says
      """
      estimate for the 2 of 3 requests that are still to be sent: about $0.00
      more than --confirm-above $0.001, and there is no terminal to confirm it on
      Nothing was sent
      """
    And the command line does not say: sent again
    And the command line has caused 1 batches of 3 requests
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --confirm-above 1
    Then the command line exits with 1 and says
      """
      2 failed requests are sent again
      """
    And the command line has caused 2 batches of 5 requests

  Scenario: The unsent requests of a known run are confirmed before a higher budget sends them
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --budget 0
    Then the command line exits with 3
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --budget 5 --confirm-above 0
    Then the command line exits with 2 and says
      """
      estimate: about $0.00
      more than --confirm-above $0, and there is no terminal to confirm it on
      """
    And the command line has sent nothing
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --budget 5 --confirm-above 5
    Then the command line exits with 0

  Scenario: A known run that was parked before it was sent is not sent while its question is open
    Given a command's API with {"faults": {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    Then the command line exits with 4
    When the API has no faults any more
    And a command's question "Send it? [y/N]:" is answered with n: run actor.yaml asks.jsonl -o out.jsonl --confirm-above 0
    Then the command line exits with 2 and says ", and was not confirmed. Nothing was sent"
    And the command line has caused 0 batches of 0 requests
    When a command's question "Send it? [y/N]:" is answered with y: run actor.yaml asks.jsonl -o out.jsonl --confirm-above 0
    Then the command line exits with 0 and says "finished: 2 succeeded of 2"
    When a command runs: submit actor.yaml asks.jsonl --confirm-above 0
    Then the command line exits with 0
    And the command line does not say: estimate

  Scenario: A budget that cannot reserve a whole run at once is reported before anything is sent
    Given a command's API with {"latency": 1}
    And a command's file "asks.jsonl" of 4 prompts
    When a command runs: run --model claude-haiku-4-5 --budget 0.03 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      the run's budget can reserve at most $0.03 now, not $0.04
      2 requests are held: the run's budget is $0.03, $0 of it spent
      ; wait for earlier answers, or raise it with `claude-batch budget RUN USD`
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 10 --budget 0.03 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line does not say: can reserve at most
    When a command runs: run --model claude-haiku-4-5 --max-tokens 4000 --budget 0.0001 asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      the run's budget can reserve at most $0.0001 now, not $0.0443, so not all requests are sent together
      """
    And the command line does not say: wait for earlier answers

  Scenario: A budget of an actor or a day that cannot reserve a whole run is reported like the run's own
    Given a command's API
    And a command's file "asks.jsonl" of 4 prompts
    When a command runs: run --model claude-haiku-4-5 --daily-budget 0.03 --budget 5 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      the budget of this day (UTC) can reserve at most $0.03 now, not $0.04
      """
    When a command runs: budget --daily 5
    And a command runs: run --new --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line does not say: can reserve at most
    Given a command's environment has CLAUDE_BATCH_ACTOR_BUDGET_USD = 0.03
    When a command runs: run --new --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      the budget of the actor local/command-line can reserve at most $0.02966 now, not $0.04
      """

  Scenario Outline: Each request of a large run counts for its confirmation: <what>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 60 requests that use {"input_tokens": 10, "output_tokens": 20}
    And the line 6 of "asks.jsonl" is that of a request for <what>
    When a command runs: run --model claude-haiku-4-5 --max-tokens 10 --confirm-above 0.1 asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      this can cost <most>, more than --confirm-above $0.10, and there is no terminal to confirm it on. <helps>
      """
    And the command line has sent nothing
    When a command runs: run --model claude-haiku-4-5 --max-tokens 10 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      , at most about $0.0
      """

    Examples:
      | what                                 | most              | helps                                                |
      | 60000 tokens of claude-haiku-4-5     | $0.1730           | Raise --confirm-above, or leave it out and set --budget |
      | 5 tokens of claude-nobody-9          | an unknown amount | To bound it, name the price of claude-nobody-9 with --prices; or leave out --confirm-above |

  Scenario: A run that is continued is estimated as it is sent, also if the repeated command says otherwise
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --mode live --budget 0
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --budget 100 --confirm-above 0.03
    Then the command line exits with 2 and says
      """
      this can cost $0.0454, more than --confirm-above $0.03, and there is no terminal to confirm it on
      """
    And the command line has sent nothing
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --budget 100 --confirm-above 0.05
    Then the command line exits with 0

  Scenario: The question about a run that is stored slowly is asked alone on its line
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a limit of 0 seconds between two lines about stored requests
    When a command's question "Send it? [y/N]:" is answered with y: run actor.yaml asks.jsonl -o out.jsonl --confirm-above 0
    Then the command line exits with 0 and says "finished: 2 succeeded of 2"

  Scenario Outline: The question about a run that can cost more is answered with <answer>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 10 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command's question "Send it? [y/N]:" is answered with <answer>: run --model claude-haiku-4-5 --max-tokens 1000 --confirm-above 0.01 asks.jsonl
    Then the command line exits with <code> and says "<told>"
    And the command line does not say: Aborted
    And the command line's ledger has <runs> runs

    Examples:
      | answer | code | told                                    | runs |
      | y      | 0    | finished: 10 succeeded of 10            | 1    |
      | n      | 2    | , and was not confirmed. Nothing was sent | 0    |
      | Ctrl-D | 2    | , and was not confirmed. Nothing was sent | 0    |
      | Ctrl-C | 3    | nothing was stored or sent              | 0    |

  Scenario Outline: A run that is sent live, or may have to be, is estimated at live prices: <flags>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 20 requests that use {"input_tokens": 40, "output_tokens": 100}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl -o out.jsonl
    And a command runs: estimate --offline --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --json <flags>
    Then the command line's status as JSON has
      | field     | value     |
      | way       | <way>     |
      | cost      | <cost>    |
      | live_cost | 10800000  |
      | batches   | <batches> |
      | cost_most | <most>    |
    When a command runs: estimate --offline --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl <flags>
    Then the command line prints
      """
      <says>
      """

    Examples:
      | flags                           | way      | cost     | batches | most      | says                                      |
      | --mode batch                    | "batch"  | 5400000  | 1       | 57173050  | the sum that a budget reserves            |
      | --mode live                     | "live"   | 10800000 | 0       | 114346100 | all requests are sent live, at full price |
      | --mode auto                     | "either" | 5400000  | 1       | 114346100 | if all requests have to be sent live      |
      | --mode auto --auto-threshold 20 | "live"   | 10800000 | 0       | 114346100 | cost live                                 |
      | --deadline 2h                   | "either" | 5400000  | 1       | 114346100 | if all requests have to be sent live      |
      | --deadline 2h --fallback none   | "batch"  | 5400000  | 1       | 57173050  | batches save                              |

  Scenario: A run whose requests may take more turns is confirmed by the cost of all turns
    Given an API that bills what its prompts say
    And a command's file "actor.yaml"
      """
      name: tests/asker
      model: claude-haiku-4-5
      options: {max_tokens: 1000}
      response_format: {type: object, properties: {a: {type: string}}}
      batch_processing: {validation_attempts: 5}
      """
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 10}
    When a command runs: run actor.yaml asks.jsonl --confirm-above 0.005
    Then the command line exits with 2 and says
      """
      at most $0.003761 for first turns, $0.0358 for up to 5 (without what tools return)
      this can cost $0.0358 in up to 5 turns, more than --confirm-above $0.005
      """
    And the command line has caused 0 batches of 0 requests

  Scenario: An answer of a type may be asked for again with citations, too
    Given an API
    And a batch provider with {"validation_attempts": 3}
    And the documents
      | file        | content        |
      | receipt.txt | text Receipt 7 |
    Then a request about "receipt.txt" as Receipt, with citations, may take 3 turns

  Scenario: PDFs are estimated by their pages, and never at more than they can come to
    Given a command's API
    And a command's 100 invoices of one page, asked about in "asks.jsonl"
    When a command runs: estimate --model claude-haiku-4-5 --offline asks.jsonl
    Then the command line prints
      """
      tokens in: about 38
      """
    Given a document "scan.pdf" of 1 page and 100000 bytes
    When a command runs: estimate --model claude-haiku-4-5 --offline --document scan.pdf - --json
      """
      "What is it?"
      """
    Then the command line's status as JSON has
      | field        | value    |
      | input_tokens | 3869     |
      | cost         | 4494500  |
      | cost_most    | 16643550 |

  Scenario Outline: An estimate in Python is the command's, and stores nothing: <how>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 30 lines like
      """
      "(2000 letters)"
      """
    And a batch provider
    When 30 requests of 2000 bytes are estimated, <how>
    Then the estimate's fields are
      | field    | value     |
      | requests | 30        |
      | way      | "batch"   |
      | counted  | <counted> |
      | batches  | 1         |
    And there is no ledger yet
    When a command runs: estimate --json --model claude-haiku-4-5 asks.jsonl <flags>
    Then the estimate is the command's for the same requests

    Examples:
      | how                                   | counted | flags     |
      | asynchronously                        | "counted" |           |
      | from an async iterable, offline       | "rule"    | --offline |
      | synchronously in a loop that runs     | "counted" |           |

  Scenario: An estimate of a live actor has the live price
    Given an API that bills what its prompts say
    And a live actor
    When 3 requests of 100 bytes are estimated, synchronously
    Then the estimate's fields are
      | field          | value |
      | requests       | 3     |
      | way            | "live" |
      | batches        | 0     |
      | saved_by_batch | 0     |

  Scenario: Nothing to estimate, or a request that cannot be sent, is refused
    Given an API that bills what its prompts say
    And a batch provider
    When 0 requests of 10 bytes are estimated, offline
    Then the error is a InvalidRequestError that says
      """
      there are no requests to estimate
      """
    When 1 requests of 0 bytes are estimated, offline
    Then the error is a InvalidRequestError
