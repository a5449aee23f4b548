Feature: Each end of a run has a message of its own

  Scenario: A run that was cancelled and does not end at the API is given up on after a while
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "cancel", "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider with {"max_wait": 1, "on_timeout": "cancel"}
    And no patience with what was cancelled
    When a run of 2 prompts is submitted
    And the run is waited for
    Then the error is a BatchTimeoutError
    And the API was called at least 1 times by GET /v1/messages/batches

  Scenario: What was cancelled before it was sent says that nothing was billed
    Given an API
    And a batch provider with {"drive": false}
    When a run of 2 prompts is stored without driving
    And it is packed, and cancelled before it is sent
    And the ledger is advanced
    And the results are read in order
    Then result 1 failed with BatchRequestError
    And its first error says "It was not sent, and nothing was billed for it"

  Scenario: What was cancelled while it was unknown is not sent again on order
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
    Then the status says "1 conversation between two turns"
    And the status does not speak of tools

  Scenario: A run that is asked again while older ones are pruned is kept
    Given an API
    And a batch provider
    When two runs are delivered, and the failure of the second is asked again as the first is pruned
    Then the first is gone, and the second is kept because it is unfinished
