Feature: How far a run is, and what it waits for, since when, and what would change it

  Scenario: A run in progress reports its share, its cost so far, its failures and its likely end
    Given an API that takes 1 seconds for a batch
    And a batch provider with {"max_requests": 4, "max_attempts": 1}
    When a run of these prompts is submitted
      | prompt                                           |
      | one                                              |
      | [[sandbox:errored:invalid_request_error]] broken |
      | [[sandbox:expired]] late                         |
      | four                                             |
    And the run is waited for
    Then the progress is 1.0 with the failures {"expired": 1, "invalid_request_error": 1}
    And the progress's cost is that of the run's report
    And the run's fields are
      | field                 | value |
      | progress.expected_end | null  |
    When the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 500}}]}
      """
    And 3 more prompts are submitted
    Then the progress is 0.0 with the failures {}
    And the end is expected about as late as the last batch took

  Scenario: An end is expected although the API's clock is behind
    Given an API with {"latency": 2, "clock_offset": -3600}
    And a batch provider
    When a run of 2 prompts is submitted
    And the run is waited for
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 500}}]}
      """
    And 3 more prompts are submitted
    Then the end is expected about as late as the last batch took

  Scenario: Collected answers are summed up while the rest is in progress
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [2, 3, 4, 5, 6, 7, 8, 9], "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"max_requests": 2}
    When 4 more prompts are submitted
    Then the run's fields come to be
      | field         | value |
      | progress.done | 0.5   |
    And the progress's cost is that of the run's report

  Scenario: An end is estimated if past batches allow it
    Then the end of a run is expected as follows
      | what                                    | batches submitted ago | more to send | one after another | past batches took | pause | ends in |
      | the median                              | 0                     | no           | 0                 | 10, 20, 90        | 0     | 20      |
      | of those that took longer than this one | 50                    | no           | 0                 | 10, 20, 90        | 0     | 40      |
      | the latest of several                   | 0, 15                 | no           | 0                 | 10, 20, 30        | 0     | 20      |
      | with what is to be sent                 | 15                    | yes          | 0                 | 10, 20, 30        | 0     | 20      |
      | with what is to be sent after a pause   | 15                    | yes          | 0                 | 10, 20, 30        | 3600  | 3620    |
      | more than may be sent at once           | 15                    | no           | 3                 | 10, 20, 30        | 0     | 70      |
      | nothing waits                           |                       | no           | 0                 | 10                | 0     | 0       |
      | no batch has ended yet                  | 5                     | no           | 0                 |                   | 0     | never   |
      | it takes longer than any                | 100                   | no           | 0                 | 10, 20, 90        | 0     | never   |

  Scenario: The end is estimated by the API's clock, on a machine whose clock is two hours behind
    Given a command's API with {"clock_offset": 7200, "latency": 2}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl -o one.jsonl
    And a command runs: run actor.yaml asks.jsonl -o two.jsonl --new
    Then the command line says
      """
      s left
      """
    And the command line does not say: h left

  Scenario Outline: Each state says what is waited for and what would change it: <state>
    Given an API that takes 3600 seconds for a batch
    And a run that is <state>
    Then its status says it is "<state>" and waits since a time that is past
    And its status's words have
      """
      <words>
      """

    Examples:
      | state                 | words                                                                                                          |
      | storing               | still being stored, and none is sent before                                                                    |
      | running               | 1 batch at the API for                                                                                         |
      | parked                | no process drives it; continue with `claude-batch resume`                                                      |
      | halted                | fix the cause, then run `claude-batch resume`; halted for                                                      |
      | queued                | queued; it will be sent automatically                                                                          |
      | unknown               | it is unknown whether the API accepted 1 batch with 1 request                                                  |
      | cancelling            | the run was cancelled: what the API has of it ends soon, and the results so far are kept                       |
      | unknown and cancelled | the run was cancelled: what the API has of it ends soon, and the results so far are kept; it is unknown whether |

  Scenario Outline: A run that nobody drives is not said to be parked where more is known: <state>
    Given an API that takes 3600 seconds for a batch
    And a run that is <state>
    When the provider is closed
    Given a batch provider with {"drive": false}
    Then its status says it is "<shown>" and waits since a time that is past
    And its status's words have
      """
      no process drives it; continue with `claude-batch resume`
      """

    Examples:
      | state                 | shown      |
      | running               | parked     |
      | unknown               | unknown    |
      | cancelling            | cancelling |
      | unknown and cancelled | cancelling |

  Scenario: A halt outranks what is unknown, and a cancellation both
    Given an API that takes 3600 seconds for a batch
    And a run that is unknown
    When the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And 1 prompts are asked at once
    Then every call fails with AccountHaltedError
    And its status says it is "halted" and waits since a time that is past
    When the run is cancelled
    Then its status says it is "cancelling" and waits since a time that is past

  Scenario: The status shows that a batch is being uploaded
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "hang", "seconds": 5, "processed": true}}]}
      """
    And a batch provider
    When a run of 2 prompts is stored without driving
    Then the status says "1 batch being sent"

  Scenario: Times are said as people say them
    Then seconds are said as follows
      | seconds | words  |
      | -3      | 0s     |
      | 45.4    | 45s    |
      | 754     | 13m    |
      | 3600    | 1h     |
      | 5000    | 1h 23m |
      | 12000   | 3h 20m |
      | 100000  | 27h 47m |
      | 172800  | 2d     |
      | 187000  | 2d 4h  |

  Scenario: The display shows how far it is, and that time passes is no news
    Then the display's plain lines with progress are
      """
      run-abcdefghij running: 990 succeeded, 10 packed of 1,000, 99.9 % done, cost so far $0.0123 plus unpriced answers, about 12m left, failed: 3 expired, 1 api_error (1 batch)
      run-abcdefghij running: 990 succeeded, 10 packed of 1,000, 99.9 % done, failed: 3 expired, 1 api_error (1 batch)
      """
    And progress is put into words as follows
      | fields                                                           | words                                                                                                            |
      | {}                                                               | ["99.9 % done", "cost so far $0.0123 plus unpriced answers", "about 12m left", "failed: 3 expired, 1 api_error"] |
      | {"budget": 50000000, "failures": {}}                             | ["99.9 % done", "cost so far $0.0123 of $0.05 plus unpriced answers", "about 12m left"]                          |
      | {"cost": 0, "unpriced": 0, "expected_end": null, "failures": {}} | ["99.9 % done"]                                                                                                  |

  Scenario: A line of progress=True is at most a second late
    Then a change is printed by progress=True as follows
      | seconds after the first line | at  |
      | 0.6                          | 1.0 |
      | 1.3                          | 1.3 |

  @slow
  Scenario: On a terminal a run shows a progress bar above its batches
    Given a command's API with {"latency": 3}
    And a command's file "asks.jsonl"
      """
      {"id": "a", "prompt": "one"}
      {"id": "b", "prompt": "two"}
      {"id": "c", "prompt": "[[sandbox:errored:overloaded_error]] three"}
      """
    When a command runs on a terminal with a cursor: run actor.yaml asks.jsonl -o out.jsonl --budget 20 --max-attempts 4
    Then the terminal has drawn right above a table
      | line                                                                    |
      | ━ 0 of 3 requests done, cost so far \$0\.00 of \$20                      |
      | ━ 2 of 3 requests done, cost so far \$0\.\d+ of \$20, about [0-3]s left |
    And the terminal shows "is stored: 3 requests"
    And the terminal shows "waiting for: 1 batch at the API"

  Scenario Outline: A function is given the progress of a run: by <way>
    Given an API that takes 1.5 seconds for a batch
    And a batch provider with {"max_requests": 2, "max_attempts": 1}
    When these prompts are asked with progress that works, by <way>
      | prompt                                           |
      | one                                              |
      | two                                              |
      | [[sandbox:errored:invalid_request_error]] broken |
      | [[sandbox:expired]] late                         |
    Then the first progress's fields are
      | field         | value    |
      | done          | 0        |
      | cost          | 0        |
      | expected_cost | 10266000 |
    And the results sum up to
      | response.cost |
      | 79000         |
    And the last progress's fields are
      | field                     | value                                        |
      | done                      | 1                                            |
      | cost                      | 79000                                        |
      | expected_cost             | 79000                                        |
      | to_dict.expected_cost_usd | 0.000079                                     |
      | completed                 | 4                                            |
      | total                     | 4                                            |
      | outcomes                  | {"errored": 1, "expired": 1, "succeeded": 2} |
      | failures                  | {"expired": 1, "invalid_request_error": 1}   |
      | budget                    | null                                         |
      | unpriced                  | 0                                            |

    Examples:
      | way                       |
      | submit and wait           |
      | submit_sync and wait_sync |
      | respond_all               |
      | respond_all_sync          |
      | an `async with` block     |
      | a `with` block            |

  Scenario Outline: A function that fails does not harm the run, is not called again, and is logged: by <way>
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When these prompts are asked with progress that fails, by <way>
      | prompt   |
      | prompt 0 |
      | prompt 1 |
    Then there are 2 results in the order of the prompts
    And the last progress's fields are
      | field | value |
      | done  | 0     |
    And the log has 1 line that says "failed; it is not called again, and the run continues"

    Examples:
      | way                       |
      | submit_sync and wait_sync |
      | respond_all               |

  Scenario: A caller that leaves early hears no end
    Given an API
    And a batch provider
    When these prompts are asked with progress that works, by a `with` block that is left at the first result
      | prompt   |
      | prompt 0 |
      | prompt 1 |
    Then there are 1 results in the order of the prompts

  Scenario: However often something changes, progress is reported twice a second at most
    Then progress is due as follows
      | what                                 | looks at                            | each takes | due at           |
      | after half a second                  | 0, 0.1, 0.4, 0.5, 0.9, 1.0          | 0          | 0, 0.5, 1.0      |
      | after a look that took long, later   | 0, 0.5, 1.0, 2.4, 2.5, 3.0, 4.5     | 0.1        | 0, 0.5, 2.5, 4.5 |
      | after a look that took very long     | 0, 0.5, 3.0, 5.5, 6.0               | 10         | 0, 0.5, 5.5      |
      | without a change, after five seconds | 0, 1 same, 4.9 same, 5 same, 6 same | 0          | 0, 5             |

  Scenario: Live calls report their progress too
    Given an API
    And a live actor
    When these prompts are asked with progress that works, by respond_all
      | prompt                                           |
      | one                                              |
      | [[sandbox:errored:invalid_request_error]] broken |
      | [[sandbox:refused]] no                           |
      | [[sandbox:window]] long                          |
    Then the last progress's fields are
      | field     | value                                                                        |
      | done      | 1                                                                            |
      | completed | 4                                                                            |
      | total     | 4                                                                            |
      | outcomes  | {"succeeded": 1, "errored": 1, "refused": 1, "window_exceeded": 1}           |
      | failures  | {"invalid_request_error": 1, "refused": 1, "window_exceeded": 1}             |
      | cost      | 151000                                                                       |

  Scenario: A progress that cannot be called is refused
    Then progress functions are checked as follows
      | progress  | error                                    |
      | print     |                                          |
      | True      |                                          |
      | None      |                                          |
      | 5         | progress: 5 is not a function            |
      | async def | is an `async def`, and nothing awaits it |

  Scenario: progress=True shows the bar of the command line on a terminal and in a notebook
    Given an API that takes 2 seconds for a batch
    And a batch provider
    Then progress=True shows as follows
      | where          | way                       | shown                                                         |
      | on a terminal  | submit_sync and wait_sync | …0 of 3 requests done…3 of 3 requests done, cost so far $0.0… |
      | in a notebook  | respond_all               | …0 of 3 requests done…3 of 3 requests done, cost so far $0.0… |
      | without either | a `with` block            | …running: 3…finished: 3 succeeded of 3, 100.0 % done…         |
