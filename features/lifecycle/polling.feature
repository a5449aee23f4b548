@both_backends
Feature: Polling looks as often as it is worth

  Scenario: The wait before the next check is a tenth of the age, within both intervals
    Then batches are checked again as follows
      | age   | wait |
      | 0     | 30   |
      | 299   | 30   |
      | 600   | 60   |
      | 7200  | 300  |
      | 86400 | 300  |

  Scenario: A clock that jumps neither stalls nor floods
    Then planned checks are due as follows
      | planned for | longest interval | now | due |
      | 10          | 300              | 10  | yes |
      | 10          | 300              | 9   | no  |
      | 5000        | 300              | 10  | yes |
    And the age of a batch is counted as follows
      | submitted | now | age |
      | 4         | 10  | 6   |
      | 5000      | 10  | 0   |
      |           | 10  | 0   |

  Scenario: Several batches are checked with one list call
    Given an API that takes 0.7 seconds for a batch
    And a batch provider with {"max_requests": 1, "poll_interval": 0.3}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API was called at least 5 times by GET /v1/messages/batches

  Scenario: Counts that move while a batch is in progress are not its end
    Given an API with {"latency": 1.5, "counts": "live"}
    And a batch provider with {"poll_interval": 0.2}
    When a run of 40 prompts is submitted
    And the results are read in order
    Then there are 40 results in the order of the prompts
    And the API has processed 40 requests, none paid twice

  Scenario: A 404 of a young batch passes
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1, 2], "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: A batch that stays gone is lost, and not sent again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"not_found_after": 2}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes in_progress
    When somebody else makes 1 batches of 1 requests
    And a command waits 0.3 seconds
    And somebody deletes the oldest batch at the API
    And the results are read in order
    Then 0 results are answers and 2 are errors
    And result 1 failed with MissingResultError
    And the error is a MissingResultError that says
      """
      free of charge: claude-batch results run-
      if its result is still missing after that: claude-batch retry run-
      """

  Scenario: A list that names no workspace makes no batch lost while it shows none that the ledger knows, as long as the API keeps results
    Given an API with {"latency": 3600, "workspace_header": false}
    And a batch provider with {"poll_interval": 0.1, "max_poll_interval": 0.5, "not_found_after": 0.5}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes in_progress
    When the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    And somebody else makes 1 batches of 1 requests
    And a command waits 2.5 seconds
    Then in the ledger the states of the batches come to be ["in_progress"]
    And the status says "the list of batches does not prove that it is gone"
    When 30 days pass
    And the results are read in order
    Then result 1 failed with MissingResultError

  Scenario: A batch that is not found by its id is not gone while the list shows it
    Given an API that takes 2 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"poll_interval": 0.2, "not_found_after": 0.5}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: Two 404s with a day between them in which nobody has looked are no day of them
    Given an API
    And a batch provider with {"poll_interval": 3600}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes in_progress
    When the provider is closed
    And the ledger's batches are changed to
      | not_found_since   | next_check        | poll_interval | max_poll_interval |
      | 90000 seconds ago | 89940 seconds ago | 0.05          | 0.1               |
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1, 2], "action": {"type": "error", "status": 404}}]}
      """
    And another provider opens the run
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: Two 404s a day apart mark a batch as gone: after a gap of more than half a day without a look, the day starts again
    Then a batch that is not found counts as missing as follows
      | since | planned | now   | server clock | missing since |
      |       | 100     | 100   | 100          | 101           |
      | 0     | 86300   | 86400 | 86400        | 0             |
      | 0     | 46800   | 90000 | 90000        | 0             |
      | 0     | 46799   | 90000 | 90000        | 90001         |
      | 0     |         | 90000 | 90000        | 0             |
      | 9000  | 100     | 100   | 100          | 101           |

  Scenario: Two 404s a day apart mark a batch as gone: our clock jumps, and the API's does not
    Then a batch that is not found counts as missing as follows
      | since | planned | now    | server clock | missing since |
      | 101   | 160     | 3760   | 160          | 101           |
      | 101   | 160     | 100000 | 160          | 161           |
      | 101   | 160     | -99999 | 160          | 101           |

  Scenario: A check that fails is made again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1], "action": {"type": "html_200"}}]}
      """
    And a batch provider
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario Outline: A list that does not come to an end is replaced by single checks: <pages>
    Given a server that means harm, before an API that takes 1 seconds for a batch
    And it answers the first 1000 list calls with <pages>
    And a batch provider with {"poll_interval": 0.5, "max_requests": 1}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then every result is an answer
    And the API was called at most 30 times by GET /v1/messages/batches

    Examples:
      | pages                           |
      | pages that go round in a circle |
      | endless pages of old batches    |

  Scenario: A list that cannot be read is replaced by single checks
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "every": 3, "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider with {"max_requests": 1}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then there are 3 results in the order of the prompts

  Scenario Outline: A cancellation that the API refuses ends by what the next check tells, and is not repeated at once: <status>
    Given an API that takes 2 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "cancel", "action": {"type": "error", "status": <status>}}]}
      """
    And a batch provider with {"poll_interval": 0.5}
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    Then there is no error
    And the status shows 2 requests succeeded
    And the API was called at most 8 times by POST /v1/messages/batches/*/cancel

    Examples:
      | status |
      | 404    |
      | 409    |

  Scenario: A cancellation that the API does not show is not repeated at once
    Given a server that means harm, before an API that takes 2 seconds for a batch
    And it answers the first 1000 cancel calls with a batch in progress
    And a batch provider with {"poll_interval": 0.5}
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    Then there is no error
    And the API was called at most 8 times by POST /v1/messages/batches/*/cancel

  Scenario: A cancelled batch that is gone is lost, too
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 404}},
                 {"route": "cancel", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"poll_interval": 0.2, "not_found_after": 2}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes in_progress
    When somebody else makes 1 batches of 1 requests
    And a command waits 0.3 seconds
    And somebody deletes the oldest batch at the API
    And the run is cancelled
    And the results are read in order
    Then 0 results are answers and 2 are errors
    And result 1 failed with MissingResultError

  Scenario: A batch that is shared with a live run is not cancelled at the API
    Given an API that takes 1 seconds for a batch
    And a batch provider with {"drive": false}
    When two runs are packed together, and one is cancelled after the batch is sent
    And another provider opens the run
    And the results are read in order
    Then 1 results are answers and 0 are errors
    And the API was called 0 times by POST /v1/messages/batches/*/cancel

  Scenario: A batch is not given up while the rest of the workspace cannot be seen
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "times": 12, "action": {"type": "error", "status": 404}},
                 {"route": "list", "nth": [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18],
                  "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider with {"not_found_after": 0.1}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: Times of the API that cannot be read are not known
    Then the times of a batch at the API are read as follows
      | batch                                                                         | created | ended      |
      | {"id": "b", "processing_status": "in_progress"}                               | unknown | unknown    |
      | {"id": "b", "processing_status": "ended", "ended_at": "yesterday"}            | unknown | unknown    |
      | {"id": "b", "processing_status": "ended", "ended_at": "2026-11-21T10:00:00Z"} | unknown | 1795255200 |
    And the counts of a batch at the API are read as follows
      | counts                                                      | finished |
      | {"succeeded": 1, "errored": 2, "canceled": 3, "expired": 4} | 10       |
