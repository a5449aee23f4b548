@long @both_backends
Feature: Reconciliation finds out what became of a sending that had no answer

  Scenario Outline: A batch that was accepted after all is found, and paid for once: <action>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": <action>}]}
      """
    And a batch provider with {"settling": 2}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice
    And the API has seen 1 batch

    Examples:
      | action                                              |
      | {"type": "drop_after"}                              |
      | {"type": "html_200", "processed": true}             |
      | {"type": "hang", "seconds": 0.2, "processed": true} |

  Scenario Outline: A batch that was not accepted is sent again, once that is certain: <action>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": <action>}]}
      """
    And a batch provider with {"settling": 1.5}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice
    And the API has seen 1 batch
    And between the first create and the second the API's clock went on by 1 second at least

    Examples:
      | action                                          |
      | {"type": "drop_before"}                         |
      | {"type": "error", "status": 500}                |
      | {"type": "error", "status": 529, "json": false} |
      | {"type": "html_200", "processed": false}        |

  Scenario: A batch whose counts are all 0 may be ours until they are not
    Given an API whose batches count nothing for 1.5 seconds and take 3
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 0.5}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario: Somebody else's batches of equal count are set aside
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 1.5}
    When a run of 4 prompts is submitted
    Then a batch of the run becomes unknown
    When somebody else makes 3 batches of 4 requests
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the run's requests were processed once each
    And nothing of somebody else's is in the ledger

  Scenario: Our batch is distinguished from another client's of equal count
    Given an API that takes 2 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 1.5}
    When a run of 4 prompts is submitted
    Then a batch of the run becomes unknown
    When somebody else makes 2 batches of 4 requests
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the run's requests were processed once each

  Scenario Outline: Lines that have strayed into our results do not make them somebody else's: <stray>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "action": <stray>}]}
      """
    And a batch provider with {"settling": 1.5}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice
    And the API has seen 1 batch

    Examples:
      | stray                                 |
      | {"type": "foreign_lines"}             |
      | {"type": "foreign_lines", "count": 3} |

  Scenario: A line that has strayed from another batch of the ledger does not hide whose results these are
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [2], "action": {"type": "drop_after"}}]}
      """
    And it answers the first 1000 results calls with a line of the first batch moved
    And a batch provider with {"settling": 1, "poll_interval": 0.1}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes ended
    When the same run is submitted anew
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has seen 2 batches

  Scenario Outline: One wrong answer about our batch does not make it somebody else's: <wrong>
    Given a server that means harm, before an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And it answers the first <count> <calls> calls with <wrong>
    And a batch provider with {"settling": 2, "poll_interval": 0.1, "exclusive_workspace": <alone>}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

    Examples:
      | count | calls   | wrong                    | alone |
      | 1000  | list    | a request less, once     | false |
      | 1000  | list    | a request more, once     | false |
      | 1     | results | a line of somebody else  | false |
      | 1     | results | 4 lines of somebody else | false |
      | 1     | results | 4 lines of somebody else | true  |

  Scenario: A create call that is answered with somebody else's batch is unknown, and paid for once
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"requests": [{"contains": "theirs", "outcome": "expired"}]}
      """
    And it answers the first 1000 API calls with an earlier batch as the first new one
    And a batch provider with {"settling": 2, "poll_interval": 0.1}
    When somebody else makes 1 batches of 4 requests
    And a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the run's requests were processed once each
    And nothing of somebody else's is in the ledger

  Scenario: Somebody else's batch is known by its first thousand lines
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 1.5}
    When a run of 1500 prompts is submitted
    Then a batch of the run becomes unknown
    When somebody else makes 1 batches of 1500 requests
    And the results are read in order
    Then there are 1500 results in the order of the prompts
    And the run's requests were processed once each
    And nothing of somebody else's is in the ledger

  Scenario: While somebody else's batch looks like it, nothing is sent, and status says so
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 0.2}
    When a run of 4 prompts is submitted and somebody else makes a batch as large
    Then the status says "1 batch may be it"
    And "claude-batch unknown" says "one of these batches may be it"
    And the API was called 2 times by POST /v1/messages/batches
    When the API's clock goes 2 hours on
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the API's clock goes 2 hours on
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the run's requests were processed once each

  Scenario Outline: A list whose pages <lack> is read to its end, before it decides anything
    Given a server that means harm, before an API that takes 3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 0.7}}]}
      """
    And it answers the first 1000 list calls with <pages>
    And a batch provider with {"settling": 1.5, "poll_interval": 0.1, "max_requests": 2}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

    Examples:
      | lack                      | pages                                     |
      | name no last id           | pages of one batch that name no last id   |
      | do not say if more follow | pages of one batch that name nothing      |

  Scenario: A machine's clock that is set while a batch is looked for does not end the search early
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3}}]}
      """
    And it answers the first 1000 API calls with no date
    And a batch provider with {"settling": 600, "poll_interval": 0.1, "max_poll_interval": 0.3}
    When a run of 4 prompts is submitted
    Then a batch of the run becomes unknown
    And in the ledger the counts of batches to look for come to be [1]
    Given the clock of this machine is 2 hours ahead
    When the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario: A server whose clocks differ does not end the search early
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3}}]}
      """
    And it answers the first 1000 list calls with a clock that is an hour ahead at times
    And a batch provider with {"settling": 600, "poll_interval": 0.1, "max_poll_interval": 0.3}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario Outline: A gateway that writes the time of its own clock hides no batch: <clock>
    Given a server that means harm, before an API that takes 0.5 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [2], "action": {"type": "drop_after"}}]}
      """
    And it answers the first 1000 API calls with <clock>
    And a batch provider with {"settling": 0.5, "poll_interval": 0.1}
    When a run of 2 prompts is submitted
    And the results are read in order
    And the same run is submitted anew
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has seen 2 batches

    Examples:
      | clock                          |
      | a clock that is an hour ahead  |
      | a clock that is an hour behind |

  Scenario: A list that cannot be read decides nothing
    Given an API
    And a batch provider with {"settling": 0, "drive": false}
    When a sending of 2 prompts has become unknown
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 403}}]}
      """
    And the ledger is advanced a few times
    Then the API was called 0 times by POST /v1/messages/batches
    When the API has no faults any more
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario Outline: An old entry of the list that cannot be read does not matter: <action>
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"workspace_header": <named>, "rules": [{"route": "create", "nth": [1], "action": <action>}]}
      """
    And it answers the first 1000 list calls with a strange entry that is old
    And a batch provider with {"settling": 1, "poll_interval": 0.1, "max_wait": 10}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

    Examples:
      | action                           | named |
      | {"type": "drop_after"}           | true  |
      | {"type": "drop_after"}           | false |
      | {"type": "error", "status": 500} | true  |
      | {"type": "error", "status": 500} | false |

  Scenario: While an entry of the list cannot be read, ours is found, and nothing else is decided
    Given a server that means harm, before an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "create", "nth": [2], "action": {"type": "error", "status": 500}}]}
      """
    And it answers the first 1000 list calls with a strange entry without a date
    And a batch provider with {"settling": 0.5, "poll_interval": 0.1, "max_wait": 10}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    When the same run is submitted anew
    Then the status says "an entry of the API's list cannot be read, and may be this batch"
    And the status does not say "is watched until"
    When a command waits 1.5 seconds
    Then "claude-batch unknown" says "an entry of the API's list cannot be read, and may be this batch"
    When the server means no harm any more
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has seen 2 batches

  Scenario Outline: A sending that a process left unknown when it died is reported at once, and can be decided: <flag>
    Given an API
    And a batch provider with {"drive": false}
    When a sending of 2 prompts has become unknown
    Then "claude-batch unknown" says "the sending process ended before the API's answer"
    And the run's batch is still unknown
    When "claude-batch unknown" is told <flag>
    Then the status shows 2 requests <state>

    Examples:
      | flag       | state  |
      | --give-up  | lost   |
      | --resubmit | queued |

  Scenario: The list of another workspace is no evidence
    Given an API with {"workspaces": {"sk-other": "wrkspc_other"}}
    And a batch provider with {"settling": 0, "drive": false}
    When a sending of 2 prompts has become unknown
    And the ledger's workspaces are changed to
      | name            |
      | wrkspc_of_before |
    And the ledger is advanced a few times
    Then the API was called 0 times by POST /v1/messages/batches
    And the run's batch is still unknown
    And the status does not say "is watched until"
    And "claude-batch unknown" says "the API answered with the list of another workspace"

  Scenario: A list that names no workspace, and shows nothing of what it had before the sending, is no evidence
    Given an API with {"latency": 0.1, "workspace_header": false}
    And a batch provider with {"settling": 1, "poll_interval": 0.1, "max_poll_interval": 0.3}
    When a run of 2 prompts is submitted
    And the results are read in order
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And the same run is submitted anew
    Then a batch of the run becomes unknown
    When the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    Then the status says "it may be another workspace's, or they were deleted"
    When a command waits 1.5 seconds
    And the API has no faults any more
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has seen 2 batches

  Scenario: A sending is sent again after resubmit_after although the list is no evidence, if on_unknown orders it
    Given an API with {"latency": 0.1, "workspace_header": false}
    And a batch provider with {"settling": 1, "poll_interval": 0.1, "max_poll_interval": 0.3, "on_unknown": "resubmit", "resubmit_after": 5}
    When a run of 2 prompts is submitted
    And the results are read in order
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And the same run is submitted anew
    Then a batch of the run becomes unknown
    When the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    Then the status says "or they were deleted); see `claude-batch unknown"
    And the status does not say "is watched until"
    And "claude-batch unknown" says "may be another workspace's, or they were deleted"
    When the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: A list that names no workspace, and shows older batches although it had none before the sending, is no evidence
    Given an API with {"latency": 0.1, "workspace_header": false}
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    And a batch provider with {"settling": 2, "poll_interval": 0.1, "max_poll_interval": 0.3}
    When somebody else makes 1 batches of 7 requests
    And the API's clock goes 2 hours on
    And the API has the faults
      """
      {"workspaces": {}, "rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3}}]}
      """
    And a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    Then the status says "shows older batches although it had none, so it may be another workspace's"
    When a command waits 3.5 seconds
    And the API has no faults any more
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 9 requests, none twice

  Scenario: A candidate that was deleted cannot be judged, and nothing is sent again unasked
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "action": {"type": "error", "status": 404}}]}
      """
    And a batch provider with {"settling": 0.5, "not_found_after": 0.5, "missing_after": 0.5, "budget_usd": "1"}
    When a run of 2 prompts is submitted
    Then the status shows 2 requests lost
    And in the ledger the sums that budgets have reserved are [0]
    When the results are read in order
    Then result 1 failed with SubmissionUnknownError
    And "claude-batch unknown" says "send them again with --resubmit"
    When the API has no faults any more
    And "claude-batch unknown" is told --resubmit
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the run's requests were processed twice each
    And the budgets account for the API's bill

  Scenario: A day of 404s that one wrong clock makes does not rule out a candidate
    Given a server that means harm, before an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And it answers the first 4 results calls with a 404, the second one with a date 2 days ahead
    And a batch provider with {"settling": 0.5, "poll_interval": 0.2}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 2 requests, none twice

  Scenario: A candidate that was not found once is not gone because it cannot be read later
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "nth": [1], "action": {"type": "error", "status": 404}},
                 {"route": "results", "nth": [2], "action":
                  {"type": "garbage_line", "replace": true, "count": 2}}]}
      """
    And a batch provider with {"settling": 0.5, "not_found_after": 0.3, "poll_interval": 0.6}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 2 requests, none twice

  Scenario: Giving up ends an unknown sending without an answer
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 3600}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When "claude-batch unknown" is told --give-up
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    When "claude-batch unknown" is told --resubmit
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: A request that was given up takes its answer, also where it is missing at first
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "times": 5, "action": {"type": "missing_lines", "count": 1}}]}
      """
    When a process with {"poll_interval": 0.05, "max_poll_interval": 0.2} asks a run of 2 prompts, and dies at after_post_before_record
    And "claude-batch unknown" gives that run up
    Then in the ledger the states of the requests are ["lost", "lost"]
    When this process opens that run and drives
    Then in the ledger the states of the requests come to be ["succeeded", "succeeded"]
    And the API has processed 2 requests, none twice

  Scenario: A late answer of a sending that was sent again is kept, and its cost counted
    Given an API that takes 4 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 2, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And in the ledger the counts of results come to be [6]

  Scenario: A late answer of a request that was cancelled meanwhile is taken, because it costs
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "create", "action": {"type": "error", "status": 429}},
                 {"route": "results", "times": 4, "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"settling": 1, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 3 prompts is submitted
    Then a batch of the run becomes unknown
    And in the ledger the sendings of the requests come to be [1, 1, 1]
    When the run is cancelled
    Then the status shows 3 requests lost
    When the API's clock goes 2 hours on
    Then in the ledger the states of the requests come to be ["succeeded", "succeeded", "succeeded"]

  Scenario: A late failure of one sending decides nothing about a later one that is in doubt too
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3600}},
                 {"route": "create", "nth": [2, 3], "action": {"type": "drop_after", "listed_after": 36000}}]}
      """
    And a batch provider with {"settling": 86000}
    When a run of these prompts is submitted
      | prompt                                    |
      | [[sandbox:errored:invalid_request_error]] |
      | [[sandbox:errored:api_error]]             |
      | hello                                     |
    Then a batch of the run becomes unknown
    When "claude-batch unknown" is told --resubmit
    Then in the ledger the states of the batches come to be ["unknown", "unknown", "unknown"]
    When "claude-batch unknown" is told --give-up
    And the API's clock goes 2 hours on
    Then in the ledger the counts of results come to be [3]
    And in the ledger the states of the requests come to be ["lost", "lost", "succeeded"]
    When the API's clock goes 9 hours on
    Then in the ledger the counts of results come to be [6]
    And in the ledger the states of the requests come to be ["errored", "errored", "succeeded"]
    And in the ledger the attempts of the requests are [1, 1, 1]
    And the API has seen 3 batches

  Scenario: A failure that is fetched late ends no request of which an earlier sending is in doubt
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 36000}},
                 {"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a batch provider with {"settling": 86000, "missing_after": 1, "max_attempts": 1}
    When a run of these prompts is submitted
      | prompt                                    |
      | [[sandbox:errored:invalid_request_error]] |
      | [[sandbox:errored:invalid_request_error]] |
    Then a batch of the run becomes unknown
    When "claude-batch unknown" is told --resubmit
    Then in the ledger the states of the requests come to be ["lost", "lost"]
    When the API has no faults any more
    Then the run's results are fetched again, and 0 are there
    And in the ledger the counts of results are [2]
    And in the ledger the states of the requests are ["lost", "lost"]
    When the API's clock goes 11 hours on
    Then in the ledger the counts of results come to be [4]
    And the run's results are fetched again, and 2 are there
    And in the ledger the states of the requests are ["errored", "errored"]

  Scenario: After three sendings that nobody answered a batch is split
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 2, 3], "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"settling": 0}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has seen 2 batches
    And the API has processed 4 requests, none twice

  Scenario: A single request that nobody ever answers halts sending
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"settling": 0, "max_wait": 30}
    When 1 prompts are asked at once
    Then every call fails with AccountHaltedError
    And the error is a AccountHaltedError that says
      """
      a batch of a single request was sent 3 times
      """

  Scenario: If no other program makes batches, a lone candidate is ours at once
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 3600, "exclusive_workspace": true}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice

  Scenario: A batch that was taken for ours and is not is given back
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 2, "exclusive_workspace": true}
    When a run of 3 prompts is submitted and somebody else makes a batch as large
    Then the run's state becomes halted
    And the status says "belongs to another client"
    When the provider resumes
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the run's requests were processed once each

  Scenario: In an exclusive workspace a batch that nobody can explain stops sending
    Given an API
    And a batch provider with {"exclusive_workspace": true}
    When a run of 2 prompts is submitted
    And the results are read in order
    And somebody else makes 1 batches of 7 requests
    And a run of these prompts is stored
      | prompt   |
      | prompt 9 |
    Then the run's state becomes halted
    And the status says "was not created by this ledger"
    When the provider resumes
    And the results are read in order
    Then every result is an answer

  Scenario: In an exclusive workspace an unknown sending explains no batch of another size
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [2], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 3600, "exclusive_workspace": true}
    When a run of these prompts is stored
      | prompt   |
      | prompt 8 |
    And the results are read in order
    And a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When somebody else makes 1 batches of 7 requests
    And a run of these prompts is stored
      | prompt   |
      | prompt 9 |
    Then the run's state becomes halted

  Scenario: A date that was ahead at the first sending explains no later batch in an exclusive workspace
    Given a server that means harm, before an API
    And it answers the first 1000 API calls with a clock that is an hour ahead
    And a batch provider with {"exclusive_workspace": true}
    When a run of 2 prompts is submitted
    And the results are read in order
    And somebody else makes 1 batches of 7 requests
    And a run of these prompts is stored
      | prompt   |
      | prompt 9 |
    Then the run's state becomes halted

  Scenario: A cancelled sending that proves free ends canceled
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 1}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When the run is cancelled
    And the run is waited for
    Then the status shows 2 requests canceled
    And the API has seen 0 batches
    # If they are asked for again, no number of a sending is used twice.
    And in the ledger the sendings of the requests are [1, 1]

  Scenario: A request that was sent again on order ends canceled if its first sending has proved free
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}},
                 {"route": "create", "action": {"type": "error", "status": 429}}]}
      """
    And a batch provider with {"settling": 1, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 1 prompts is submitted
    Then in the ledger the states of the batches come to be ["rejected", "packed"]
    When the run is cancelled
    Then the status shows 1 requests canceled

  Scenario: A cancelled sending that was accepted is cancelled once it is proved
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 1}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    When the run is cancelled
    And the run is waited for
    Then there is no error
    And the API has processed 2 requests, none twice

  Scenario: A batch at the API may be ours by its count, age and id
    Then a batch at the API may be ours as follows
      | what                          | batch                                        | ours |
      | as many, of the right age     | {"count": 4, "created": 1000}                | yes  |
      | nothing counted yet           | {"count": 0, "created": 1000}                | yes  |
      | another count                 | {"count": 5, "created": 1000}                | no   |
      | listed before the POST        | {"count": 4, "created": 1000, "id": "seen"}  | no   |
      | accounted for                 | {"count": 4, "created": 1000, "id": "known"} | no   |
      | older than the lookback       | {"count": 4, "created": 300}                 | no   |
      | just within the lookback      | {"count": 4, "created": 400}                 | yes  |
      | made after settling           | {"count": 4, "created": 2000}                | no   |
      | of an age that cannot be read | {"count": 4}                                 | yes  |

  Scenario: A list of batches that is not in the API's order is read to its end
    Then a list of batches is read back to a time as follows
      | order                              | pages                           | more | since | until          | read    |
      | newest first                       | [[900, 800], [300, 200], [90]]  | yes  | 500   | []             | 2       |
      | newest first, seconds apart        | [[900, 901], [300, 310], [90]]  | yes  | 500   | []             | 2       |
      | oldest first                       | [[90, 200], [300, 800], [900]]  | yes  | 500   | []             | 3       |
      | oldest first, a batch to a page    | [[600], [800], [300], [900]]    | yes  | 500   | []             | 4       |
      | nothing is older                   | [[900, 800], [700, 600], [590]] | yes  | 500   | []             | 3       |
      | a batch of before the sending      | [[900], [800], [700], [600]]    | yes  | 950   | [[700, 600]]   | 3       |
      | such a batch of each sending       | [[900], [800], [700], [600]]    | yes  | 950   | [[900], [600]] | 4       |
      | none was there before              | [[900], [800], [700]]           | yes  | 950   | [[]]           | 3       |
      | a short page again, without a word | [[900, 800], [900, 800]]        | no   | 500   | [[]]           | 2       |
      | a part of it again                 | [[900, 800], [800]]             | no   | 500   | [[]]           | in vain |
      | a short page again, and more       | [[900], [900], [800]]           | yes  | 500   | [[]]           | in vain |
      | a full page again                  | [[900, 899, 898, 897, 896, 895, 894, 893, 892, 891, 890, 889, 888, 887, 886, 885, 884, 883, 882, 881], [900, 899, 898, 897, 896, 895, 894, 893, 892, 891, 890, 889, 888, 887, 886, 885, 884, 883, 882, 881]] | no   | 500   | [[]]           | in vain |

  Scenario: The states of the candidates decide an unknown sending
    Then candidates decide as follows
      | states        | settled | decision     |
      |               | no      | none         |
      |               | yes     | not_accepted |
      | foreign       | yes     | not_accepted |
      | foreign, open | yes     | none         |
      | foreign, gone | yes     | unresolved   |
      | gone          | no      | none         |

  Scenario: A new batch avoids the count of an unknown one
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 3600, "max_requests": 3, "max_wait": 10}
    When a run of 6 prompts is submitted
    And the run is waited for
    Then the API's batches have 2 and 1 requests

  Scenario Outline: A candidate that the list does not show any more is asked for by its id: <answer>
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"settling": 0, "drive": false, "not_found_after": 0.3}
    When a sending of 2 prompts has become unknown
    And somebody else makes 1 batches of 2 requests
    And the ledger is advanced a few times
    And the API's clock goes 2 hours on
    And the sandbox is called with DELETE "/v1/messages/batches/{batch}"
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1], "action": <answer>}]}
      """
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError

    Examples:
      | answer                           |
      | {"type": "error", "status": 404} |
      | {"type": "error", "status": 400} |
      | {"type": "error", "status": 500} |
      | {"type": "drop_before"}          |

  Scenario Outline: A candidate whose results cannot be read at first is judged later: <fault>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "nth": [1], "action": <fault>}]}
      """
    And a batch provider with {"settling": 1}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

    Examples:
      | fault                                         |
      | {"type": "drop_before"}                       |
      | {"type": "cut_inside_line", "after_lines": 0} |
      | {"type": "garbage_line", "count": 9}          |
      | {"type": "missing_lines", "count": 4}         |

  Scenario: A batch that turns out to be of another size is set aside by its results
    Given an API whose batches count nothing for 2 seconds and take 4
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 2}
    When a run of 4 prompts is submitted
    And somebody else makes 1 batches of 7 requests
    Then a batch of the run becomes unknown
    And the status says "1 batch may be it"
    And a batch of the run becomes in_progress

  Scenario: Two sendings without an answer are distinguished by their results
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 2], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 2}
    When a run of these prompts is submitted
      | prompt  |
      | besides |
    And a run of 1 prompts is submitted
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And the API has processed 2 requests, none twice

  Scenario: From Python too it can be decided about what is unknown
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 3600}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    And decisions about the run's unknown requests change as follows
      | decision   | how           | requests |
      | give up    | synchronously | 2        |
      | give up    | awaited       | 0        |
      | send again | synchronously | 2        |
      | send again | awaited       | 0        |
    When the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: `claude-batch unknown` tells programs too, and decides for no run that is not named
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"settling": 3600}
    When a run of 2 prompts is submitted
    Then a batch of the run becomes unknown
    And "claude-batch unknown" says "the API's list of batches is watched until `settling` has passed"
    And "claude-batch unknown --json" exits with 0 and says ""run_id": "<its id>""
    And "claude-batch unknown --json" exits with 0 and says ""requests": 2"
    And "claude-batch unknown --give-up" exits with 2 and says "--give-up needs a RUN"
    When "claude-batch unknown" is told --give-up
    # What was given up is still shown, since it may be sent again on order.
    Then "claude-batch unknown <its id> --give-up" exits with 0 and says "nothing was changed"
