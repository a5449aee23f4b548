@every_python @long
Feature: One engine for each ledger of a process, shared by all and owned by none

  Scenario: Providers of the same ledger share batches
    Given an API
    And a batch provider with {"linger": 0.8}
    When "one" is asked in the background
    Given a batch provider with {"linger": 0.8}
    When "two" is asked in the background
    And the calls in the background have ended
    Then all 2 are answered
    And the API has seen 1 batch

  Scenario: Closing one provider leaves the others working
    Given an API
    And a batch provider
    When 1 prompts are asked at once
    And a provider with {} asks "second", and is closed
    Then all 1 are answered
    When 2 prompts are asked at once
    Then all 2 are answered

  Scenario: A ledger cannot be open with two kinds of settings
    Given an API
    And a batch provider
    When 1 prompts are asked at once
    And a provider with {"settling": 1} asks "never", and is closed
    Then the error is a ActorConfigurationError that says
      """
      with other settings: settling=900.0 there and settling=1.0 here; use the same
      """

  Scenario Outline: A caller that waits while the provider is closed gets an error that says how to go on: <caller>
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When "waits" is asked in the background by <caller>
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the provider is closed
    And the calls in the background have ended
    Then every call fails with EngineStoppedError
    And the error is a EngineStoppedError that says
      """
      the provider is closed and no longer waits for run-
      ; the run stays in the ledger. Continue with `claude-batch resume run-
      `, or repeat the call with a new provider
      """

    Examples:
      | caller      |
      | respond     |
      | run.wait    |
      | run.results |

  Scenario Outline: A provider that is closed while a run is submitted names the run: <asks>
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run is submitted by <asks>, and the provider is closed when it is stored
    Then the error is a EngineStoppedError that says
      """
      the provider is closed and no longer waits for run-
      """
    Given a batch provider
    When a run is submitted by <asks>, and the provider is closed when its wait reads the ledger
    Then the error is a EngineStoppedError that says
      """
      the provider is closed and no longer waits for run-
      ; the run stays in the ledger. Continue with `claude-batch resume run-
      `, or repeat the call with a new provider
      """

    Examples:
      | asks        |
      | submit      |
      | submit_sync |

  Scenario Outline: The wait for a run ends with its provider, although another one of the ledger stays open: <caller>
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"poll_interval": 3600}
    When "waits" is asked in the background by <caller>
    Then in the ledger the states of the batches come to be ["in_progress"]
    When another provider opens the ledger, and the provider is closed a moment later
    And the calls in the background have ended
    Then every call fails with EngineStoppedError

    Examples:
      | caller      |
      | run.wait    |
      | run.results |

  Scenario: A ledger that fails ends waiting calls instead of leaving them
    Given an API
    And a batch provider with {"linger": 0.5}
    When the ledger loses a table while a call waits
    Then every call fails with LedgerError
    And the error is a LedgerError that says
      """
      batch_runs
      """
    When 1 prompts are asked at once
    Then every call fails with LedgerError

  @file_ledger
  Scenario: The id of an accepted batch is noted as soon as the disk takes it
    Given an API
    And a batch provider
    When the disk refuses the ids of batches for a while
    Then all 1 are answered
    And no batch was posted more than once
    And the API has processed 1 requests, none twice

  Scenario: Closing waits for the answer to a POST whose last bytes have left
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "delay", "seconds": 1}}]}
      """
    And a batch provider
    When a run of 1 prompts is stored without driving
    Then in the ledger the states of the batches whose upload is under way or over come to be ["submitting"]
    When the provider is closed
    Then in the ledger the states of the batches are ["in_progress"]
    When another provider opens the run
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And no batch was posted more than once

  Scenario: A forked child opens an engine of its own
    Given an API
    When a process asks, forks, and its child asks with another provider
    Then parent and child are answered

  Scenario: A provider that was open when its process forked opens anew in the child
    Given an API
    When a process asks, forks, and its child asks with the same provider
    Then parent and child are answered

  Scenario: A child that is forked while the engine works can open a ledger
    Given an API
    When a process with many calls forks 40 children, each of which opens a ledger of its own
    Then none of its children hangs

  Scenario: Calls with one key in the same moment share one request
    Given an API
    And a batch provider
    Then prompts are asked at once with one key as follows
      | prompts                   | answered | different answers | in conflict |
      | ["same", "same", "other"] | 2        | 1                 | 1           |
    And the API has processed 1 requests, none twice

  Scenario: A second driver waits for the leader lock, and takes it
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When another process holds the leader lock
    And a run of 1 prompts is stored without driving
    Then the provider's fields come to be
      | field        | value |
      | contact.made | true  |
    And the status shows 1 requests queued
    And in the ledger the states of the batches are []
    When the other process releases the leader lock
    And the results are read in order
    Then there are 1 results in the order of the prompts

  Scenario: submit returns at once if no process may send
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is submitted
    Then in the ledger the states of the requests are ["queued", "queued"]

  Scenario Outline: Submitting ends after max_wait if another process drives and does not send: <settings>
    Given an API
    And a batch provider with <settings>
    When another process holds the leader lock
    And a run of 1 prompts is submitted
    Then in the ledger the states of the requests are ["queued", "queued"]

    Examples:
      | settings                         |
      | {"drive": false, "max_wait": 1}  |
      | {"drive": true, "max_wait": 1}   |

  Scenario: advance leaves a ledger alone that another process drives
    Given an API
    And a batch provider with {"drive": false}
    When another process holds the leader lock
    Then advancing the ledger returns false
    And in the ledger the states of the requests are ["queued"]
    When the other process releases the leader lock
    Then advancing the ledger returns true

  Scenario: advance tells what went wrong with the first contact
    Given a server that nobody runs
    And a batch provider with {"drive": false}
    When the ledger is advanced
    Then the provider's fields are
      | field                | value               |
      | contact.made         | false               |
      | contact.failures     | 1                   |
      | contact.last_failure | "…onnect…"          |
      | address              | "http://127.0.0.1:…" |

  Scenario Outline: A caller that has gone does not harm the others of its moment: <end>
    Given an API
    And a batch provider
    When "asked before" is asked with the key "k"
    And "<prompt>" is asked and <end> at once <how>, beside "another"
    Then all 1 are answered
    And the API has processed <count> requests, none twice

    Examples:
      | prompt       | end             | how              | count |
      | asked before | cancelled       | with the key "k" | 2     |
      | asked now    | its loop closed | without a key    | 3     |

  Scenario: A call that times out cancels its request, if `on_timeout` is cancel
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"max_wait": 8, "on_timeout": "cancel"}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And the API receives a cancellation of the batch

  Scenario: A call that times out in a batch which cannot be sent is cancelled at once
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"max_wait": 3, "on_timeout": "cancel"}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And in the ledger the states of the requests come to be ["canceled"]
    And in the ledger the states of the batches are ["rejected"]

  Scenario Outline: No caller is left waiting, whatever goes wrong inside: <what>
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"max_wait": <patience>, "on_timeout": "cancel"}
    When a prompt is asked while <what>
    Then every call fails with <error>
    And the error is a <error> that says
      """
      <words>
      """

    Examples:
      | what                             | patience | error              | words                     |
      | the driver fails unforeseen      | 60       | EngineStoppedError | RuntimeError: a surprise  |
      | answers cannot be read           | 60       | LedgerError        | the disk is gone          |
      | calls cannot be stored           | 60       | EngineStoppedError | could not be stored       |
      | a time-out cannot be noted       | 3        | LedgerError        | the disk is gone          |

    @file_ledger
    Examples: only a file is watched by the engine's thread
      | what                             | patience | error              | words                     |
      | the ledger cannot be watched     | 60       | LedgerError        | the disk is gone          |

  Scenario: If it cannot be recorded that an answer was taken, there is only a warning
    Given an API
    And a batch provider
    When a prompt is asked while it cannot be noted that answers are taken
    Then all 1 are answered

  Scenario: Work in progress ends with the engine, and so does later work, with an error that says so
    Given an API
    And a batch provider
    When the provider is closed while its engine works, and more is asked of the engine
    Then every call fails with EngineStoppedError
    And the error is a EngineStoppedError that says
      """
      closed
      create a new one
      """

  Scenario: A thread that outlives the main thread is answered as before
    Given an API
    Then a thread that outlives the main thread asks as follows
      | asks                                                    | prints          | complains |
      | actor.respond_sync("a").via                             | batch           |           |
      | [r.ok for r in actor.respond_all_sync(["b", "c"])]      | [True, True]    |           |
      | actor.submit_sync(["d"]).wait_sync().finished           | True            |           |
      | [r.ok for r in actor.submit_sync(["e"]).results_sync()] | [True]          |           |

  Scenario: A reader that comes after the end of the engine is told that the provider is closed
    Given an API
    And a batch provider
    Then an engine that has closed is asked to read as follows
      | by   | reads | error                                       |
      | read |       | the provider is closed; create a new one    |
      | look |       | the provider is closed; create a new one    |

  Scenario: A disk that is slower than the window leaves the end of an upload unsent
    Given an API
    And a batch provider with {"arm_window": 0.1}
    When at the point after_armed the disk has taken 0.3 seconds
    And a run of 3 prompts is submitted
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice
    And the API has seen 1 batch

  Scenario: A call that is stored before the one who made it goes on leaves no later call waiting
    Given an API
    And a batch provider
    And each call is stored while it is still being handed over
    When 2 prompts are asked at once
    Then all 2 are answered

  Scenario Outline: a document that could not be downloaded in time is tried again in batches: <prompt>
    Given an API
    And a batch provider with {"max_attempts": 2}
    When a run of these prompts is submitted
      | prompt   |
      | <prompt> |
    And the results are read in order
    Then <good> results are answers and <bad> are errors
    And the API has processed 2 requests in all

    Examples:
      | prompt                                      | good | bad |
      | read it [[sandbox:errored:download_timeout:once]] | 1 | 0 |
      | read it [[sandbox:errored:download_timeout]]      | 0 | 1 |
