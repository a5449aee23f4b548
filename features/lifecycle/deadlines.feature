@long
Feature: A deadline is met at full price where batches leave no time for it
  Only what did not run is asked live, and nothing is asked both ways.

  Scenario: only what did not run in its batch is asked live
    Given an API that takes 6 seconds for a batch
    And a batch provider with {"deadline": "20s", "deadline_margin": "17s"}
    When a run of 40 prompts is submitted
    And the results are read in order
    Then there are 40 results in the order of the prompts
    And some of the 40 answers came from batches and the others live, each paid once at its price
    And the run's deadline was met

  Scenario: with no fallback the run ends with what there is
    Given an API that takes 6 seconds for a batch
    And a batch provider with {"deadline": "20s", "deadline_margin": "17s", "fallback": "none"}
    When a run of 40 prompts is submitted
    And the results are read in order
    Then some of the 40 requests are answered and paid for once, and the others are expired at no cost
    And the error is a BatchRequestError that says
      """
      did not run before its run's deadline
      """
    And the API got 0 live calls, and was paid 0 times
    And the run's deadline was missed:

  Scenario Outline: what never left in a batch is asked live whole, also if the API refuses it <after> seconds later
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529, "retry_after": 600, "delay": <after>}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "59s"}
    When a run of 5 prompts is stored at once
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And 0 answers came from batches and 5 live, each paid once

    Examples: before the margin begins, and after
      | after |
      | 0     |
      | 2     |

  Scenario: a call near the deadline that was answered with a 500 is not made again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529, "retry_after": 600}},
                 {"route": "messages", "nth": 1, "action": {"type": "error", "status": 500, "processed": true}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "59s"}
    When a run of 5 prompts is stored at once
    And the results are read in order
    Then 4 results are answers and 1 are errors
    And the API got 5 live calls, and was paid 5 times
    And 5 calls were paid for live, none twice

  Scenario: a run that ends in its batch in time is not asked live
    Given an API
    And a batch provider with {"deadline": "20s", "deadline_margin": "5s"}
    When a run of 5 prompts is submitted
    And the results are read in order
    Then 5 answers came from batches and 0 live, each paid once
    And the run's deadline was met

  Scenario: a sending that may have been accepted is not asked live, whatever the deadline is
    Given an API that takes 8 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"deadline": "6s", "deadline_margin": "2s", "settling": "8s"}
    When a run of 5 prompts is stored at once
    Then the status says "nothing more goes into batches, and every request that did not run is sent live"
    When the results are read in order
    Then 5 answers came from batches and 0 live, each paid once
    And the run's deadline was missed: 5 requests sent, but it is not known yet whether the API accepted them

  Scenario: a sending that may have been accepted is waited for where its deadline would end it unsent
    Given an API that takes 8 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"deadline": "7s", "deadline_margin": "4s", "fallback": "none", "settling": 1, "on_unknown": "resubmit", "resubmit_after": 4}
    When a run of 2 prompts is stored at once
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: a request that waits to be sent again when its deadline ends it may have been billed
    Given an API that takes 600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "drop_after"}},
                 {"route": "create", "action": {"type": "error", "status": 529, "retry_after": 600}}]}
      """
    And a batch provider with {"deadline": "8s", "deadline_margin": "2s", "fallback": "none", "settling": 1, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 2 prompts is stored at once
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    And the error is a SubmissionUnknownError that says
      """
      It may have been billed
      """
    And the run's deadline was missed: 2 requests may have run, but no answer came before it

  Scenario: a live call that may have been billed is lost, also if its deadline ends the next try
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "messages", "nth": 1, "action": {"type": "error", "status": 500, "processed": true}},
                 {"route": "messages", "action": {"type": "error", "status": 429, "retry_after": 600}}]}
      """
    And a batch provider with {"mode": "live", "deadline": "4s", "deadline_margin": "1s", "fallback": "none", "live_retry": "always"}
    When a run of 1 prompts is submitted
    And the results are read in order
    Then result 0 failed with SubmissionUnknownError

  Scenario: a sending that has proved not to have been accepted is asked live
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "59s", "settling": "2s"}
    When a run of 5 prompts is stored at once
    And the results are read in order
    Then 0 answers came from batches and 5 live, each paid once
    And the run's deadline was met

  @slow
  @slow
  Scenario: a run with a deadline shares no batch, and no other run is cancelled with it
    Given an API that takes 9 seconds for a batch
    And a batch provider with {"deadline": "60s", "deadline_margin": "55s"}
    When a run of 3 prompts is stored at once
    Given a batch provider
    When a run of 4 prompts is stored at once
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has seen 2 batches
    And the API was called 1 times by POST /v1/messages/batches/*/cancel
    And the API's fields are
      | field                | value |
      | billing_summary.paid | 7     |

  Scenario: single calls have their deadline too, those of a moment in one batch
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"deadline": "60s", "deadline_margin": "58s"}
    When 6 prompts are asked at once
    Then all 6 are answered
    And the API has seen 1 batch
    And 6 calls were paid for live, none twice

  Scenario: a single call that does not run before its deadline says so
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529, "retry_after": 600}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "59s", "fallback": "none"}
    When the actor is asked in vain: "hello"
    Then the error is a BatchRequestError that says
      """
      the call did not run before its deadline, and `fallback: none` sends nothing live; nothing was billed for it
      """

  Scenario: a call that joins calls which have met their deadline goes live at its margin, too
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 2, "action": {"type": "error", "status": 529, "retry_after": 600}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "56s"}
    When "hello" is asked with the key "k"
    Then in the ledger the outcomes of the deadlines come to be ["met"]
    When 1 prompts are asked at once
    Then all 1 are answered
    And 1 calls were paid for live, none twice

  Scenario: a run that nobody drove in time says so, and is finished nevertheless
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"deadline": "1h", "deadline_margin": "2s"}
    When a run of 3 prompts is submitted
    And the provider is closed
    And the run is made overdue
    And another provider opens the run
    And the results are read in order
    Then 0 answers came from batches and 3 live, each paid once
    And the run's deadline was missed: no process drove the ledger when it came near

  Scenario: a batch whose deadline passes unseen is not sent
    Given an API
    And a batch provider with {"drive": false, "deadline": "1h", "deadline_margin": "2s", "fallback": "none"}
    When a run of 2 prompts is stored without driving
    And at the point before_intent the run is made overdue
    And the ledger is advanced
    Then the status shows 2 requests expired
    And the API was called 0 times by POST /v1/messages/batches

  Scenario: requests that come back canceled as the deadline passes are no live calls with no fallback
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"drive": false, "deadline": "1h", "deadline_margin": "3595s", "fallback": "none"}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    And a command waits 5.0 seconds
    And at the point after_collected the run is made overdue
    And everything that is due is advanced until the run is finished
    Then the status shows 2 requests expired
    And the run's deadline was missed: 2 requests did not run before it

  Scenario Outline: a deadline that leaves no time to act before it says so: <settings>
    Given an API that takes 600 seconds for a batch
    And a batch provider with <settings>
    When a run of 3 prompts is submitted
    And the results are read in order
    Then 0 answers came from batches and 3 live, each paid once
    And the run's deadline was missed: <why>

    Examples:
      | settings                                 | why                                          |
      | {"deadline": "0s"}                       | it left no time                              |
      | {"deadline": "3s", "deadline_margin": 0} | deadline_margin (0s) left no time before it |

  Scenario: what is tried again before its deadline keeps it
    Given an API that takes 6 seconds for a batch
    And a batch provider with {"deadline": "17s", "deadline_margin": "5s"}
    When a run of these prompts is submitted
      | prompt                                            |
      | [[sandbox:errored:invalid_request_error:once]]    |
    And the results are read in order
    Then 0 results are answers and 1 are errors
    And in the ledger the outcomes of the deadlines come to be ["met"]
    When what failed in the run is retried
    Then 0 answers came from batches and 1 live, each paid once

  Scenario: what is tried again after its deadline is asked in batches, without one
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "error", "status": 529, "retry_after": 600}}]}
      """
    And a batch provider with {"deadline": "60s", "deadline_margin": "59s", "fallback": "none"}
    When a run of 3 prompts is stored at once
    And the results are read in order
    Then 0 results are answers and 3 are errors
    When the API has no faults any more
    And the run is made free to be sent
    And what failed in the run is retried
    Then 3 answers came from batches and 0 live, each paid once

  Scenario: A deadline that was met stops no unknown sending of a retry after it
    Given an API that takes 4 seconds for a batch
    And a batch provider with {"deadline": "17s", "deadline_margin": "5s", "fallback": "none", "max_attempts": 1, "settling": 1, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of these prompts is submitted
      | prompt                                    |
      | [[sandbox:errored:overloaded_error:once]] |
    And the results are read in order
    Then 0 results are answers and 1 are errors
    And in the ledger the outcomes of the deadlines come to be ["met"]
    When the run is made overdue
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And what failed in the run is retried
    Then 1 results are answers and 0 are errors
    And the API has seen 3 batches

  Scenario: what is tried again within the margin leaves the deadline to the others
    Given an API that takes 600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 400,
                  "message": "requests.0.params: no"}}]}
      """
    And a batch provider with {"drive": false, "deadline": "1h", "deadline_margin": "2s"}
    When a run of 2 prompts is stored without driving
    And the ledger is advanced
    Then in the ledger the states of the requests are ["errored", "packed"]
    When the run is made overdue
    And at the point after_margin the failures of the last run are queued again
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then 0 answers came from batches and 2 live, each paid once

  Scenario: a cancelled run that is asked for again after its deadline has none any more
    Given an API
    And a batch provider with {"drive": false, "deadline": "1h", "fallback": "none"}
    When a run of 2 prompts is stored without driving
    And the run is cancelled
    And the run is made overdue
    And a run of 2 prompts is stored without driving
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then 2 answers came from batches and 0 live, each paid once

  Scenario: the status tells the deadline, its margin, and what will happen
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"deadline": "1h", "deadline_margin": "10m"}
    When a run of 3 prompts is submitted
    Then the status says "its deadline is in 1h: unfinished batches are canceled in 50m, and every request that did not run is sent live"
    And the run's fields are
      | field                     | value  |
      | status.deadline.margin    | 600    |
      | status.deadline.fallback  | "live" |
      | status.deadline.outcome   | null   |
      | status.deadline.withdrawn | null   |

  Scenario: a cancelled run has no deadline any more
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"deadline": "10s", "deadline_margin": "4s"}
    When a run of 3 prompts is submitted
    And the run is cancelled
    And the results are read in order
    Then 0 results are answers and 3 are errors
    And 0 calls were paid for live, none twice

  Scenario: a look that takes long puts the next one off, but not beyond the margin
    Given an API
    And a batch provider with {"drive": false, "deadline": "120s", "deadline_margin": "105s", "fallback": "none"}
    When a run of 2 prompts is stored without driving
    Then its deadline is looked at 0 seconds later, slowly, and once more no later than its margin begins

  Scenario: a clock that jumps back does not put off what a deadline asks for
    Given an API
    And a batch provider with {"drive": false, "deadline": "120s", "deadline_margin": "10s", "fallback": "none"}
    When a run of 2 prompts is stored without driving
    Then its deadline is looked at 115 seconds later, and once more when the clock has jumped back
    And the status shows 2 requests expired

  Scenario: a slow look past the deadline is followed by the next one within a minute
    Given an API that takes 600 seconds for a batch
    And a batch provider with {"drive": false, "deadline": "2m", "deadline_margin": "10s"}
    When a run of 3 prompts is stored without driving
    Then its deadline is looked at 130 seconds later, slowly, and once more within a minute

  Scenario: The margin is set, or learned from what batches and live calls took
    Then the margin of a run is as follows
      | time | unfinished | set to | a cancelled batch took | a call took | margin |
      | 10h  | 1000       |        |                        |             | 3360   |
      | 10h  | 1000       | 5m     | 200                    | 1           | 300    |
      | 10h  | 1000       | 0s     | 200                    | 1           | 0      |
      | 10h  | 1000       |        | 200                    | 1           | 1440   |
      | 10h  | 1          |        | 1                      | 1           | 60     |
      | 10m  | 1000       |        | 200                    | 1           | 300    |
      | 24h  | 100000     |        | 100                    | 0.01        | 1320   |

  Scenario: what the ledger has seen is what the margin is learned from
    Given an API that takes 6 seconds for a batch
    And a batch provider with {"deadline": "20s", "deadline_margin": "17s"}
    When a run of 10 prompts is submitted
    And the results are read in order
    Then the ledger has learned how long a cancelled batch and a live call take

  Scenario: A cancelled batch that nobody collected for hours lengthens the margin by half an hour
    Given an API
    And a batch provider with {"deadline": "24h"}
    When a run of 3 prompts is submitted
    And the results are read in order
    And the ledger's batches are changed to
      | cancel_requested  | collected     |
      | 72000 seconds ago | 0 seconds ago |
    Then the run's fields are
      | field                  | value |
      | status.deadline.margin | 2160  |

  Scenario: A night between two live calls of a run is no time that a live call takes
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 400}
    And a batch provider with {"mode": "live"}
    When a run of 10 prompts is submitted
    And the results are read in order
    And the ledger's batches are changed to
      | created           | ended             | collected         |
      | 36000 seconds ago | 35990 seconds ago | 35990 seconds ago |
    And what failed in the run is retried
    Then the ledger has learned how long a live call takes

  Scenario: The time between two single calls is no time that a live call takes
    Given an API
    And a batch provider with {"mode": "live"}
    When the actor is asked: "one"
    And a command waits 1.5 seconds
    And the actor is asked: "two"
    Then the ledger has learned nothing of how long a live call takes

  Scenario Outline: A run with a deadline is waited for until after it, unless max_wait is set: <flags>
    Given a command's API with {"latency": 600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --deadline <flags>
    Then the command line exits with 0
    And in the ledger the longest waits of the runs are [<seconds>]
    When a command runs: submit actor.yaml asks.jsonl --deadline <flags>
    Then in the ledger the longest waits of the runs are [<seconds>]

    Examples:
      | flags             | seconds  |
      | 2h                | 93600.0  |
      | 48h               | 180000.0 |
      | 48h --max-wait 1h | 3600.0   |

  Scenario: A reason for a missed deadline says where the requests stand
    Then a run has missed its deadline because of its requests as follows
      | count | state      | batch     | fallback | reason                                                                 |
      | 3     | packed     | canceling | live     | 3 requests in batches that were canceled and have not ended            |
      | 3     | packed     | unknown   | live     | 3 requests sent, but it is not known yet whether the API accepted them |
      | 3     | packed     | live      | live     | 3 requests in a live call                                              |
      | 3     | queued     | none      | live     | 3 requests waiting for a live call                                     |
      | 3     | queued     | none      | none     | 3 requests did not run before it                                       |
      | 3     | packed     | packed    | live     | 3 requests waiting to be withdrawn                                     |
      | 3     | continuing | live      | live     | 3 conversations between two turns                                      |

  Scenario Outline: A deadline that leaves no time for a batch is a warning: <flags>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl <flags>
    Then the command line exits with <code> and says
      """
      the deadline is in <words>: that leaves no time for a batch, and every request <instead>
      """
    And the command line says
      """
      its deadline was <outcome>
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --deadline 2h --deadline-margin 1h --new
    Then the command line exits with 0
    And the command line does not say: leaves no time

    Examples:
      | flags                                              | code | words                         | instead                     | outcome                                      |
      | --deadline 1h --deadline-margin 2h                 | 0    | 1h, and deadline_margin is 2h | is sent live, at full price | met                                          |
      | --deadline 0s                                      | 0    | 0s                            | is sent live, at full price | missed: it left no time                      |
      | --deadline 1h --deadline-margin 1h --fallback none | 1    | 1h, and deadline_margin is 1h | expires without being sent  | missed: 2 requests did not run before it     |
