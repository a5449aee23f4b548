Feature: Each end of a run has a message of its own

  Scenario: A run that was cancelled and does not end at the API is given up on after a while
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "cancel", "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider with {"max_wait": 1, "on_timeout": "cancel"}
    And a limit of 1 seconds for cancelled batches to end
    When a run of 2 prompts is submitted
    And the run is waited for
    Then the error is a BatchTimeoutError
    And the API was called at least 1 times by GET /v1/messages/batches

  Scenario: A run that was cancelled before its account was halted is not said to stay queued
    Given an API that takes 3600 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    Given the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    When 1 prompts are asked at once
    Then every call fails with AccountHaltedError
    When the run is cancelled
    And the provider is closed
    And another provider opens the run
    And the run is waited for
    Then the error is a AccountHaltedError that says
      """
      sending is halted (credentials): authentication_error:
      was cancelled, so nothing more of it is sent; the results of what the API has of it are fetched later. Fix the cause, then run `claude-batch resume run-
      """

  Scenario: The error of a request that was cancelled before it was sent says that nothing was billed
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And it is packed, and cancelled before it is sent
    And the ledger is advanced
    And the results are read in order
    Then result 1 failed with BatchRequestError
    And the error is a BatchRequestError that says
      """
      canceled
      It was not sent, and nothing was billed for it
      """

  Scenario: A request that was cancelled while its sending was unknown is not sent again on order
    Given an API
    And a batch provider with {"settling": 3600, "drive": false}
    When a sending of 2 prompts has become unknown
    And the run is cancelled
    Then decisions about the run's unknown requests change as follows
      | decision   | how     | requests |
      | send again | awaited | 0        |

  Scenario: A conversation between two turns says so, where it waits for no tool
    Given an API
    And a batch provider with {"drive": false}
    When a run of "Search [[sandbox:pause:1]]" stands between two turns
    Then the run's fields are
      | field              | value |
      | status.waiting_for | "1 conversation between two turns; no process drives it; continue with `claude-batch resume`" |

  Scenario: A run that is asked again while older ones are pruned is kept
    Given an API
    And a batch provider
    When the prompts a are asked in a run
    And the prompts [[sandbox:errored:invalid_request_error]] are asked in a run
    And at the point during_pruning the failures of the last run are queued again
    And the runs 1, 2 are pruned
    Then the run's fields are
      | field        | value |
      | status.total | 1     |
    And the ledger holds 1 requests
