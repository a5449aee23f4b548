Feature: Callers and observers come and go while answers and events are on their way

  Scenario: An answer whose caller has just gone is let go, not taken
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the results are read in order
    And its answer comes for a caller who has just gone
    Then nobody has taken the answer, and it is let go

  Scenario: A request is waited for until the last of its callers has gone
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the results are read in order
    Then one of its two callers may go, and the other has the answer
    And where both go it is left once, to be withdrawn if it is not sent
    And where one of both wanted it to be kept, and goes first, it is let go

  Scenario: A thousand calls leave the event loop to its other tasks
    Given an API
    And a batch provider
    When 1000 prompts are asked at once, beside a task that counts the passes of the event loop
    Then all 1000 are answered
    And at most 100 calls began, and at most 100 were answered, in one pass

  Scenario: Calls that begin together share a timer, and each ends in time
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"max_wait": "600ms"}
    When 20 prompts are asked at once
    Then every call fails with BatchTimeoutError

  Scenario: Two ledgers of one process end apart from each other
    Given an API
    And a batch provider
    When a provider of another ledger is opened, used and closed
    And 2 prompts are asked at once
    Then all 2 are answered

  Scenario: A call to an engine that has failed raises its error at once
    Given an API
    And a batch provider
    When the ledger loses a table while a call waits
    And 2 prompts are asked at once
    Then every call fails with LedgerError
    And the API was called 0 times by POST /v1/messages/batches

  Scenario: Whoever waits for a change when its provider is closed does not wait for ever
    Given an API
    And a batch provider with {"drive": false}
    When a run of 1 prompts is stored without driving
    Then a change that is waited for after the provider was closed is there at once

  Scenario: What an observer carries is asked of the next one where it fails, which is logged once
    Given a program that logs
    And observers of which the first cannot say what it carries
    Then what is carried twice is what the second one says
    And the log has 1 line that says "carry() failed; requests are sent without it"

  Scenario: An observer that is detached while it names its events receives none
    Given an observer which leaves when it is asked what it wants
    When an event is told
    Then it was told nothing

  Scenario: Where no thread can start any more, events are handed over by who tells them
    Given an observer which finds no room for a thread
    When an event is told
    Then it was told at once, on the teller's own thread

  Scenario: An observer that is left behind is not read for any more
    Given an observer which takes the first event of many, and does not return
    When all observers are closed, and it returns at last
    Then it was told the first event alone

  Scenario: An asynchronous observer is awaited, one event after the other
    Given an observer which is asynchronous, and fails at the second event
    When 3 events are told, and all observers are closed
    Then it has taken the first and the third, on one loop of its own thread

  Scenario: Where no thread can start any more, an asynchronous observer is not begun
    Given an observer which is asynchronous, and finds no room for a thread
    When an event is told
    Then it was told nothing, and the log says that the process ends

  Scenario: What is asked of an observer in passing must not be asynchronous
    Then an observer with an asynchronous wants, or carry, is refused

  Scenario: A run that is removed before its end was reported is forgotten
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the results are read in order
    Then an observer of ends alone is told of that run once, and of none that is gone

  Scenario: An event of a kind that the log has no words for is written by its name
    Then the log's words for QueueMeasured are its name
