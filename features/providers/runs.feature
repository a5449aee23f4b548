Feature: Runs are durable: stored, sent, and answered whichever process asks

  Scenario: A run comes back complete and in order
    Given an API
    And a batch provider
    When a run of 300 prompts is submitted
    And the results are read in order
    Then there are 300 results in the order of the prompts
    And the API has seen 1 batch

  Scenario: Results can be read as they come
    Given an API
    And a batch provider with {"max_requests": 40}
    When a run of 100 prompts is submitted
    And the results are read as they come
    Then there are 100 results, each once
    And the API has seen 3 batches

  Scenario: respond_all gives every result in order
    Given an API
    And a batch provider
    When 20 prompts are answered by respond_all, in order
    Then there are 20 results in the order of the prompts

  Scenario: respond_all gives every result as it comes
    Given an API
    And a batch provider
    When 20 prompts are answered by respond_all, as they come
    Then there are 20 results, each once

  Scenario: Failures are results too
    Given an API
    And a batch provider with {"max_attempts": 1}
    When a run of these prompts is submitted
      | prompt                                        |
      | good                                          |
      | [[sandbox:errored:invalid_request_error]] bad |
      | also good                                     |
    And the results are read in order
    Then 2 results are answers and 1 are errors
    And result 2 failed with BatchRequestError

  Scenario: The same run asked again is the same run, and costs nothing
    Given an API
    And a batch provider
    When a run of 5 prompts is submitted
    And the run is waited for
    And the same run is submitted again
    And the results are read in order
    Then it is the same run
    And there are 5 results in the order of the prompts
    And the API has processed 5 requests, none twice

  Scenario: A run can be asked anew
    Given an API
    And a batch provider
    When a run of 2 prompts is submitted
    And the same run is submitted anew
    Then it is another run

  Scenario: A key may be a number, unless a request without a key has it
    Given an API
    And a batch provider
    When a run of these prompts is submitted
      | key | prompt |
      | 4   | one    |
      | 2   | two    |
      |     | three  |
      | 01  | four   |
      | 9   | five   |
      |     | six    |
    And the same run is submitted again
    And the run is waited for
    Then it is the same run
    When the results are read in order
    Then 6 results are answers and 0 are errors

  Scenario: The same prompts for another user profile are another run
    Given an API
    And a batch provider
    When a run of 2 prompts is submitted
    And the same run is submitted with {"user_profile_id": "up_1"}
    Then it is another run
    When the same run is submitted with {"user_profile_id": "up_1"}
    Then it is the same run
    When the same run is submitted with {"user_profile_id": "up_2"}
    Then it is another run

  Scenario: A killed process's run is finished by the next one
    Given an API
    When a process with {"linger": 0.3, "poll_interval": 0.05} asks a run of 50 prompts, and dies at before_pack
    And this process opens that run
    And the results are read in order
    Then there are 50 results in the order of the prompts
    And the API has processed 50 requests, none twice

  Scenario: A provider that closes parks its run, and another goes on
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When a run of 5 prompts is submitted
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And the API has processed 5 requests, none twice

  Scenario Outline: A run whose ledger's file is gone ends with its answers and a warning: <how>
    Given an API
    And a program that logs
    And a batch provider
    When a run of 2 prompts is submitted
    And the run is waited for
    And a ledger has trouble: its file is removed
    And <how>
    Then people are warned
      """
      was removed or replaced by another file
      a new ledger sends the same requests again
      """

    Examples:
      | how                           |
      | the run is waited for         |
      | the results are read in order |

  Scenario: Without a driving process the work advances pass by pass
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
      | prompt 1 |
    Then the run's state becomes parked
    When everything that is due is advanced until the run is finished
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: A cancelled run ends, and keeps what had finished
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 3 prompts is submitted
    And the run is cancelled
    And the run is waited for
    Then there is no error
    And the run's state becomes cancelled
    And the status shows 3 requests canceled

  Scenario: Unsent requests are withdrawn
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | never  |
    And the run is cancelled
    Then the status shows 1 requests canceled
    And the API has processed 0 requests, none twice

  Scenario: A run that passes max_wait is parked
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    And another provider with {"max_wait": 1} opens the run
    And the run is waited for
    Then the error is a BatchTimeoutError
    And the error names the run and its batch
    And the status shows 2 requests packed

  Scenario: A run whose machine has slept beyond max_wait is looked at before it is parked
    Given an API that takes 3 seconds for a batch
    And a batch provider with {"poll_interval": 0.5, "max_poll_interval": 0.5}
    When a run of 3 prompts is submitted
    Given the clock of this machine is 30 hours ahead
    When the results are read in order
    Then there are 3 results in the order of the prompts

  Scenario: A run that passes max_wait can be cancelled by itself
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"max_wait": 1, "on_timeout": "cancel"}
    When a run of 2 prompts is submitted
    And the run is waited for
    Then the error is a BatchTimeoutError
    And the status shows 2 requests canceled

  Scenario: Requests of an unknown sending that are sent again are waited for as long as a new run
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500}}]}
      """
    When this program runs
      """
      with cb.ClaudeBatchProvider(**{**settings, "max_wait": 2, "settling": 60}) as provider:
          run = provider.store(asker, ["one"])
          try:
              run.wait_sync()
          except cb.BatchTimeoutError:
              print(run.resubmit_unknown_sync(), "is sent again")
          print(run.wait_sync().counts["succeeded"], "is answered")
      """
    Then the program has printed
      """
      1 is sent again
      1 is answered
      """

  Scenario: An empty run is refused
    Given an API
    And a batch provider
    When a run of these prompts is submitted
      | prompt |
    Then the error is a InvalidRequestError that says
      """
      no request
      """

  Scenario: respond_all of no request gives no result
    Given an API
    Then no request at all gives no result, as follows
      | provider | given as                   | results |
      | batch    | a list                     | 0       |
      | batch    | an asynchronous generator  | 0       |
      | batch    | a list, synchronously      | 0       |
      | batch    | a generator, synchronously | 0       |
      | live     | a list                     | 0       |
      | live     | an asynchronous generator  | 0       |
      | live     | a list, synchronously      | 0       |
      | live     | a generator, synchronously | 0       |
    And the API has processed 0 requests, none twice

  Scenario Outline: An error counts requests as the position of its result does, <how>
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When these requests are asked, <how>
      | prompt                                    |
      | secret                                    |
      | good                                      |
      | [[sandbox:errored:invalid_request_error]] |
      | [[sandbox:canceled]]                      |
    Then the results by place have
      | field              | value                                                            |
      | 0.error            | "MiddlewareError: …"                                             |
      | 1.error            | null                                                             |
      | 2.error            | "BatchRequestError: …request at position 2 in batch…" |
      | 2.error.error_type | "invalid_request_error"                                          |
      | 3.error            | "BatchRequestError: …request at position 3 in batch…" |
      | 4                  |                                                                  |

    Examples:
      | how           |
      | in order      |
      | as they come  |
      | synchronously |

  Scenario: A doubled key is refused before anything is sent
    Given an API
    And a batch provider
    When a run of these prompts is submitted
      | prompt   | key |
      | the same | a   |
      | the same | b   |
      | the same | a   |
    Then the error is a InvalidRequestError that says
      """
      'a'
      twice
      """
    And the API has processed 0 requests, none twice

  Scenario: A halted account is an error of the submission, and the run is kept
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 403}}]}
      """
    And a batch provider
    When a run of these prompts is submitted
      | prompt |
      | kept   |
    Then the error is a AccountHaltedError that says
      """
      permission
      every request of run-
      then run `claude-batch resume run-
      """

  Scenario: Requests that expire at the API are tried again, then reported
    Given an API with {"latency": 3600, "expires_after": 0.3}
    And a batch provider with {"max_attempts": 2}
    When a run of 2 prompts is submitted
    And the results are read in order
    Then 0 results are answers and 2 are errors
    And the status shows 2 requests expired
