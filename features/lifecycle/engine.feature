@every_python @long
Feature: One engine for each ledger of a process, shared by all and owned by none

  Scenario: Providers of the same ledger share batches
    Given an API
    And a batch provider with {"linger": 0.8}
    When two providers of the ledger are asked at once
    Then all 2 are answered
    And the API has seen 1 batch

  Scenario: Closing one provider leaves the others working
    Given an API
    And a batch provider
    When another provider of the ledger is opened, used and closed
    And 2 prompts are asked at once
    Then all 2 are answered

  Scenario: A ledger cannot be open with two kinds of settings
    Given an API
    And a batch provider
    When 1 prompts are asked at once
    And another provider of the ledger with other ledger settings is used
    Then the error is a ActorConfigurationError that says
      """
      other settings
      """

  Scenario: A call that waits while the provider is closed raises an error that says so
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When the provider is closed while a call waits
    Then every call fails with EngineStoppedError

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
    When the provider is closed while a POST is under way
    And another provider opens the run
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And no batch was posted more than once

  Scenario: A forked child opens an engine of its own
    Given an API
    When a process asks, forks, and its child asks too
    Then both are answered

  Scenario: A provider that was open when its process forked opens anew in the child
    Given an API
    When a process asks, forks, and its child asks with the same provider
    Then both are answered

  Scenario: Calls with one key in the same moment share one request
    Given an API
    And a batch provider
    When the same key is asked three times at once, once with other words
    Then two are answered alike and one is a KeyConflictError
    And the API has processed 1 requests, none twice

  Scenario: A second driver waits for the seat, and takes it
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When another process holds the seat while a run is stored
    Then nothing is sent until it leaves, and then all is answered

  Scenario: advance leaves a ledger alone that another process drives
    Given an API
    And a batch provider with {"drive": false}
    When another process holds the seat
    Then advance says that it did not drive

  Scenario: advance tells what went wrong with the first contact
    Given a server that nobody runs
    And a batch provider with {"drive": false}
    When the ledger is advanced
    Then the provider's contact is not made, with a reason

  Scenario: A caller that has gone does not harm the others of its moment
    Given an API
    And a batch provider
    When a keyed call that was answered before is asked again and given up, beside another call
    Then all 1 are answered
    And the API has processed 2 requests, none twice

  Scenario: A call that times out cancels its request, if `on_timeout` is cancel
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"max_wait": 3, "on_timeout": "cancel"}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And the API is told to cancel the batch

  Scenario Outline: Whatever goes wrong inside, nobody is left waiting: <what>
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

  Scenario: That an answer was taken is worth no more than a warning where it cannot be noted
    Given an API
    And a batch provider
    When a prompt is asked while it cannot be noted that answers are taken
    Then all 1 are answered

  Scenario: Using a stopped engine raises an error that says so
    Given an API
    And a batch provider
    When an engine is used after its provider was closed
    Then every call fails with EngineStoppedError
    And waiting for a change of it ends at once, and nothing else can be asked of it

  Scenario: Work in progress ends with the engine, with an error that says so
    Given an API
    And a batch provider
    When the provider is closed while its engine works for somebody, whose next wish comes too late
    Then both are told that the provider was closed

  Scenario: An upload that is stopped midway has not been taken, and is sent by the next process
    Given an API
    And a batch provider
    When the provider is closed before the end of an upload is armed
    And another provider opens the run
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice

  Scenario: A disk that is slower than the window leaves the end of an upload unsent
    Given an API
    And a batch provider with {"arm_window": 0.1}
    When a run of 3 prompts is submitted over a disk that is slow once
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And the API has processed 3 requests, none twice
    And the API has seen 1 batch

  Scenario: A call that is stored before the one who made it goes on leaves no later call waiting
    Given an API
    And a batch provider
    When two prompts are asked, each stored while it is still being handed over
    Then neither call is forgotten

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
