@every_python
Feature: Observers receive every step, and cannot harm a run

  Scenario: Observers receive the steps of a run in order
    Given an API
    And an observer that remembers
    And a batch provider that is observed
    When 5 requests are submitted, waited for, and the provider is closed
    Then the observer was told
      | RequestsQueued   |
      | BatchSubmitted   |
      | BatchEnded       |
      | ResultsCollected |
      | RunFinished      |
    And the ResultsCollected events have these fields in the same order
      | outcomes         | requests | final | missing | models                           | run_ids.0 | run_ids.1 |
      | {"succeeded": 5} | 5        | 5     | 0       | {"claude-haiku-4-5-20251001": 5} | run-…     |           |
    And the ResultsCollected events have the tokens and the cost of the results
    And each event names the ledger and what it is about

  Scenario: Events of a single call name the run that holds the calls of its process
    Given an API
    And an observer that remembers
    And a batch provider that is observed
    When 3 prompts are asked at once
    And the provider is closed
    # Calls that are made at once are mostly stored at once; a busy machine takes them one by one.
    Then the RequestsQueued events sum up to
      | requests |
      | 3        |
    And the BatchSubmitted events sum up to
      | requests |
      | 3        |
    And the ResultsCollected events sum up to
      | final |
      | 3     |
    And the event RequestsQueued has kind "calls"
    And the observer was told nothing of RunFinished

  Scenario: Transient failures are reported as retried
    Given an API
    And an observer that remembers
    And a batch provider that is observed
    When a run of these prompts is submitted
      | prompt                                           |
      | [[sandbox:errored:overloaded_error:once]] busy   |
      | good                                             |
      | [[sandbox:errored:invalid_request_error]] broken |
    And the run is waited for
    And the provider is closed
    Then the event RequestsRetried has requests 1
    And the event ResultsCollected has errors {"overloaded_error": 1, "invalid_request_error": 1}
    And the event RunFinished has counts {"succeeded": 2, "errored": 1}

  Scenario: An unknown sending and its resolution are reported
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And an observer that remembers
    And a batch provider that is observed with {"settling": 0.5}
    When 2 requests are submitted, waited for, and the provider is closed
    Then the event BatchUnknown has requests 2
    And the event UnknownDecided has outcome "found"

  Scenario: A halt and its end are reported
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 402}}]}
      """
    And an observer that remembers
    And a batch provider that is observed
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
      | prompt 1 |
    Then the run's state becomes halted
    And the event SendingHalted has reason "billing"
    When the provider resumes
    And the run is waited for
    And the provider is closed
    Then the event SendingResumed has reason "billing"

  Scenario: A run that a budget holds is reported once for each budget that holds it
    Given an API
    And an observer that remembers
    And a batch provider that is observed with {"budget_usd": "0.005"}
    When a run of 2 prompts is submitted
    Then the event RunHeld names the run
    And the event RunHeld has requests 2
    And the event RunHeld has scope "run"
    When the run's budget is raised to $0.006
    Then the observer was told
      | RequestsQueued   |
      | RunHeld          |
      | RunHeld          |
    When the run's budget is raised to $1
    And the run is waited for
    And the provider is closed
    Then the observer was told
      | RequestsQueued   |
      | RunHeld          |
      | RunHeld          |
      | BatchSubmitted   |
      | BatchEnded       |
      | ResultsCollected |
      | RunFinished      |
    And each event names the ledger and what it is about

  Scenario: The reason of a held run names the ledger in its command, if commands use another by default
    Given an API
    And an observer that remembers
    And a batch provider that is observed with {"budget_usd": "0.005"}
    And commands use another ledger by default
    When a run of 2 prompts is submitted
    Then the event RunHeld names the ledger in its reason

  Scenario: A cancelled run is reported as cancelled
    Given an API that takes 3600 seconds for a batch
    And an observer that remembers
    And a batch provider that is observed
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    And the provider is closed
    Then the event RunCancelled names the run
    And the event RunFinished has state "cancelled"

  Scenario: A run that has ended cannot be cancelled any more
    Given an API
    When this program runs
      """
      seen = []
      with cb.ClaudeBatchProvider(observers=[seen.append], max_attempts=1, **settings) as provider:
          run = cb.Actor(asker, provider).submit_sync(["one", "two [[sandbox:canceled:once]]"])
          run.wait_sync()
          run.cancel_sync()
          print(run.status().state, run.retry_failed_sync())
      print([type(event).__name__ for event in seen if "Cancelled" in type(event).__name__])
      """
    Then the program has printed
      """
      finished 1
      []
      """

  Scenario: A process that only waits reports its own run
    Given an API
    And an observer that remembers
    And a batch provider that is observed with {"drive": false}
    And another process that drives the ledger
    When 2 requests are submitted, waited for, and the provider is closed
    Then the observer was told
      | RequestsQueued |
      | RunFinished    |

  Scenario: An observer that fails does not harm the run, and its failure is logged once
    Given an API
    And an observer that raises
    And an observer that remembers
    And a batch provider that is observed
    When 5 requests are submitted, waited for, and the provider is closed
    Then the run is finished with 5 answers
    And the log has 1 line that says "failed at RequestsQueued; the run continues"
    And the log has 1 line that says "failed at"
    And the event RunFinished has requests 5

  Scenario: An observer that exits when it is asked for its events does not stop the engine
    Given an API
    And an observer that exits in wants
    And a batch provider that is observed
    When these prompts are asked: one, two
    Then all 2 are answered
    And the log has 1 line that says "failed at wants; the run continues"

  Scenario: An observer that blocks does not harm the run, and closing does not wait for it
    Given an API
    And an observer that never returns
    And an observer that remembers
    And a batch provider that is observed
    When 5 requests are submitted, waited for, and the provider is closed within 30 s
    Then the run is finished with 5 answers
    And the event RunFinished has requests 5
    And the log has 1 line that says "is abandoned"

  Scenario: If an observer is too slow, its oldest events are dropped and counted
    Then an observer that is busy with its first event takes as follows
      | told | first | second | last |
      | 1001 | 0     | 1      | 1000 |
      | 1500 | 0     | 500    | 1499 |
    And the log has 1 line that says "is too slow: its oldest events"
    And the log has 1 line that says "missed 499 events"

  Scenario: An observer that is too slow again is warned of again, at most once a minute
    Then the log says how many events such an observer has lost as follows
      | rounds                  | log               |
      | 0 1002                  | 1 event           |
      | 0 1003, 30 1002         | 1 event           |
      | 0 1003, 61 5000         | 1 event, 3 events |
      | 0 1002, 61 999, 62 1003 | 1 event, 2 events |

  Scenario: An observer of two providers receives each event once, until both are closed
    Given an API
    And an observer that remembers
    And a batch provider that is observed
    And a second provider with the same observer, which is closed again
    When 2 requests are submitted, waited for, and the provider is closed
    Then the observer was told
      | RequestsQueued   |
      | BatchSubmitted   |
      | BatchEnded       |
      | ResultsCollected |
      | RunFinished      |

  Scenario: Results one by one are for who wants them
    Given an API
    And an observer that wants everything
    And a batch provider that is observed
    When 2 requests are submitted, waited for, and the provider is closed
    Then the answers one by one have these fields in the same order
      | position | run_id | outcome   | attempt | request_model    | model                     | asked |
      | 0        | run-…  | succeeded | 1       | claude-haiku-4-5 | claude-haiku-4-5-20251001 | …     |
      | 1        | run-…  | succeeded | 1       | claude-haiku-4-5 | claude-haiku-4-5-20251001 | …     |
    And the answers one by one have the tokens and the cost of the results
    And the RequestsAnswered events have these fields in the same order
      | batch_id  | submitted | ended |
      | msgbatch… | …         | …     |
    And it was told how much waits

  Scenario: The queue is measured again after its last change
    Given an API
    When this program runs
      """
      import time

      from claude_batch import events
      from claude_batch.lifecycle import event_reports

      event_reports.MEASURED_APART = 2.0
      sizes = []

      class Observer:
          def wants(self, kind):
              return kind is events.QueueMeasured

          def on_event(self, event):
              sizes.append((event.queued, event.at_api))

      with cb.ClaudeBatchProvider(observers=[Observer()], **settings) as provider:
          cb.Actor(asker, provider).respond_sync("one")
          end = time.monotonic() + 15
          while len(sizes) < 2 and time.monotonic() < end:
              time.sleep(0.05)
          print(len(sizes), sizes[-1])
      """
    Then the program has printed
      """
      2 (0, 0)
      """

  Scenario: Observers that ask for live calls receive them, and all receive the end of a live run
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500}
    And an observer that wants everything
    And a batch provider that is observed with {"mode": "live", "live_retry": "always"}
    When 3 requests are submitted, waited for, and the provider is closed
    Then the CallsAnswered events sum up to
      | requests | outcomes.succeeded | errors.api_error | models.claude-haiku-4-5-20251001 | unpriced |
      | 4        | 3                  | 1                | 3                                | 0        |
    And the CallsAnswered events have the tokens and the cost of the results
    And the answers one by one have these fields in any order
      | position | outcome   | error_type | cost |
      | 0        | succeeded |            | …    |
      | 1        | succeeded |            | …    |
      | 2        | succeeded |            | …    |
      | …        | …         | api_error  |      |
    And the answers one by one have the tokens and the cost of the results
    And the observer was told nothing of BatchSubmitted
    And the event RequestsRetried has requests 1
    And the event RunFinished has counts {"succeeded": 3}

  Scenario: A command in the log names a ledger that is not the default
    Given an API that takes 0.1 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "action": {"type": "error", "status": 404}}]}
      """
    And a program that logs
    And a batch provider with {"settling": 0.5, "not_found_after": 0.5, "missing_after": 0.5}
    And commands use another ledger by default
    When a run of 2 prompts is submitted
    Then the status shows 2 requests lost
    And the log has 1 line that says "To send it again: claude-batch unknown RUN --resubmit --ledger "

  Scenario: The log has one line for each event, with its fields
    Given an API
    And a program that logs
    And a batch provider
    When 5 requests are submitted, waited for, and the provider is closed
    Then the log lines of events have these fields in the same order
      | event            | ledger | run_id | requests | getMessage              |
      | RequestsQueued   | …      | run-…  | 5        | run-…: 5 requests queued (tests/asker) |
      | BatchSubmitted   | …      |        | 5        | batch msgbatch…: 5 requests submitted |
      | BatchEnded       | …      |        | 5        | batch msgbatch…ended: 5 succeeded |
      | ResultsCollected | …      |        | 5        | batch msgbatch…: 5 final, … |
      | RunFinished      | …      | run-…  | 5        | run-… finished: 5 succeeded of 5 |

  Scenario: Every event can be told in words, and written with its fields
    Then each kind of event has words of its own, and no field that logging takes for its own
