Feature: What a run, an actor or a day may cost is never passed
  Before a request is packed the most that it can cost is reserved; what does not fit is held.

  Scenario: What does not fit is held, and goes on when the budget is raised
    Given an API that bills what it is told to
    And a command's file "asks.jsonl" of 12 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0045 asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      is held.
      requests are held: the run's budget is $0.0045
      `claude-batch budget RUN USD` goes on
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
      RUN: the budget is $1 now
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 0.0045 asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the file "out.jsonl" has 12 answers
    And the API has processed each of 12 requests once
    When a command runs: cost RUN --json
    Then the cost is what the API's bill comes to
    When a command runs: budget RUN
    Then the command line prints
      """
      RUN: budget $1, spent $0.006060, reserved $0.000000, left $0.9939
      """

  Scenario: A single call that alone can cost more than the budget is refused, and another is not
    Given an API that bills what it is told to
    And a provider with the settings {"budget_usd": "0.004"}
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 2000 tokens at most
    Then the call is refused with BudgetExceededError: the call can cost up to
    When somebody asks {"input_tokens": 10, "output_tokens": 200} with 1000 tokens at most
    Then the call has its answer
    When somebody asks {"input_tokens": 10, "output_tokens": 1000} with 1000 tokens at most
    Then the call has its answer
    When somebody asks {"input_tokens": 11, "output_tokens": 200} with 1000 tokens at most
    Then the call is refused with BatchTimeoutError: 1 requests are held: the run's budget is $0.004
    And the API's bill is within $0.004, and has answers

  Scenario: Under a budget it must be known what a request can cost
    Given an API that bills what it is told to
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
      the price of the model claude-nobody-9 is not known
      """
    And the command line has sent nothing
    When a command runs: run --model claude-haiku-4-5 --budget 1 --skip-invalid asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      'searches': under a budget it must be known what it can cost at most: the tool web_search_20250305 may search as often as it likes
      'runs': under a budget it must be known what it can cost at most: what the tool code_execution_20250825 reads and costs has no known bound
      skipped 3 of 4 items
      """

  Scenario: A budget of a day and one of an actor bound what several runs cost together
    Given an API that bills what it is told to
    And a command's file "one.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 900}
    And a command's file "two.jsonl" of 3 requests that use {"input_tokens": 11, "output_tokens": 900}
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --daily-budget 0.01 one.jsonl -o one.out
    Then the command line exits with 0
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --max-wait 2s two.jsonl -o two.out
    Then the command line exits with 3 and says
      """
      timed out
      requests are held: the budget of this day (UTC) is $0.01
      the next day, or `claude-batch budget --daily USD`, goes on
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
    And the API has processed each of 6 requests once
