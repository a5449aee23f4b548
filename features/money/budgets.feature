@both_backends
Feature: What a run, an actor or a day may cost is never passed
  Before a request is packed the most that it can cost is reserved; what does not fit is held.

  Scenario: A request that does not fit is held, and goes on when the budget is raised
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 12 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0045 asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      RUN: 
      requests are held: the run's budget is $0.0045
      raise it with `claude-batch budget RUN USD`
      """
    And the command line has left no "out.jsonl"
    And the API's bill is within $0.0045, and has answers
    When a command runs: status RUN --json
    Then the command line's status as JSON has
      | field | value  |
      | state | "held" |
    When a command runs: budget RUN 1
    Then the command line exits with 0 and says
      """
      RUN: the budget is now $1
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0045 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the file "out.jsonl" has 12 answers
    And the API has processed 12 requests, none twice
    When a command runs: cost RUN --json
    Then the cost is what the API's bill comes to
    When a command runs: budget RUN
    Then the command line prints
      """
      RUN: budget $1, spent $0.006060, reserved $0.00, left $0.9939
      """

  Scenario: A single call that no budget has room for is refused, and another is not
    Given an API that bills what its prompts say
    And a batch provider with {"budget_usd": "0.004"}
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 2000 tokens at most
    Then the call is refused with BudgetExceededError: the call can cost up to
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 1000 tokens at most
    Then the call has its answer
    When somebody asks {"input_tokens": 10, "output_tokens": 1000} with 1000 tokens at most
    Then the call has its answer
    When somebody asks {"input_tokens": 11, "output_tokens": 200} with 1000 tokens at most
    Then the call is refused with BudgetExceededError: 1 request is held: the run's budget is $0.004
    And in the ledger the states of the requests are ["succeeded", "succeeded", "queued"]
    And the API's bill is within $0.004, and has answers

  Scenario: A call that waits ends when a budget comes for which it is too dear, and an equal call joins it
    Given an API
    And a batch provider with {"linger": "2s"}
    When "hello" is asked in the background
    Then in the ledger the states of the requests come to be ["queued"]
    When a command runs: budget --actor tests/asker 0.000001
    And the calls in the background have ended
    Then every call fails with BudgetExceededError
    When a command runs: budget --actor tests/asker 1
    And "hello" is asked in the background
    And the calls in the background have ended
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario: Observers are notified of a single call that a budget holds
    Given an API that bills what its prompts say
    And an observer that remembers
    And a batch provider that is observed with {"budget_usd": "0.003"}
    When somebody asks {"input_tokens": 10, "output_tokens": 900} with 1000 tokens at most
    Then the call has its answer
    When somebody asks {"input_tokens": 11, "output_tokens": 900} with 1000 tokens at most
    Then the call is refused with BudgetExceededError: 1 request is held: the run's budget is $0.003
    And the event RunHeld has scope "run"
    And the event RunHeld has requests 1

  Scenario: Each turn of a conversation is reserved by itself, and what they all cost is spent
    Given an API
    And a batch provider with {"budget_usd": "1"}
    When the actor is asked: "Search [[sandbox:pause:2]]"
    Then it is answered in 3 turns, each in a batch of its own
    And what is reserved of each request is what its last turn can cost
    And the budgets account for the API's bill

  Scenario: A budget that comes after conversations counts what each of their turns has cost
    Given an API
    And a batch provider
    When the actor is asked: "Search [[sandbox:pause:2]]"
    Then it is answered in 3 turns, each in a batch of its own
    When a command runs: budget --actor tests/asker 1
    Then the command line exits with 0
    And the budgets account for the API's bill

  Scenario: A turn that is queued while a new budget computes what the one before can cost reserves its own
    Given a command's API with {"latency": 3000}
    And a command's file "asks.jsonl"
      """
      {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}}, {"type": "text", "text": "Search [[sandbox:pause:1]]"}]}]}
      """
    When a command runs: submit actor.yaml asks.jsonl
    Given PDFs that take 1 second to be bounded
    When the API's clock goes 1 hours on
    And this process opens that run and drives
    And a command runs: budget RUN 1
    Then in the ledger the states of the batches are ["collected", "in_progress"]
    And what is reserved of each request is what its last turn can cost

  Scenario: A batch that is collected while a new budget computes what it can cost counts with what it cost
    Given a command's API with {"latency": 3000}
    And a command's file "asks.jsonl"
      """
      {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}}, {"type": "text", "text": "Search"}]}]}
      """
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: budget --actor other/one 1
    Given PDFs that take 1 second to be bounded
    When the API's clock goes 1 hours on
    And this process opens that run and drives
    And a command runs: budget RUN 1
    Then in the ledger the states of the batches are ["collected"]
    And the budgets account for the API's bill

  Scenario Outline: A budget for an actor without a run is stored, with a warning: <actor>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: budget --actor tests/asker 2
    Then the command line does not say: warning
    When a command runs: budget --actor <actor> 3
    Then the command line exits with 0 and says
      """
      actor <actor>: the budget is now $3
      warning: this ledger has no run of the actor <actor>; the budget counts from its first one. <hint>
      """
    When a command runs: budget --actor <actor> none
    Then the command line exits with 0 and says
      """
      actor <actor>: the budget was removed
      """
    And the command line does not say: warning

    Examples:
      | actor       | hint                       |
      | tests/askre | Did you mean tests/asker?  |
      | other/one   | It has runs of tests/asker |

  Scenario: A conversation whose next turn does not fit is held, and goes on when the budget is raised
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "Search [[sandbox:pause:1]]"
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0029 asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      1 request is held: the run's budget is $0.0029
      """
    And the API's bill is within $0.0029, and has 1 answers
    When a command runs: budget RUN 1
    And a command runs: resume RUN
    Then the command line exits with 0
    And the API's bill is within $1, and has 2 answers
    And the budgets account for the API's bill

  Scenario Outline: A budget answers the conversations that have begun before it begins others: <mode>
    Given an API that calls a tool twice before each answer, and bills <tokens> tokens in and 200 out a turn
    And a batch provider with {"mode": "<mode>", "live_concurrency": 1, "budget_usd": "<budget>"}
    And its actor's file has
      """
      tools: [toolbox:population]
      options: {max_tokens: 256}
      """
    When 30 conversations are asked as one run: "Look at {n}"
    Then the results by place have
      | field   | value |
      | 0.ok    | true  |
      | <ok>.ok | true  |
      | 29.ok   | false |
    And the budgets account for the API's bill

    Examples: what 10 conversations of 3 turns cost
      | mode  | tokens | budget | ok |
      | batch | 2000   | 0.045  | 2  |
      | live  | 2000   | 0.09   | 2  |

    Examples: more than the first turns of all can cost
      | mode  | tokens | budget | ok |
      | batch | 700    | 0.05   | 14 |

  Scenario: A budget keeps no room for a next turn that max_turns does not allow
    Given an API that calls a tool twice before each answer, and bills 2000 tokens in and 200 out a turn
    And a batch provider with {"max_turns": 1, "budget_usd": "0.024"}
    And its actor's file has
      """
      tools: [toolbox:population]
      options: {max_tokens: 256}
      """
    When 10 conversations are asked as one run: "Look at {n}"
    Then result 1 failed with TurnLimitError
    And result 10 failed with TurnLimitError
    And the API has seen 1 batch

  Scenario: The result of a conversation that is held between two turns counts the answers that were paid for
    Given an API that calls a tool twice before each answer, and bills 2000 tokens in and 200 out a turn
    And a batch provider with {"budget_usd": "0.0045"}
    And its actor's file has
      """
      tools: [toolbox:population]
      options: {max_tokens: 256}
      """
    When 1 conversations are asked as one run: "Look at {n}"
    Then result 1 failed with BudgetExceededError
    And the error is a BudgetExceededError that says
      """
      request at position 0: its next turn was not sent (the 2 answers before it were billed and kept): run-
      """

  Scenario: A run is parked whose conversations lack their tools while a budget holds its other requests
    Given a command's API
    And a command's file "tides.py"
      """
      def tide() -> str: return "high"
      """
    And a command's file "tools.yaml"
      """
      name: tests/asker
      model: claude-haiku-4-5
      tools: [tides:tide]
      options: {max_tokens: 40}
      batch_processing: true
      """
    And a command's file "asks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      "Look at Brest [[sandbox:tools]]"
      "Look at Turku [[sandbox:tools]]"
      """
    When a command's process dies at after_stored: run tools.yaml asks.jsonl --budget 0.0012 -o out.jsonl
    And a command runs: resume --max-wait 60s
    Then the command line exits with 3 and says
      """
      wait for tools that this process does not have
      """
    When a command runs: advance
    Then the command line exits with 3 and says
      """
      its conversations wait for tools that this process does not have
      """

  Scenario: Under a budget it must be known what a request can cost
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      {"id": "plain", "prompt": "{\"input_tokens\": 5, \"output_tokens\": 5}"}
      {"id": "unpriced", "params": {"model": "claude-nobody-9", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}}
      {"id": "searches", "params": {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}}
      {"id": "runs", "params": {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}}
      """
    When a command runs: run --model claude-haiku-4-5 --budget 1 asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      the run's budget needs an upper bound of the cost: the price of the model claude-nobody-9 is not known; correct the model's name, or name its price in a file of prices (--prices); use --skip-invalid to leave out such items
      """
    And the command line has sent nothing
    When a command runs: run --model claude-hiaku-4-5 --budget 1 --skip-invalid asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      the run's budget needs an upper bound of the cost: the price of the model claude-hiaku-4-5 is not known; correct the model's name
      """
    And the command line does not say: skip
    When a command runs: run --model claude-haiku-4-5 --budget 1 --skip-invalid asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      'searches': the run's budget needs an upper bound of the cost: the tool web_search_20250305 may search without limit
      'runs': the run's budget needs an upper bound of the cost: the tokens and cost of the tool code_execution_20250825 have no known bound
      skipped 3 of 4 items
      """

  Scenario: A request whose highest cost no ledger can store stops no other request
    Given an API that bills what its prompts say
    And a command's file "huge.jsonl"
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "{\"input_tokens\": 5, \"output_tokens\": 5}"}], "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 9223372036854775807}]}}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 20}
    When a command runs: run --model claude-haiku-4-5 --budget 1 huge.jsonl -o huge.out
    Then the command line exits with 2 and says
      """
      the run's budget needs an upper bound of the cost: one request may cost more than $100,000; lower its `max_tokens`, or the `max_uses` of its tools
      """
    And the command line has sent nothing
    Given the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: run --model claude-haiku-4-5 huge.jsonl --max-wait 0.4s
    Then the command line exits with 3
    When a command runs: budget --daily 1
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the file "out.jsonl" has 2 answers

  Scenario: A budget of a day and one of an actor bound what several runs cost together
    Given an API that bills what its prompts say
    And a command's file "one.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 900}
    And a command's file "two.jsonl" of 3 requests that use {"input_tokens": 11, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --daily-budget 0.01 one.jsonl -o one.out
    Then the command line exits with 0
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --max-wait 6s two.jsonl -o two.out
    Then the command line exits with 3 and says
      """
      timed out
      requests are held: the budget of this day (UTC) is $0.01
      wait for the next day, or raise it with `claude-batch budget --daily USD`
      """
    And the API's bill is within $0.01, and has answers
    When a command runs: budget --daily none --actor local/command-line 0.0125
    Then the command line exits with 0
    When a command runs: resume RUN
    Then the command line exits with 3 and says
      """
      the budget of the actor local/command-line is $0.0125
      """
    And the API's bill is within $0.0125, and has answers
    When a command runs: budget --actor local/command-line none
    And a command runs: resume RUN
    Then the command line exits with 0
    And the API has processed 6 requests, none twice

  Scenario: A command that names budgets shows these, and not those of all other runs
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl -o one.out
    And a command runs: budget --actor local/command-line 2 --daily 3
    Then the command line prints
      """
      actor local/command-line: budget $2, spent $0.002255, reserved $0.00, left
      today (UTC): budget $3, spent $0.002255, reserved $0.00, left
      """
    And the command line does not print: run-
    When a command runs: budget RUN 4
    Then the command line prints
      """
      RUN: budget $4, spent $0.002255, reserved $0.00, left
      """
    And the command line does not print: today (UTC)
    When a command runs: budget --daily none --json
    Then the command line prints
      """
      []
      """

  Scenario Outline: A run for which no day would have room does not wait for the next one: <flags>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --max-wait 6s <flags> asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      held: RUN: 3 requests are held: <budget>, $0 of it spent, $0 reserved; the smallest may cost $0.00
      ; raise it with `<raise>`. Nothing was marked failed
      """
    And the command line does not say: timed out
    And the command line has sent nothing

    Examples:
      | flags                               | budget                                 | raise                           |
      | --daily-budget 0.001                | the budget of this day (UTC) is $0.001 | claude-batch budget --daily USD |
      | --daily-budget 0                    | the budget of this day (UTC) is $0     | claude-batch budget --daily USD |
      | --daily-budget 0.001 --budget 0.002 | the budget of this day (UTC) is $0.001 | claude-batch budget --daily USD |

  Scenario: A run that its own budget holds for good does not wait for the next day
    Given an API that bills what its prompts say
    And a command's file "one.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 900}
    And a command's file "two.jsonl" of 3 requests that use {"input_tokens": 11, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --daily-budget 0.009 one.jsonl -o one.out
    Then the command line exits with 0
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --max-wait 6s --budget 0.0025 two.jsonl
    Then the command line exits with 3 and says
      """
      held: RUN: 3 requests are held: the run's budget is $0.0025, $0 of it spent, $0 reserved
      raise it with `claude-batch budget RUN USD`
      """
    And the command line does not say: timed out

  Scenario Outline: A budget that is set or lowered after packing holds what was not sent yet: <how>
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    And a command's file "asks.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 <first> asks.jsonl --max-wait 0.4s
    Then the command line exits with 3
    When a command runs: <lowered>
    And a command runs: <again>
    Then the command line exits with 3 and says
      """
      is $0.003,
      """
    And the API's bill is within $0.003, and has 1 answers
    When a command runs: budget RUN
    Then the command line prints
      """
      budget $0.003, spent $0.0025
      """

    Examples:
      | how            | first       | lowered            | again                                                                                |
      | by a command   |             | budget RUN 0.003   | resume RUN --max-wait 20s                                                            |
      | lowered        | --budget 1  | budget RUN 0.003   | resume RUN --max-wait 20s                                                            |
      | by a flag      |             | status             | run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.003             |
      | raised, and by a flag lowered | --budget 1 | status | run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.003              |

  Scenario Outline: A price of one's own bounds each name under which the model may answer: <named>
    Given an API that bills what its prompts say
    And a file of prices "prices.yaml"
      """
      <named>: {input: 100, output: 500}
      """
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model <asked> --max-tokens 1000 asks.jsonl --prices prices.yaml --budget 0.01
    Then the command line exits with 3 and says
      """
      the smallest may cost $0.2
      """
    And the command line has caused 0 batches of 0 requests
    When a command runs: budget RUN 1
    And a command runs: resume RUN --prices prices.yaml
    Then the command line exits with 0 and says
      """
      cost $0.2505
      """

    Examples:
      | named                     | asked             |
      | claude-haiku-4-5-20251001 | claude-haiku-4-5  |
      | claude-sonnet-4-0         | claude-sonnet-4-0 |

  Scenario: Queued requests reserve again when prices have changed
    Given an API that bills what its prompts say
    And a file of prices "prices.yaml"
      """
      claude-haiku-4-5: {input: 10, output: 50}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.003
    Then the command line exits with 3
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.006 --prices prices.yaml
    Then the command line exits with 3 and says
      """
      1 request is held: the run's budget is $0.006
      the smallest may cost $0.028
      """
    And the API's bill is within $0.006, and has 1 answers

  Scenario: A process uses one list of prices until its providers are closed, and warns when the file has changed
    Given an API
    When this program runs
      """
      import logging, os, threading
      from pathlib import Path

      file = Path(os.environ["CLAUDE_BATCH_LEDGER"]).with_name("prices.yaml")
      warned = threading.Event()

      def price(dollars):
          file.write_text(f"claude-haiku-4-5: {{input: {dollars}, output: 10}}")

      class Warnings(logging.Handler):
          def emit(self, record):
              print("warning:", "that it has read. Restart it" in record.getMessage())
              warned.set()

      def costs(provider, prompt):
          run = cb.Actor(asker, provider).submit_sync([prompt], budget_usd=1)
          run.wait_sync()
          return run.cost().total.cost_usd

      logging.getLogger("claude_batch").addHandler(Warnings())
      price(1)
      with cb.ClaudeBatchProvider(prices=str(file), **settings) as provider:
          before = costs(provider, "one")
          price(100000)
          later = costs(provider, "two")
          warned.wait(20)
          with cb.ClaudeBatchProvider(prices=str(file), **settings) as other:
              print(before == later == costs(other, "six"))
      price(1000)
      with cb.ClaudeBatchProvider(prices=str(file), **settings) as provider:
          print(costs(provider, "ten") > 2 * before)
      """
    Then the program has printed
      """
      warning: True
      True
      True
      """

  Scenario Outline: A request that waits again gets a new reservation if prices have changed meanwhile: <how>
    Given an API that bills what its prompts say, with {"latency": 1}
    And a file of prices "prices.yaml"
      """
      claude-haiku-4-5: {input: 10, output: 50}
      """
    And the API has the faults
      """
      {"requests": [{"contains": "note", "nth": [1], "outcome": "expired"}]}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: <first> --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.006
    And a command runs: <again> RUN --prices prices.yaml
    Then the command line exits with 3 and says
      """
      held: the run's budget is $0.006
      the smallest may cost $0.028
      """
    And the API's bill is within $0.006, and has 1 answers

    Examples:
      | how                       | first                | again  |
      | it is retried             | submit               | resume |
      | it is sent again on order | run --max-attempts 1 | retry  |

  Scenario: A request that waits for a primer gets a new reservation if prices have changed meanwhile
    Given an API that bills what its prompts say, with {"latency": 3600}
    And a file of prices "prices.yaml"
      """
      claude-haiku-4-5: {input: 10, output: 50}
      """
    And a command's file "asks.jsonl" of 4 lines like
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 1000, "system": "(20000 letters)", "messages": [{"role": "user", "content": "{\"input_tokens\": 10, \"output_tokens\": 1000, \"note\": N}"}]}}
      """
    When a command runs: submit --model claude-haiku-4-5 asks.jsonl --cache auto --prime --budget 0.14
    Then in the ledger the states of the requests are ["packed", "packed", "packed", "held"]
    When the sandbox's batches have had their time
    And a command runs: resume RUN --prices prices.yaml
    Then the command line exits with 3 and says
      """
      1 request is held: the run's budget is $0.14
      """
    And the API's bill is within $0.14, and has 3 answers

  Scenario: A price that was missing is learned later
    Given an API that bills what its prompts say
    And a file of prices "prices.yaml"
      """
      claude-opus-9: {input: 10, output: 50}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-opus-9 --max-tokens 1000 asks.jsonl --no-preflight --max-wait 0.4s
    And a command runs: budget RUN 5
    And a command runs: resume RUN --max-wait 20s
    Then the command line exits with 3 and says
      """
      give a price (--prices) or a limit
      """
    When a command runs: resume RUN --prices prices.yaml --max-wait 20s
    Then the command line exits with 0
    And the API has processed 2 requests, none twice

  Scenario: A conversation whose turns had no price has its cost once they have one
    Given a command's API
    And a file of prices "prices.yaml"
      """
      claude-opus-9: {input: 10, output: 50}
      """
    And a command's file "asks.jsonl" of the bytes b'{"prompt": "Search [[sandbox:pause:2]]"}\n'
    When a command runs: run --model claude-opus-9 --max-tokens 1000 asks.jsonl --no-preflight
    Then the command line exits with 0
    When a command runs: cost --prices prices.yaml
    And a command runs: results RUN
    Then the command line prints
      """
      "cost_usd":0.0
      """

  Scenario Outline: An answer without a price is in doubt for a budget that comes later: <mode>
    Given an API that bills what its prompts say
    And a file of prices "prices.yaml"
      """
      claude-opus-9: {input: 10, output: 50}
      """
    And a command's file "one.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    And a command's file "two.jsonl" of 1 requests that use {"input_tokens": 11, "output_tokens": 1000}
    When a command runs: run --model claude-opus-9 --max-tokens 1000 --mode <mode> one.jsonl
    And a command runs: budget --actor local/command-line 0.05
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 two.jsonl
    Then the command line exits with 3 and says
      """
      RUN: 1 request is held: the budget of the actor local/command-line is $0.05
      """
    And the API has processed 1 requests, none twice
    When a command runs: cost --prices prices.yaml
    And a command runs: resume RUN
    Then the command line exits with <exit>

    Examples:
      | mode  | exit |
      | batch | 0    |
      | live  | 3    |

  Scenario Outline: An answer without a price stays in doubt when its run is removed: <mode>
    Given an API that bills what its prompts say
    And a command's file "one.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    And a command's file "two.jsonl" of 1 requests that use {"input_tokens": 11, "output_tokens": 1000}
    When a command runs: run --model claude-opus-9 --max-tokens 1000 --mode <mode> one.jsonl -o one.out
    And a command runs: ledger prune --older-than 0s
    Then the command line exits with 0 and says
      """
      1 answer of unknown cost: a budget that is set later counts the most that each can have cost
      """
    When a command runs: budget --actor local/command-line 0.05
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 two.jsonl
    Then the command line exits with 3 and says
      """
      is held
      """
    And the API has processed 1 requests, none twice

    Examples:
      | mode  |
      | batch |
      | live  |

  Scenario: An answer is priced, if it can be, before its run is removed
    Given an API that bills what its prompts say
    And a file of prices "own.yaml"
      """
      claude-nobody-9: {input: 1, output: 5}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-nobody-9 --max-tokens 1000 asks.jsonl -o out.jsonl
    And a command runs: ledger prune --older-than 0s --prices own.yaml
    And a command runs: budget --actor local/command-line 1
    And a command runs: budget
    Then the command line prints
      """
      actor local/command-line: budget $1, spent $0.001010, reserved $0.00, left
      """

  Scenario Outline: A PDF that takes a second to be bounded blocks no event loop: <how> <settings>
    Given an API
    And PDFs that take 1 second to be bounded
    And a batch provider with <settings>
    When 2 PDFs are asked about by <how>, while the event loops are watched
    Then all 2 are answered
    And no event loop was blocked meanwhile
    And the budgets account for the API's bill

    Examples:
      | how                       | settings                            |
      | calls                     | {"budget_usd": "1", "linger": 0}    |
      | calls                     | {"budget_usd": "1", "mode": "live"} |
      | a run                     | {"budget_usd": "1"}                 |
      | a run                     | {"budget_usd": "1", "mode": "live"} |
      | a run with a later budget | {"drive": false}                    |
      | a run with a later budget | {"drive": false, "mode": "live"}    |

  Scenario Outline: However large requests are, a few megabytes of them are read for a budget at once: <what>
    Given a command's API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 401}},
                 {"route": "messages", "action": {"type": "error", "status": 401}}]}
      """
    And a command's file "asks.jsonl" of 12 prompts of 1000000 bytes, and one of 10000000
    When a command runs: submit actor.yaml asks.jsonl <flags>
    Then the command line exits with 4
    And 13 requests <what> are read for a budget, 8 MB at once, or a single one

    Examples:
      | what                      | flags       |
      | in a batch                |             |
      | that wait for a live call | --mode live |

  Scenario: A call whose PDF is being bounded ends with its provider
    Given an API
    And PDFs that take 1 second to be bounded
    And a batch provider with {"budget_usd": "1"}
    When a PDF is asked about, and the provider is closed before it is bounded
    Then the call is refused with EngineStoppedError: the provider is closed

  Scenario: A batch that its budget does not count is tried again at growing intervals
    Given an API
    And budgets that count no batch
    And a batch provider with {"budget_usd": "1"}
    When a run of 1 prompts is stored at once
    And 4 seconds pass
    Then the API was called at most 8 times by GET /v1/messages/batches
    And the API was called 0 times by POST /v1/messages/batches
    And the run waits because of "is not counted yet"
    When budgets count all batches again
    And the run is finished at last
    Then the budgets account for the API's bill

  Scenario: A budget given for a finished run counts at once what was spent
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.01
    And a command runs: budget RUN
    Then the command line prints
      """
      budget $0.01, spent $0.007515, reserved $0.00
      """

  Scenario Outline: A budget that was removed does not come back with the same flag: <flag>
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl <flag> 0.05
    And a command runs: budget <removed> none
    And a command runs: budget <removed> none
    Then the command line says
      """
      : there was no budget
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl <flag> 0.05
    And a command runs: budget --json
    Then the command line prints
      """
      []
      """
    When a command runs: budget <removed> 0.07
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl <flag> 0.05
    And a command runs: budget
    Then the command line prints
      """
      budget $0.07
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl <flag> 0.06
    And a command runs: budget
    Then the command line prints
      """
      budget $0.06
      """

    Examples:
      | flag           | removed |
      | --budget       | RUN     |
      | --daily-budget | --daily |

  Scenario: The budget that an actor's file names bounds no call after it was removed
    Given an API that bills what its prompts say
    And a batch provider with {"actor_budget_usd": "0.004"}
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 1000 tokens at most
    Then the call has its answer
    When a command runs: budget --actor tests/asker none
    And somebody asks {"input_tokens": 11, "output_tokens": 200} with 3000 tokens at most
    Then the call has its answer
    When the provider is made anew
    And somebody asks {"input_tokens": 12, "output_tokens": 200} with 3000 tokens at most
    Then the call has its answer

  Scenario: A command that is repeated with a budget leaves nothing more in the ledger
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 20}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.05 -o out.jsonl
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.05 -o out.jsonl
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.05 -o out.jsonl
    Then the ledger remembers 0 removed budgets
    When a command runs: ledger prune --older-than 0s
    Then the ledger remembers 0 removed budgets

  Scenario: A command that continues a run with a budget sends nothing before the budget counts
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.003
    And a command runs: budget RUN 1
    And a command runs, whose pipe "slow.jsonl" gives the lines of "asks.jsonl" late: run --model claude-haiku-4-5 --max-tokens 1000 slow.jsonl --budget 0.0031
    Then the command line exits with 3 and says
      """
      RUN: 2 requests are held: the run's budget is $0.0031
      """
    And the API's bill is within $0.0031, and has 1 answers

  Scenario: The budget of the day warns on each day, and once on each
    Given an API that bills what its prompts say
    And a command's file "one.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 980}
    And a command's file "two.jsonl" of 1 requests that use {"input_tokens": 11, "output_tokens": 980}
    And a command's file "three.jsonl" of 1 requests that use {"input_tokens": 12, "output_tokens": 10}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --daily-budget 0.0029 one.jsonl
    Then the command line says
      """
      80 % of the budget of this day (UTC) is spent
      """
    When the ledger's batches are moved to the day before
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 two.jsonl
    Then the command line says
      """
      80 % of the budget of this day (UTC) is spent
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 10 three.jsonl
    Then the command line exits with 0
    And the command line does not say: % of the budget

  Scenario: A batch that was packed yesterday and is sent today costs what it costs today
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    And a command's file "one.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 1000}
    And a command's file "two.jsonl" of 3 requests that use {"input_tokens": 11, "output_tokens": 1000}
    When a command runs: budget --daily 0.0105
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 one.jsonl --max-wait 0.4s
    And the ledger's batches are moved to the day before
    And a command runs: resume RUN --max-wait 20s
    And a command runs: run --model claude-haiku-4-5 --max-tokens 1000 two.jsonl --max-wait 6s
    Then the command line exits with 3 and says
      """
      are held: the budget of this day (UTC) is $0.0105
      """
    And the API's bill is within $0.0105, and has answers

  Scenario Outline: A request that may have been paid for keeps its reservation, and reserves again when it is sent again: <budget>
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3600}}]}
      """
    And a command's environment has CLAUDE_BATCH_SETTLING = 1h
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 <first> asks.jsonl -o out.jsonl
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 0
    When a command runs: budget RUN 0.004
    And a command runs: resume RUN --max-wait 4s
    Then the command line exits with 3 and says
      """
      1 request is held: the run's budget is $0.004, $0 of it spent, $0.00285
      """
    When a command runs: budget RUN 0.006
    And a command runs: resume RUN
    Then the command line exits with 0
    And the API's bill is within $0.006, and has 2 answers
    And the budgets account for the API's bill

    Examples:
      | budget               | first          |
      | set with the run     | --budget 0.004 |
      | set after it is sent |                |

  Scenario: A sending that is disproved gives its reservation back
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "hang", "seconds": 0.4}}]}
      """
    And a command's environment has CLAUDE_BATCH_SETTLING = 1s
    And a command's file "asks.jsonl" of 1 requests that use {"input_tokens": 10, "output_tokens": 1000}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.004 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API's bill is within $0.004, and has 1 answers
    And the budgets account for the API's bill

  Scenario: A line that is lost counts as spent, until the request is sent again and after
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "results", "times": 5, "action": {"type": "missing_lines", "after_lines": 0, "count": 1}}]}
      """
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.006 asks.jsonl -o out.jsonl
    Then the command line exits with 1
    When a command runs: budget RUN
    Then the command line prints
      """
      spent $0.000505, reserved $0.00, in doubt $0.00
      """
    When a command runs: unknown RUN --resubmit
    And a command runs: resume RUN
    Then the command line exits with 3 and says
      """
      1 request is held: the run's budget is $0.006
      """
    When a command runs: budget RUN 1
    And a command runs: resume RUN
    Then the command line exits with 0
    And the API's bill is within $0.006, and has 3 answers
    And the budgets account for the API's bill

  Scenario Outline: A batch of three that is collected with one success and one failure keeps part of its reservation: <how>
    Given a batch of 3 requests that was sent under a budget, each with a reservation of 100
    When it is collected with a success that cost 7, a failure and a missing line, <how>
    Then in the ledger the sums that budgets have spent are [<spent>]
    And in the ledger the sums that budgets have in doubt are [<kept>]

    Examples:
      | how                                                             | spent | kept |
      | where the missing line was not paid                             | 7     | 0    |
      | where the missing line may be paid                              | 7     | 100  |
      | where what may be paid is reserved anew                         | 7     | 300  |
      | where what may be paid is reserved anew while fetches break off | 7     | 300  |
      | where a line hides a success                                    | 7     | 200  |
      | where the success has no price                                  | 0     | 100  |
      | where the price of the success comes later                      | 7     | 0    |
      | where the price of the success comes twice                      | 7     | 0    |
      | where its price comes after the next turn                       | 7     | 100  |
      | where a success without a price has its next turn first         | 0     | 300  |
      | where a line is late, as its request waits elsewhere            | 7     | 0    |

  Scenario: The price of an answer that comes later is spent by its own run
    Given a batch of 1 and 2 requests of two runs that was sent under budgets, each with a reservation of 100
    When it is collected with a success that cost 7, a failure and a missing line, where the price of the success comes later
    Then in the ledger the sums that budgets have spent are [0, 7]

  Scenario: A budget that is set later counts what was spent and what is in progress
    Given an API that bills what its prompts say, with {"latency": 3}
    And a command's file "one.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 900}
    And a command's file "two.jsonl" of 3 requests that use {"input_tokens": 11, "output_tokens": 900}
    And a command's file "three.jsonl" of 2 requests that use {"input_tokens": 12, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 one.jsonl -o one.out
    And a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 two.jsonl -o two.out
    Then the command line exits with 0
    When a command runs: budget --actor local/command-line 0.0145
    Then the command line prints
      """
      actor local/command-line: budget $0.0145, spent $0.004510, reserved $0.00
      """
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 three.jsonl -o three.out
    Then the command line exits with 3 and says
      """
      2 requests are held: the budget of the actor local/command-line is $0.0145, $0.00451 of it spent
      """
    When a command runs: resume RUN
    Then the command line exits with 3
    And the API's bill is within $0.0145, and has 6 answers
    And the command line says
      """
      80 % of the budget of the actor local/command-line is spent
      """
    And the budgets account for the API's bill

  Scenario: Any number of runs may wait with budgets of their own
    Given a batch of 3 requests that was sent under no budget
    Then among the budgets of 2000 runs, its own is found uncounted, and no live call waits

  Scenario: A budget that is used up does not read the rest of a long queue
    Given a batch of 1000 requests that was sent under a budget, each with a reservation of 100000000
    Then a budget with room for 5 more of them packs these, and reads one other

  Scenario: A budget that comes later counts what was lost, and may have been paid for
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And a command's file "one.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 one.jsonl -o one.out
    Then the command line exits with 1
    When a command runs: budget --actor local/command-line 1
    Then the command line exits with 0
    And the budgets account for the API's bill

  Scenario Outline: A budget that comes later counts what a line of the batch may hide: <how>
    Given a batch of 3 requests that was sent under no budget
    When it is collected with a success that cost 7, a failure and a missing line, <how>
    Then a budget that comes now has 7 spent and the most of <doubt> requests in doubt

    Examples:
      | how                                                      | doubt |
      | where a line hides a success                             | 2     |
      | where a line hides a success, and is sent again on order | 2     |
      | where the missing line is a success                      | 1     |

  Scenario: The cost of a run stays spent when the run is removed
    Given an API that bills what its prompts say
    And a command's file "one.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 1 one.jsonl -o one.out
    And a command runs: budget --actor local/command-line 1 --daily 2
    And a command runs: ledger prune --older-than 0s
    Then the command line exits with 0
    When a command runs: budget
    Then the command line prints
      """
      actor local/command-line: budget $1, spent $0.004510, reserved $0.00, left
      today (UTC): budget $2, spent $0.004510, reserved $0.00, left
      """

  Scenario: The cost of a removed run in a batch stays spent when the rest of the batch is counted
    Given a batch of 1 and 2 requests of two runs that was sent under no budget
    When it is collected with a success that cost 7, a failure and a missing line, where the missing line may be paid
    And the first run is removed
    Then a budget that comes now has 7 spent and the most of 1 requests in doubt
    When the missing line comes after all, and has cost 5
    Then the budget now has 12 spent and the most of 0 requests in doubt

  Scenario: A conversation that goes on after a fetch that broke off keeps what its turn has cost
    Given an API
    And a limit of 1 result line that is stored at once
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "cut_inside_line", "after_lines": 2}}]}
      """
    And a batch provider with {"turn_linger": 0.1, "budget_usd": "1"}
    When a run of these prompts is submitted
      | prompt                   |
      | one [[sandbox:pause:1]]  |
      | two [[sandbox:pause:1]]  |
      | last [[sandbox:pause:1]] |
    And the results are read in order
    Then every result is an answer
    And the API has processed 6 requests, none twice
    And the budgets account for the API's bill

  Scenario: A budget that comes while fetches break off counts the answers that are stored
    Given an API
    And a limit of 1 result line that is stored at once
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "cut_inside_line", "after_lines": 2}}]}
      """
    And a batch provider
    When a run of 3 prompts is submitted
    Then the status shows 2 requests succeeded
    When a command runs: budget --daily 1
    Then the command line exits with 0
    And the budgets account for the API's bill
    When the API has no faults any more
    And the results are read in order
    Then every result is an answer
    And the budgets account for the API's bill

  Scenario: A budget that comes while fetches break off counts a late answer of a sending that was sent again once
    Given an API that takes 3 seconds for a batch
    And a limit of 1 result line that is stored at once
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "create", "action": {"type": "error", "status": 429}},
                 {"route": "results", "action": {"type": "cut_inside_line", "after_lines": 2}}]}
      """
    And a batch provider with {"settling": 1, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 3 prompts is submitted
    Then in the ledger the counts of results come to be [2]
    When a command runs: budget --daily 1
    Then the command line exits with 0
    And the budgets account for the API's bill

  Scenario: An answer that had no price when it came is spent once it has one
    Given an API that bills what its prompts say
    And a file of prices "own.yaml"
      """
      claude-nobody-9: {input: 1, output: 5}
      """
    And a command's file "asks.jsonl" of 2 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: submit --prices own.yaml --model claude-nobody-9 --max-tokens 1000 --budget 1 asks.jsonl -o out.jsonl
    And a command runs: resume RUN
    And a command runs: budget RUN
    Then the command line prints
      """
      spent $0.00, reserved $0.00, in doubt $0.00
      """
    When a command runs: cost RUN --prices own.yaml
    And a command runs: budget RUN
    Then the command line prints
      """
      spent $0.001010, reserved $0.00, left
      """

  Scenario: A run that was packed before its budget keeps it in mind when its batch is parted
    Given an API that bills what its prompts say
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 2], "action": {"type": "proxy_413"}}]}
      """
    And a command's file "asks.jsonl" of 4 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --daily-budget 1 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has processed 4 requests, none twice
    And the budgets account for the API's bill

  Scenario Outline: A budget that is not an amount is refused: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: <words>
    Then the command line exits with 2 and says
      """
      <told>
      """

    Examples:
      | words                                   | told                                          |
      | run actor.yaml asks.jsonl --budget much | 'much' is not an amount in dollars                   |
      | run actor.yaml asks.jsonl --budget -1   | -1 is not an amount from 0 to 1,000,000,000 dollars  |
      | budget --daily 0.0000000001             | has more than nine decimal places             |
      | budget run-nothing                      | there is no ledger at                         |

  Scenario: Under a budget too one request of each shared prefix goes ahead
    Given an API
    And a batch provider with {"cache": "auto", "prime": true, "daily_budget_usd": "0.12", "max_wait": "60s"}
    When 8 requests about each of the documents A B are asked in a run, in turn
    Then every request of it was answered once
    And the first batch had one request of each prefix
    And the budgets account for the API's bill

  Scenario Outline: Answers that are there are given although a budget holds the rest: <how>
    Given an API that bills what its prompts say
    And a batch provider with {"max_requests": 2, "budget_usd": "0.01"}
    When a run of 2 small requests and 3 that its budget holds is read <how>, the held ones first: <first>
    Then the results <held> are held, and the others are answers
    When the run is waited for
    Then the error is a BudgetExceededError
    When the run's budget is raised to $1
    And a run of 2 small requests and 3 that its budget holds is read <how>, the held ones first: <first>
    Then the results have these fields in any order
      | position | ok  | reused  |
      | 0        | yes | <early> |
      | 1        | yes | <early> |
      | 2        | yes | no      |
      | 3        | yes | <late>  |
      | 4        | yes | <late>  |
    And the API has processed 5 requests, none twice

    Examples:
      | how                          | first | held    | early | late |
      | in order                     | yes   | 1, 2, 3 | no    | yes  |
      | in order, synchronously      | no    | 3, 4, 5 | yes   | no   |
      | as they come                 | yes   | 1, 2, 3 | no    | yes  |
      | as they come, by respond_all | yes   | 1, 2, 3 | no    | yes  |
      | by respond_all               | yes   | 1, 2, 3 | no    | yes  |

  Scenario: A request that was given as held is not given again in the same iteration
    Given an API that bills what its prompts say
    And a batch provider with {"max_requests": 2, "budget_usd": "0.01"}
    When the budget of a run that holds 3 of 5 requests is raised after the first held result
    Then there are 5 results, each once
    And 3 results are answers and 2 are errors
    And result 1 failed with BudgetExceededError
    And result 2 failed with BudgetExceededError

  Scenario: Held live requests are given beside the answers, too
    Given an API that bills what its prompts say
    And a batch provider with {"mode": "live", "live_concurrency": 1, "budget_usd": "0.01"}
    When a run of 2 small requests and 3 that its budget holds is read in order, the held ones first: no
    Then the results 3, 4, 5 are held, and the others are answers

  Scenario: A hundred invoices of one page fit into a budget at once
    Given a command's API
    And a command's 100 invoices of one page, asked about in "asks.jsonl"
    When a command runs: run --model claude-haiku-4-5 --budget 5 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has caused 1 batches of 100 requests
    And the API's bill is within $5, and has 100 answers
    And the budgets account for the API's bill

  Scenario: The highest cost of a PDF is computed when it is uploaded
    Given an API
    And a batch provider with {"daily_budget_usd": "2"}
    And a document "long.pdf" of 3 pages and 600000 bytes
    When 20 requests about "long.pdf" are asked, cited
    Then the API has 1 file, uploaded once
    And in the ledger the tokens of the files are [28500]
    And the API has seen 1 batches
    And the budgets account for the API's bill
    # As a ledger of an older version, which did not count them.
    When the ledger's files are changed to
      | tokens |
      | null   |
    And the provider is made anew
    And 19 requests about "long.pdf" are asked, cited
    Then in the ledger the tokens of the files are [28500]
    And the API has 1 file, uploaded once

  Scenario: A single call about a PDF fits into a budget
    Given an API
    And a batch provider with {"budget_usd": "0.05"}
    And a document "page.pdf" of 1 page and 1000 bytes
    When 2 calls about "page.pdf" are made, at the same time
    Then the API has been paid 2 times, never twice for the same
    And the budgets account for the API's bill
