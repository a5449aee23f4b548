Feature: Missing results from the command line

  Background:
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 3 requests that use {"input_tokens": 10, "output_tokens": 200}
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 2, "count": 1}}]}
      """

  Scenario: Results that are there are written while the rest is missing, and a fetch on order completes them
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl -o out.jsonl
    And commands advance the run until results are missing
    And a command runs: status RUN
    Then the command line prints
      """
      2 succeeded
      1 of 3 results of batch msgbatch_
      """
    When a command runs: export RUN -o early.jsonl
    Then the command line exits with 3 and says
      """
      wrote early.jsonl
      RUN is not finished: 1 request has no result yet
      """
    When a command runs: results RUN -o soon.jsonl
    Then the command line exits with 3 and says
      """
      wrote soon.jsonl
      RUN is not finished: 1 of 3 results of batch msgbatch_
      """
    And the file "early.jsonl" has 2 answers
    And the file "soon.jsonl" has 2 answers
    And the command line has noted that the run is not delivered
    And the budgets account for the API's bill
    When a command runs: results RUN --refetch
    Then the command line exits with 3 and says
      """
      still missing: 1 result of RUN
      """
    When the API has no faults any more
    And a command runs: results RUN --refetch -o whole.jsonl
    Then the command line exits with 0 and says
      """
      found 1 missing result of RUN, at no further cost
      wrote whole.jsonl
      """
    And the file "whole.jsonl" has 3 answers
    And the budgets account for the API's bill
    When a command runs: cost RUN --json
    Then the cost is what the API's bill comes to
    And the API's bill is within $1, and has 3 answers

  Scenario: A lost result is filled by a fetch on order, free of charge
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has noted that the run is delivered
    When a command runs: retry RUN
    Then the command line exits with 1 and says
      """
      1 request has no result and may have been paid for; fetch the results again, free of charge, with: `claude-batch results RUN --refetch -o OUT`
      """
    And the command line has noted that the run is delivered
    When the API has no faults any more
    And a command runs: results RUN --refetch -o whole.jsonl
    Then the command line exits with 0 and says
      """
      found 1 missing result of RUN, at no further cost
      """
    And the file "whole.jsonl" has 3 answers
    And the budgets account for the API's bill
    When a command runs: cost RUN --json
    Then the cost is what the API's bill comes to
    When a command runs: results RUN --refetch
    Then the command line exits with 0 and says
      """
      RUN has no missing results that could be fetched again
      """

  Scenario: A lost request that is retried is fetched first, and not sent again if it is there
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl -o out.jsonl
    And the API has no faults any more
    And a command runs: retry RUN --only missing
    Then the command line exits with 0 and says
      """
      found 1 missing result, at no further cost
      """
    And the file "out.jsonl" has 3 answers
    And the budgets account for the API's bill
    And the API's bill is within $1, and has 3 answers

  Scenario: A fetch on order that is cut short is repeated before anything is sent again
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "results", "times": 1, "action": {"type": "missing_lines", "after_lines": 2, "count": 1}}]}
      """
    And a command runs: retry RUN --only missing
    Then the command line exits with 0 and says
      """
      found 1 missing result, at no further cost
      """
    And the API's bill is within $1, and has 3 answers

  Scenario Outline: A result that a fetch on order has brought is kept, although it is repeated and gets <then>
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 1, "count": 2}}]}
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "results", "times": 1, "action": {"type": "missing_lines", "after_lines": 2, "count": 1}},
                 {"route": "results", "action": <then>}]}
      """
    And a command runs: retry RUN --only missing
    And a command runs: status RUN
    Then the command line prints
      """
      2 succeeded
      """
    And the budgets account for the API's bill
    And the API's bill is within $1, and has 3 answers

    Examples:
      | then                                                    |
      | {"type": "error", "status": 404}                        |
      | {"type": "error", "status": 500}                        |
      | {"type": "missing_lines", "after_lines": 0, "count": 3} |

  Scenario Outline: A request whose result is still missing is sent again on order, and a late result is counted: results that are <state>
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = <after>
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 --budget 1 asks.jsonl -o out.jsonl
    And commands advance the run until results are <state>
    And the ledger's runs are changed to
      | fallback | deadline   | past_margin   |
      | none     | <deadline> | <past_margin> |
    And a command runs: retry RUN --only missing
    Then the command line exits with 0 and says
      """
      1 request still has no result; sent again, and may be paid for twice
      """
    And the file "out.jsonl" has 3 answers
    And the API's bill is within $1, and has 4 answers
    And the budgets account for the API's bill
    When a command runs: retry RUN --only missing
    Then the command line has noted that the run is delivered
    When the API has no faults any more
    And a command runs: results RUN --refetch -o whole.jsonl
    Then the command line exits with 0
    And the file "whole.jsonl" has 3 answers
    And the budgets account for the API's bill
    When a command runs: cost RUN --json
    Then the cost is what the API's bill comes to

    Examples:
      | state   | after | deadline      | past_margin   |
      | missing | 24h   | null          | null          |
      | lost    | 1s    | null          | null          |
      | lost    | 1s    | 5 seconds ago | 9 seconds ago |

  Scenario: Failures that are there are not asked again with what is missing
    Given the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 2, "count": 1}}],
       "requests": [{"outcome": "errored", "error": {"type": "invalid_request_error"}}]}
      """
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl
    And commands advance the run until results are missing
    And a command runs: retry RUN --only missing
    Then the command line exits with 1 and says
      """
      1 request still has no result; sent again, and may be paid for twice
      """

  Scenario Outline: A request whose results cannot be fetched is not sent again: <fault>
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": <fault>}]}
      """
    And a command runs: retry RUN --only missing
    Then the command line exits with <code> and says
      """
      <words>
      """
    And the API's bill is within $1, and has 3 answers
    When a command runs: results RUN --refetch
    Then the command line exits with <code_>
    And the API's bill is within $1, and has 3 answers

    Examples:
      | fault                            | code | code_ | words                                    |
      | {"type": "error", "status": 404} | 1    | 1     | so its requests are not sent again. To send them without a look at the results: claude-batch unknown RUN --resubmit |
      | {"type": "html_200"}             | 1    | 1     | cannot be fetched (the answer holds no result of the batch), so its requests are not sent again |
      | {"type": "error", "status": 401} | 4    | 4     | nothing was sent                         |
      | {"type": "drop_before"}          | 3    | 3     | nothing was sent                         |

  Scenario Outline: A request whose result is missing is not sent again on order while its run <ends>
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl
    And commands advance the run until results are missing
    And the ledger's runs are changed to
      | fallback | cancelled   | past_margin   |
      | none     | <cancelled> | <past_margin> |
    And a command runs: retry RUN --only missing
    Then the command line exits with 2 and says
      """
      Nothing was sent again
      """

    Examples:
      | ends                  | cancelled     | past_margin   |
      | is cancelled          | 1 seconds ago | null          |
      | has passed its margin | null          | 1 seconds ago |

  Scenario: A result whose fetch broke off is not missing, so that no order sends it again
    Given the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "cut_inside_line", "after_lines": 2}}]}
      """
    When a command runs: run --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --max-wait 1s
    And a command runs: results RUN --refetch
    Then the command line exits with 3 and says
      """
      RUN has no missing results that could be fetched again
      """

  Scenario: A fetch on order asks the server that has the batch
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl
    And a command runs: results RUN --refetch --base-url http://127.0.0.1:9
    Then the command line exits with 2 and says
      """
      name the run's server with --base-url. Nothing was fetched
      """
