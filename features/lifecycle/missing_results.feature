@both_backends
Feature: Results that are missing are fetched again for a day before they are lost

  Scenario: Results that end early again and again are complete once the API gives all of them
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1, 2, 3, 4, 5],
                  "action": {"type": "cut_between_lines", "after_lines": 7}}]}
      """
    And a batch provider
    When a run of 50 prompts is submitted
    And the results are read in order
    Then there are 50 results in the order of the prompts
    And every result is an answer
    And the API has processed 50 requests, none twice

  Scenario: Results that have arrived are returned while the rest is missing, and other runs continue
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 8, "count": 2}}]}
      """
    And a batch provider
    When a run of 10 prompts is submitted
    Then the status shows 8 requests succeeded
    And the status says "2 of 10 results of batch msgbatch_"
    And the status says "they are fetched again until"
    And a day lies between the beginning and the end of the gap
    When the prompts are asked at once
      | prompt      |
      | meanwhile 0 |
      | meanwhile 1 |
    Then all 2 are answered
    And the status shows 2 requests packed
    When the API has no faults any more
    And the results are read in order
    Then there are 10 results in the order of the prompts
    And every result is an answer
    And the run's fields are
      | field                        | value |
      | cost.total.results.succeeded | 10    |
    And the API has been paid 12 times, never twice for the same
    And the API has processed 12 requests, none twice

  Scenario: A single call has its answer while the result of another one is missing
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 2, "count": 1}}]}
      """
    And a batch provider with {"max_wait": 4}
    When 3 prompts are asked at once
    Then the outcomes have these fields in any order
      | __class__.__name__ |
      | ActorResponse      |
      | ActorResponse      |
      | BatchTimeoutError  |

  Scenario: A failure waits for the missing lines, since one of them may contradict it
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "times": 5, "action": {"type": "missing_lines", "after_lines": 3, "count": 1}}],
       "requests": [{"contains": "prompt 1", "outcome": "expired", "once": true}]}
      """
    And a batch provider
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And every result is an answer
    And the API's batches have 4 and 1 requests

  Scenario: Counts prove no failure if all results that came were somebody else's
    Given a server that means harm, before an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"requests": [{"contains": "prompt", "outcome": "expired"}]}
      """
    And it answers the first 1000 results calls with 4 lines of somebody else
    And a batch provider with {"missing_after": 1, "poll_interval": 0.1}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then result 1 failed with MissingResultError
    And the API has processed 4 requests, none twice

  Scenario: A process that dies while results are missing leaves what it has, and since when
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 8, "count": 2}}]}
      """
    When a process with {"poll_interval": 0.05} asks a run of 10 prompts, and dies at during_collect_chunk
    And this process opens that run
    And the provider resumes
    Then the status shows 8 requests succeeded
    When the provider is closed while results are missing
    And the API has no faults any more
    And another provider opens the run
    And the results are read in order
    Then there are 10 results in the order of the prompts
    And the gap began when it was first seen
    And the API has processed 10 requests, none twice

  Scenario: Conversations go on while another one's answer is missing
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 2, "count": 1}}]}
      """
    And a batch provider with {"turn_linger": 0.1}
    When a run of these prompts is submitted
      | prompt                   |
      | one [[sandbox:pause:1]]  |
      | two [[sandbox:pause:1]]  |
      | last [[sandbox:pause:1]] |
    Then the status shows 2 requests succeeded
    And the status shows 1 requests packed
    When the API has no faults any more
    And the results are read in order
    Then every result is an answer
    And the ledger keeps 0 strange lines
    And the API has processed 6 requests, none twice

  Scenario: A result that stays missing is lost in the end, and a later fetch fills it free of charge
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 2}}]}
      """
    And a batch provider with {"missing_after": 1}
    When a run of 10 prompts is submitted
    And the results are read in order
    Then 8 results are answers and 2 are errors
    And the run's results are fetched again, and 0 are there
    When the API has no faults any more
    Then the run's results are fetched again, and 2 are there
    And the run's results are fetched again, and 0 are there
    And in the ledger the numbers of requests that each transaction finished are [8, 2]
    When the results are read in order
    Then there are 10 results in the order of the prompts
    And every result is an answer
    And the run's cost becomes what the API's bill of 10 answers comes to
    And the API has processed 10 requests, none twice

  Scenario: A missing result can be fetched although another batch has proved free since
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [2], "action": {"type": "drop_before"}},
                 {"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"settling": 6, "missing_after": 0.5, "max_requests": 2}
    When a run of 4 prompts is submitted
    Then in the ledger the sorted states of all requests come to be ["lost", "packed", "packed", "succeeded"]
    And in the ledger the states of the batches come to be ["collected", "collected"]
    When the API has no faults any more
    Then the run's results are fetched again, and 2 are there

  Scenario: A missing result of a request that was given up is counted once when it is fetched
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3600}},
                 {"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"settling": 86000, "missing_after": 1}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When "claude-batch unknown" is told --give-up
    And the API's clock goes 2 hours on
    Then in the ledger the states of the batches come to be ["collected"]
    When the API has no faults any more
    Then the run's results are fetched again, and 1 are there

  Scenario: A conversation that is asked again on order goes on to its end
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"missing_after": 1, "turn_linger": 0.1, "max_wait": 30}
    When a run of these prompts is submitted
      | prompt                     |
      | Search [[sandbox:pause:2]] |
    And the results are read in order
    Then result 1 failed with MissingResultError
    When the API has no faults any more
    And the run's lost requests are asked again
    And the results are read in order
    Then every result is an answer

  Scenario: A conversation that goes on from a late answer goes by no deadline that has passed
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"missing_after": 1, "turn_linger": 0.1, "max_wait": 30}
    When a run of these prompts is submitted
      | prompt                     |
      | Search [[sandbox:pause:2]] |
    And the results are read in order
    Then result 1 failed with MissingResultError
    When the ledger's runs are changed to
      | fallback | deadline      | past_margin   |
      | none     | 5 seconds ago | 9 seconds ago |
    And the API has no faults any more
    Then the run's results are fetched again, and 1 are there
    When the results are read in order
    Then every result is an answer

  Scenario: Doubles of a lost request have its answer when it is there after all
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 1, "count": 1}}]}
      """
    And a batch provider with {"missing_after": 1, "dedupe": true}
    When a run of these prompts is submitted
      | prompt |
      | one    |
      | two    |
      | one    |
      | two    |
    And the results are read in order
    Then 2 results are answers and 2 are errors
    When the API has no faults any more
    Then the run's results are fetched again, and 1 are there
    When the results are read in order
    Then every result is an answer
    And the API has processed 2 requests, none twice

  Scenario: A fetch on order that brings all results is not repeated, although the API counts none
    Given a server that means harm, before an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And it answers the first 1000 retrieve calls with no counts
    And a batch provider with {"missing_after": 1, "poll_interval": 0.1}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then 2 results are answers and 1 are errors
    And the API was called 3 times by GET /v1/messages/batches/*/results
    When the API has no faults any more
    Then the run's results are fetched again, and 1 are there
    And the API was called 4 times by GET /v1/messages/batches/*/results

  Scenario: A fetch on order that ends midway is simply done again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 2}}]}
      """
    And a batch provider with {"missing_after": 1}
    When a run of 10 prompts is submitted
    And the results are read in order
    Then 8 results are answers and 2 are errors
    When the API has no faults any more
    And a fetch on order dies between storing and filling
    Then of the run's requests a retry sends as follows
      | only    | requests |
      |         | 0        |
      | missing | 0        |
    When the results are read in order
    Then every result is an answer
    And the API has processed 10 requests, none twice

  Scenario: Since when results are missing
    Then a gap in the results counts as follows
      | why                                      | since | last seen | now   | counts since |
      | the first fetch that lacks some          |       |           | 500   | 501          |
      | the next one                             | 501   | 500       | 560   | 501          |
      | after half a day in which nobody fetched | 501   | 1000      | 44000 | 501          |
      | after more than that                     | 501   | 1000      | 45000 | 45001        |
      | the API's clock was set back             | 50000 | 50000     | 500   | 501          |

  Scenario: A fetch that lacks results is repeated at growing intervals
    Then a fetch that lacks results is repeated as follows
      | fetch | age of the gap | wait |
      | 1     | 0              | 1    |
      | 2     | 2              | 2    |
      | 3     | 4              | 30   |
      | 9     | 2000           | 200  |
      | 99    | 50000          | 300  |
      | 300   | 86390          | 10   |

  Scenario: A batch that may be an unknown sending is fetched again while its results end early
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "nth": [1, 2, 3, 4], "action": {"type": "missing_lines", "count": 2}}]}
      """
    And a batch provider with {"settling": 0.5}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And every result is an answer
    And the API has processed 2 requests, none twice

  Scenario: A batch that may be an unknown sending cannot be judged after missing_after
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "action": {"type": "missing_lines", "count": 2}}]}
      """
    And a batch provider with {"settling": 0.5, "missing_after": 1}
    When a run of 2 prompts is submitted
    Then the status shows 2 requests lost
    And the API has processed 2 requests, none twice

  Scenario Outline: Results that answer with another error than a 404 are not missing, however long they do: <sending>
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "<sending>"}},
                 {"route": "results", "times": 20, "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 0.5, "not_found_after": 1, "missing_after": 1, "max_poll_interval": 0.2}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then every result is an answer

    Examples:
      | sending    |
      | delay      |
      | drop_after |
