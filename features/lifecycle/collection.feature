@both_backends
Feature: Collection stores every line once, whatever the stream does

  Scenario Outline: A results stream that is <action> loses and doubles nothing
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": <action>}]}
      """
    And a batch provider
    When a run of 50 prompts is submitted
    And the results are read in order
    Then there are 50 results in the order of the prompts
    And the API has processed 50 requests, none twice

    Examples:
      | action                                                              |
      | {"type": "cut_inside_line", "after_lines": 7}                       |
      | {"type": "cut_between_lines", "after_lines": 7}                     |
      | {"type": "cut_between_lines", "after_lines": 0}                     |
      | {"type": "cut_between_lines", "after_lines": 9, "framing": "close"} |
      | {"type": "doubled_lines", "count": 20}                              |
      | {"type": "missing_lines", "count": 3}                               |
      | {"type": "contradicting_lines", "count": 5}                         |
      | {"type": "contradicting_lines", "count": 5, "first": true}          |
      | {"type": "unknown_fields"}                                          |
      | {"type": "error", "status": 500}                                    |
      | {"type": "error", "status": 404}                                    |
      | {"type": "drop_before"}                                             |

  Scenario: A large batch is finished in parts, and a process that dies between them loses nothing
    Given an API
    And a limit of 100 results that become final at once
    When a process with {"poll_interval": 0.05, "budget_usd": "900"} asks a run of 150 prompts, and dies at between_slices
    Then in the ledger the states of the batches are ["ended"]
    When this process opens that run
    And the results are read in order
    Then there are 150 results in the order of the prompts
    And in the ledger the numbers of requests that each transaction finished are [100, 50]
    And the API has processed 150 requests, none twice
    And the budgets account for the API's bill

  Scenario: Small batches that end together are finished in one transaction
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"drive": false, "max_requests": 3}
    When a run of 6 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And everything that is due is advanced until the run is finished
    Then in the ledger the numbers of requests that each transaction finished are [6]

  Scenario: A batch whose results come late delays no other
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "delay", "seconds": 3}}]}
      """
    And a batch provider with {"drive": false, "max_requests": 3}
    When a run of 6 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And everything that is due is advanced until the run is finished
    Then in the ledger the numbers of requests that each transaction finished are [3, 3]

  Scenario: Small batches are judged each by its own results, and a bad one stops no other
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [
        {"route": "results", "nth": [1], "action": {"type": "cut_inside_line", "after_lines": 1}},
        {"route": "results", "nth": [2], "action": {"type": "error", "status": 404}},
        {"route": "results", "nth": [3], "action": {"type": "missing_lines", "count": 1}},
        {"route": "results", "nth": [4], "action": {"type": "garbage_line", "count": 2}},
        {"route": "results", "nth": [5], "action": {"type": "contradicting_lines", "count": 1}}]}
      """
    And a batch provider with {"drive": false, "max_requests": 3}
    When a run of 24 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 24 results in the order of the prompts
    And the ledger keeps 2 strange lines
    And the API has processed 24 requests, none twice

  Scenario Outline: A process that dies <when> of small batches loses nothing
    Given an API that takes 2 seconds for a batch
    When a process with {"poll_interval": 3, "max_requests": 3} asks a run of 12 prompts, and dies at <point>
    And this process opens that run
    And the results are read in order
    Then there are 12 results in the order of the prompts
    And the API has processed 12 requests, none twice

    Examples:
      | when                 | point                     |
      | before the judgement | between_results_and_state |
      | after the judgement  | after_collected           |

  Scenario: A fault of the account uses up no attempt, also if small batches are judged together
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"requests": [{"outcome": "errored", "error": {"type": "billing_error"}}]}
      """
    And a batch provider with {"drive": false, "max_requests": 1, "max_attempts": 1}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And the ledger is advanced
    Then in the ledger the attempts of the requests are [0, 0]

  Scenario: A batch whose results are larger than those of a small one is collected alone
    Given an API that takes 3600 seconds for a batch
    And a limit of 1000 bytes in the results of a small batch
    And a batch provider with {"drive": false, "max_requests": 3}
    When a run of 6 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And everything that is due is advanced until the run is finished
    Then in the ledger the numbers of requests that each transaction finished are [3, 3]
    And the API has processed 6 requests, none twice

  Scenario: Lines that are no results are kept and reported
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "garbage_line", "count": 2}}]}
      """
    And a batch provider
    When a run of 5 prompts is submitted
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And the ledger keeps 2 strange lines

  Scenario: Foreign lines are not taken for ours
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "foreign_lines", "count": 3}}]}
      """
    And a batch provider
    When a run of 5 prompts is submitted
    And the results are read in order
    Then there are 5 results in the order of the prompts

  Scenario: A line that stays missing may have been paid for, and is not sent again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 2}}]}
      """
    And a batch provider with {"missing_after": 1}
    When a run of 10 prompts is submitted
    And the results are read in order
    Then 8 results are answers and 2 are errors
    And the status shows 2 requests lost
    And the API has processed 10 requests, none twice

  Scenario: A missing line of a failed request is tried again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1, 2, 3], "action": {"type": "missing_lines", "count": 1}}],
       "requests": [{"contains": "prompt", "outcome": "expired", "once": true}]}
      """
    And a batch provider
    When 3 prompts are asked at once
    Then all 3 are answered

  Scenario: Lines are split whatever the chunks
    Then lines in chunks of any size are split as follows
      | text                         | lines                    |
      | a\nb                         | ["a", "b"]               |
      | one\n\nlonger line\nthree     | ["one", "longer line", "three"] |
      | one\ntwo\n                 | ["one", "two"]         |

  Scenario: Whether a missing line may be a billed one follows from the stored results
    Then a request without a line may have been billed as follows
      | stored | counts                            | billed |
      | 4      | {"succeeded": 4, "errored": 1}    | no     |
      | 4      | {"succeeded": 4, "expired": 2}    | no     |
      | 4      | {"succeeded": 5}                  | yes    |
      | 4      | {"succeeded": 4}                  | yes    |
      | 4      | {"succeeded": 4, "processing": 1} | yes    |
      | 0      | {}                                | yes    |
      | 0      | null                              | yes    |

  Scenario: Results that are gone for good are lost, and not fetched for ever
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"not_found_after": 0.5, "missing_after": 0.5}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then 0 results are answers and 2 are errors
    And the status shows 2 requests lost

  Scenario: Results that answer 404 while the API shows their batch are not gone, but missing
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"not_found_after": 0.5, "max_poll_interval": 0.5}
    When a run of 2 prompts is submitted
    Then the status says "2 of 2 results of batch msgbatch_"
    When the API has no faults any more
    And the results are read in order
    Then every result is an answer
    And the API has processed 2 requests, none twice

  Scenario: A batch whose results have to wait holds up no other, and the status says why
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "error", "status": 429, "retry_after": 60}}]}
      """
    And a batch provider with {"max_requests": 101, "max_poll_interval": 5}
    When a run of 202 prompts is submitted
    Then the status shows 101 requests succeeded
    And the status says "the last check: 429"
    When the results are read in order
    Then every result is an answer

  Scenario Outline: A day of 404s that one wrong clock makes is none: <days> days
    Given a server that means harm, before an API
    And it answers the first 1000 results calls with a 404, the second one with a date <days> days ahead
    When three prompts are run with --max-wait 5s
    Then the command line exits with 3
    When the server means no harm any more
    And the run is resumed
    Then the command line exits with 0
    And nothing was sent twice

    Examples:
      | days |
      | 2    |
      | 30   |

  Scenario: Results that nobody fetched in 29 days are said to be lost, and not sent again
    Given an API that takes 60 seconds for a batch
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    And the ledger is advanced until a batch is at the API
    And 26 days pass
    Then the status says "2 days are left to fetch them"
    When 4 days pass
    And everything that is due is advanced until the run is finished
    Then the status shows 1 requests lost
    And the API has processed 1 requests, none twice

  Scenario: Results do not count as outdated because our clock jumps
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"drive": false, "max_poll_interval": 0.2}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    And the ledger is advanced until a batch is at the API
    And 40 days pass on our clock alone
    And everything that is due is advanced until the run is finished
    Then the status shows 1 requests succeeded

  Scenario: Results whose stream breaks again and again are fetched at growing intervals
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "cut_inside_line", "after_lines": 1}}]}
      """
    And a batch provider with {"max_wait": 6}
    When a run of 2 prompts is submitted
    And the run is waited for
    Then the error is a BatchTimeoutError that says
      """
      did not finish within max_wait
      """
    And the API was called at most 4 times by GET /v1/messages/batches/*/results
    When the API has no faults any more
    And another provider opens the run
    And the results are read in order
    Then there are 2 results in the order of the prompts
