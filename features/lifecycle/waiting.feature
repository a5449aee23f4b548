Feature: Callers and observers come and go while answers and events are on their way

  Scenario: A request is waited for until the last of its callers has gone
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the results are read in order
    Then the callers of one request come, and go before its answer is there as follows
      | callers | go    | cancelled | kept by | answered | taken | let go | withdrawn |
      | 1       | []    | no        | []      | [1]      | 1     | 0      | 0         |
      | 1       | [1]   | yes       | []      | []       | 0     | 1      | 0         |
      | 2       | [1]   | no        | []      | [2]      | 1     | 0      | 0         |
      | 2       | [1,2] | no        | []      | []       | 0     | 0      | 1         |
      | 2       | [1,2] | no        | [1]     | []       | 0     | 1      | 0         |

  Scenario: A thousand calls leave the event loop to its other tasks
    Given an API
    And a batch provider
    When 1000 prompts are asked at once, beside a task that counts the passes of the event loop
    Then all 1000 are answered
    And at most 100 calls began, and at most 100 were answered, in one pass

  Scenario Outline: An answer that was on its way to a cancelled caller is not paid for again: <door>
    Given an API
    And a batch provider with {"linger": "200ms"}
    When 300 prompts are asked in a task group by <door>, and one of them fails
    And the prompts without an answer are asked again
    Then all of them are answered, and the API has processed each prompt once

    Examples:
      | door                       |
      | a plain call               |
      | a call with middleware     |
      | the SDK's client           |

  Scenario Outline: A caller <that> leaves its answer to an equal call
    Given an API that takes 1 seconds for a batch
    And a batch provider with {"linger": "50ms"}
    When a prompt is asked by a caller <that>
    And the same prompt is asked again
    Then the API has processed 1 requests, none twice

    Examples:
      | that                                                     |
      | whose loop is busy while the answer comes and time ends  |
      | whose loop is closed before the answer comes             |
      | whose loop is closed while the answer is due             |
      | whose loop is closed after the answer came               |

  Scenario Outline: A run whose event loop is closed causes no fault of the package: <when>
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run is read on an event loop that is closed <when>
    Then Python has reported no exception that it ignored

    Examples:
      | when               |
      | while it is stored |
      | while it waits     |

  @every_python
  Scenario: A cancellation is not lost if what the task awaits is there in the same moment
    Given an API that takes 1 seconds for a batch
    And a batch provider with {"linger": "50ms"}
    Then a caller is cancelled in the pass of its loop in which what it awaits is there as follows
      | awaits                     | ends      | paid |
      | run.wait()                 | cancelled | 1    |
      | run.results()              | cancelled | 1    |
      | an SDK call with a timeout | cancelled | 1    |

  @every_python
  Scenario: Calls that wait on all threads of asyncio hold up neither new runs nor closing
    Given an API
    And a batch provider
    Then a provider is used while all threads of asyncio wait for something else as follows
      | by                  | raises            | ends |
      | aclose              |                   | yes  |
      | submit              |                   | yes  |
      | respond_all         |                   | yes  |
      | estimate            |                   | yes  |
      | estimate a stream   |                   | yes  |
      | an input that fails | ZeroDivisionError | yes  |

  Scenario: A call that waits keeps few objects, because the garbage collector examines each of them
    Given an API
    And a batch provider with {"linger": "60s", "mode": "batch"}
    When the objects that 50 and 550 waiting calls keep are counted
    Then each waiting call keeps at most 10 objects that the garbage collector examines

  Scenario: Calls that begin together share a timer, and each ends in time
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"max_wait": "600ms"}
    When 20 prompts are asked at once
    Then every call fails with BatchTimeoutError

  Scenario: Two ledgers of one process end apart from each other
    Given a command's folder
    And an API
    And a batch provider
    When 1 prompts are asked at once
    And a provider with {"ledger": "other.db"} asks "there", and is closed
    Then all 1 are answered
    When 2 prompts are asked at once
    Then all 2 are answered

  Scenario: A call to an engine that has failed raises its error at once
    Given an API
    And a batch provider
    When the ledger loses a table while a call waits
    And 2 prompts are asked at once
    Then every call fails with LedgerError
    And the API was called 0 times by POST /v1/messages/batches

  Scenario: If an observer cannot name what it carries, the next one is asked, which is logged once
    Given a program that logs
    Then what observers carry is asked twice as follows
      | observers carry | carried      |
      | []              | [null, null] |
      | ["a", "b"]      | ["a", "a"]   |
      | [null, "b"]     | ["b", "b"]   |
    And the log has 1 line that says "carry() failed; requests are sent without it"

  Scenario: An observer that is detached while it names its events receives none
    Given an observer which leaves when it is asked what it wants
    When 1 events are told
    And all observers are closed
    Then it was told the events []

  Scenario: If no thread can start any more, events are delivered by the thread that emits them
    Given an observer which finds no room for a thread
    When 1 events are told
    Then it was told the events [1]
    And it was told on the teller's own thread
    When all observers are closed
    Then it was told the events [1]

  Scenario: An observer that is left behind is not read for any more
    Given an observer which takes the first of many events, and does not return until it is left behind
    When all observers are closed
    Then it was told the events [1]

  Scenario: An asynchronous observer is awaited, one event after the other
    Given an observer which is asynchronous, and fails at the second event
    When 3 events are told
    And all observers are closed
    Then it was told the events [1, 3]
    And it was told on its own thread

  Scenario: If no thread can start any more, an asynchronous observer is not started
    Given a program that logs
    And an observer which is asynchronous, and finds no room for a thread
    When 1 events are told
    And all observers are closed
    Then it was told the events []
    And the log has 1 line that says "failed at RunCancelled"

  Scenario: Methods of an observer that are called in passing must not be asynchronous
    Then asynchronous methods of observers are taken as follows
      | method   | taken | error                         |
      | on_event | yes   |                               |
      | wants    |       | wants is called synchronously |
      | carry    |       | carry is called synchronously |

  Scenario: A run that is removed before its end was reported is forgotten
    Given an API
    And a batch provider
    When a run of 1 prompts is submitted
    And the results are read in order
    Then an observer of ends alone is told of that run once, and of none that is gone

  Scenario: An event of a kind that the log has no words for is written by its name
    Then events are put into words as follows
      | event         | fields                                                       | words           |
      | RunCancelled  | {"run_id": "run-x"}                                          | run-x was cancelled |
      | QueueMeasured | {"queued": 1, "at_api": 2, "batches": 1, "oldest_batch": 1.0} | QueueMeasured   |
