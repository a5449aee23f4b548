Feature: What happens between two steps of the driver is heeded by the next one

  Scenario: A sending that was accepted is found although another one may be it too
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_before"}},
                 {"route": "create", "nth": [2], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 1.5, "max_requests": 2}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario: In an exclusive workspace too, the results decide which of two sendings a batch is
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "create", "nth": [2], "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"settling": 1.5, "max_requests": 2, "exclusive_workspace": true}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario: In an exclusive workspace a lone batch is ours only once it counts as many requests
    Given an API whose batches count nothing for 0.5 seconds and take 1
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 3600, "exclusive_workspace": true}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice

  Scenario: A batch that was taken for ours is judged later where its results cannot be read yet
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "nth": [1], "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider with {"settling": 3600, "exclusive_workspace": true}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 2 requests, none twice

  Scenario: A batch that was taken for ours is ours once one answer of it is stored
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "nth": [1], "action": {"type": "error", "status": 400}},
                 {"route": "results", "nth": [2, 3, 4], "action": {"type": "missing_lines", "after_lines": 1, "count": 1}}]}
      """
    And a batch provider with {"settling": 1, "exclusive_workspace": true, "budget_usd": "1"}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And every result is an answer
    And the API has processed 2 requests, none twice
    And the budgets account for the API's bill

  Scenario: Missing results of a batch that is given back do not shorten the wait for ours
    Given an API that takes 1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}},
                 {"route": "results", "nth": [1, 2], "action": {"type": "missing_lines", "count": 3}}]}
      """
    And a batch provider with {"settling": 2, "exclusive_workspace": true}
    When a run of 3 prompts is submitted and somebody else makes a batch as large
    Then the run's state becomes halted
    And in the ledger the beginnings of gaps are [null]
    When the provider resumes
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the run's requests were processed once each

  Scenario: A batch that the ledger has forgotten is no candidate
    Given an API
    And a batch provider with {"settling": 0, "drive": false}
    When a sending of 2 prompts has become unknown
    And a batch of 2 requests is made that the ledger has sent and forgotten
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 4 requests, none twice

  Scenario: Sending that is halted while the list is read sends no more than a probe
    Given an API
    And a batch provider with {"drive": false}
    When a run of 3 prompts is stored without driving
    And at the point before_intent sending is halted
    And the ledger is advanced
    Then the API was called 0 times by POST /v1/messages/batches
    And the run's state becomes halted
    When the provider resumes
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 3 results in the order of the prompts

  Scenario: A copy of the ledger that sends in the same moment stops the sending
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And at the point before_high_water a copy of the ledger has sent as many batches
    And the ledger is advanced
    Then the API has seen 0 batches
    And the status says "ledger recover"

  Scenario: A ledger that falls behind its mark while the list is read sends nothing
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And at the point before_intent the ledger falls behind its mark
    And the ledger is advanced in vain
    Then the ledger error says "may not be sent, because the ledger is behind its high-water mark"
    And the API has seen 0 batches

  Scenario: A driver that is stopped during an upload has sent nothing
    Given an API
    And a batch provider with {"drive": false}
    When a run of large prompts of 3 MB is stored without driving
    And at the point during_upload the driver is stopped
    And the ledger is advanced
    Then the API has seen 0 batches
    When the provider is closed
    And another provider opens the run
    And the results are read in order
    Then every result is an answer
    And the API has paid for each once

  Scenario: A driver that is stopped before the end of an upload leaves it to the next process
    Given an API
    And a batch provider with {"drive": false}
    When a run of 3 prompts is stored without driving
    And at the point before_armed the driver is stopped
    And the ledger is advanced
    Then the API has processed 0 requests, none twice
    When the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice

  Scenario: A driver that is stopped after one of two batches leaves the other for the next
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"drive": false, "max_requests": 101}
    When a run of 202 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And at the point after_collected the driver is stopped
    And the ledger is advanced a few times
    Then the status shows 101 requests succeeded
    When the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 202 results in the order of the prompts
    And the API has processed 202 requests, none twice

  Scenario: A driver that is stopped as it stores the results of small batches judges these all the same
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"drive": false, "max_requests": 1}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    And the API's clock goes 2 hours on
    And at the point during_collect_chunk the driver is stopped
    And the ledger is advanced
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has processed 2 requests, none twice

  Scenario: A request that is cancelled as it is about to be packed is not packed
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And at the point before_pack the run is cancelled
    And the ledger is advanced
    Then the status shows 2 requests canceled
    And the API was called 0 times by POST /v1/messages/batches

  Scenario Outline: An answer that comes while its request is sent again is taken, and paid for once: <answered> of 3
    # Longer than a pass: a batch that has ended would be found, and no longer be unknown.
    Given an API that takes 3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}],
       "requests": [{"nth": <fails>, "outcome": "expired"}]}
      """
    And a batch provider with {"drive": false, "settling": 60}
    When a run of 3 prompts is stored without driving
    And the ledger is advanced
    And "claude-batch unknown" is told --resubmit
    And at the point before_armed the first sending's answers are collected
    And everything that is due is advanced until the run is finished
    Then the status shows 3 requests succeeded
    And the API has been paid 3 times, never twice for the same

    Examples:
      | answered | fails |
      | 3        | []    |
      | 2        | [1]   |

  Scenario: An upload that was given up because the disk was slow is no broken one
    Given an API
    And a batch provider with {"drive": false, "arm_window": 0.2}
    When a run of 1 prompts is stored without driving
    And it is packed, and its upload has broken twice
    And at the point after_armed the disk has taken 0.3 seconds
    And the ledger is advanced
    Then the status shows 1 requests packed
    And the API has processed 0 requests, none twice

  Scenario: A machine that sleeps before it sends the end of an upload sends no end
    Given an API
    And a batch provider with {"drive": false}
    When a run of 1 prompts is stored without driving
    And at the point after_armed the clock of this machine is 2 hours ahead
    And the ledger is advanced
    Then the status shows 1 requests packed
    And the API has processed 0 requests, none twice

  Scenario: Three uploads in a row that broke are taken for a refusal of their size
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_before", "after_bytes": 70000}}]}
      """
    And a batch provider with {"drive": false}
    When a run of large prompts of 24 MB is stored without driving
    And it is packed, and its upload has broken twice
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then every result is an answer
    And the API has paid for each once
    And the API has seen 2 batches

  Scenario: A probe whose answer is lost is followed by another one
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 402}},
                 {"route": "create", "nth": [2], "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"probe_interval": 0.3, "settling": 0}
    When a run of 2 prompts is stored without driving
    Then the status shows 2 requests succeeded
    And the API has processed 2 requests, none twice

  Scenario: If every request that could probe a halted account is cancelled, nothing is sent
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider with {"drive": false, "probe_interval": 0.1}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    And the run is cancelled
    And the ledger is advanced a few times
    Then the status shows 2 requests canceled
    And the API was called 1 times by POST /v1/messages/batches

  Scenario: A key that is refused between two sendings halts before anything is uploaded
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "nth": [2], "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    Then the run's state becomes halted
    And the API was called 0 times by POST /v1/messages/batches

  Scenario: A key that may list but not create is halted until a probe is accepted
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    When a run of 2 prompts is stored at once
    And 3 seconds pass
    Then the API was called 1 times by POST /v1/messages/batches
    And the run's state becomes halted
    When the API has no faults any more
    And the provider resumes
    Then the status shows 2 requests succeeded
    And the API's batches have 1 and 1 requests

  Scenario: A process whose key is accepted takes over at once from one that may only list
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    And another process that drives the ledger
    When a run of 2 prompts is stored at once
    Then the status shows 2 requests succeeded
    And the API was called 2 times by POST /v1/messages/batches

  Scenario: A refused key halts nobody while a process with another key drives
    Given an API
    And a batch provider with {"drive": false}
    When another process holds the leader lock
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 401}}]}
      """
    And the ledger is advanced
    Then in the ledger the halts of the workspaces are [null]

  Scenario: A refused key does not flood the API while a process with another key drives
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    When another process holds the leader lock
    And a run of 2 prompts is stored at once
    And 5 seconds pass
    Then the API was called at least 2 times by GET /v1/messages/batches
    And the API was called at most 5 times by GET /v1/messages/batches

  Scenario: A server that dislikes our first call is the API all the same
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "nth": [1], "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then all 2 are answered

  Scenario Outline: A check that is refused is made again: <route>
    Given an API that takes 0.3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "<route>", "nth": [1], "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then all 2 are answered
    And the API has processed 2 requests, none twice

    Examples:
      | route    |
      | retrieve |
      | results  |

  Scenario Outline: A 400 that names a request that is not in the batch is bisected like any other: <number>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 400,
        "message": "requests.<number>.params: something is wrong with it"}}]}
      """
    And a batch provider
    When a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has seen 2 batches

    Examples:
      | number               |
      | 7                    |
      | 18446744073709551616 |

  Scenario: Halves that were refused alike fail no probe, and are parted on once the account is in order
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 2, 3, 4], "action":
        {"type": "error", "status": 400, "message": "the body is not valid"}}]}
      """
    And a batch provider with {"probe_interval": 0.3}
    When a run of 6 prompts is stored without driving
    Then the status shows 6 requests succeeded
    And the API has processed 6 requests, none twice

  Scenario: A pass that its caller cancels is no fault of the engine
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "nth": [1], "action": {"type": "delay", "seconds": 30}}]}
      """
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And advancing is cancelled while the API is slow
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario Outline: A conversation that is cancelled while its next turn is prepared ends: <mode>
    Given an API
    And a batch provider with {"mode": "<mode>"}
    And its actor has the tools "population,weather"
    When at the point before_next_turn another process cancels the run
    And a run of these prompts is submitted
      | prompt                 |
      | Look [[sandbox:tools]] |
    Then in the ledger the states of the requests come to be ["canceled"]

    Examples:
      | mode  |
      | batch |
      | live  |

  Scenario Outline: A run that is cancelled during a sending ends at once if the API refuses it: <status>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": <status>, <more>}}]}
      """
    And a batch provider
    When at the point after_intent another process cancels the run
    And a run of 2 prompts is stored at once
    Then in the ledger the states of the requests come to be ["canceled", "canceled"]

    Examples:
      | status | more                                                                   |
      | 429    | "retry_after": 3600                                                    |
      | 400    | "message": "Your credit balance is too low to access the API."         |
      | 401    | "error": "authentication_error"                                        |
