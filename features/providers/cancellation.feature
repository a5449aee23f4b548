@every_python
Feature: A cancelled request says who cancelled it, that it was not billed, and how to ask again

  Scenario: A run that its owner cancelled
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    And the results are read in order
    Then result 1 failed with BatchRequestError
    And each result says that it is canceled
      """
      was canceled, because its run was cancelled. It did not run, and nothing was billed for it. Send it again with: claude-batch retry RUN --only canceled
      """
    And the errors were canceled by "run"
    And the errors do not speak of conversations

  Scenario: The command of such an error names a ledger that is not the default
    Given an API that takes 30 seconds for a batch
    And a command's folder
    And a batch provider with {"ledger": "other.db"}
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    And the results are read in order
    Then each result says that it is canceled
      """
      Send it again with: claude-batch retry RUN --only canceled --ledger other.db
      """

  Scenario: A final answer that meets the cancellation of its run is kept, although nobody has judged it
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"validation_attempts": 2, "poll_interval": 3}
    When a run of 2 prompts is submitted
    And the API's clock goes 1 hours on
    And the run is cancelled
    And the run is waited for
    And the results are read in order
    Then 2 results are answers and 0 are errors

  Scenario: A batch that somebody cancels at the API
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    And somebody else cancels the batches at the API
    And the run is waited for
    And the results are read in order
    Then result 1 failed with BatchRequestError
    And each result says that it is canceled
      """
      was canceled at the API, not by claude-batch: its batch was canceled in the Console or by another program. It did not run, and nothing was billed for it. Send it again with: claude-batch retry RUN --only canceled
      """
    And the errors were canceled by "api"
    And the errors do not speak of conversations
    When the canceled requests are asked again as the error says
    Then there are 2 results in the order of the prompts

  Scenario Outline: A batch that somebody cancels at the API is reported once, and nothing is sent again: <seen>
    Given an API with {"latency": 30, "cancel_latency": <takes>}
    And an observer that remembers
    And a program that logs
    And a batch provider that is observed
    When a run of 4 prompts is submitted
    And somebody else cancels the batches at the API, 15 seconds later
    And the run is waited for
    And the results are read in order
    Then the status shows 2 requests succeeded
    And the status shows 2 requests canceled
    And the run's fields are
      | field                 | value                                      |
      | status.batches.0.note | "canceled at the API, not by claude-batch" |
    And the API has seen 1 batch
    And the log has 1 line that says "was canceled at the API, not by claude-batch: in the Console"
    When the provider is closed
    Then the observer was told
      | RequestsQueued   |
      | BatchSubmitted   |
      | BatchCanceled    |
      | BatchEnded       |
      | ResultsCollected |
      | RunFinished      |

    Examples:
      | seen                  | takes |
      | while it is canceling | 2     |
      | when it has ended     | 0     |

  Scenario Outline: A batch that claude-batch itself cancels is not reported as cancelled by others: <why>
    Given an API that takes 30 seconds for a batch
    And an observer that remembers
    And a batch provider that is observed with <settings>
    When a run of 2 prompts is submitted
    And <event>
    And the run is waited for
    And the provider is closed
    Then the observer was told nothing of BatchCanceled

    Examples:
      | why      | settings                                                        | event                 |
      | run      | {}                                                              | the run is cancelled  |
      | deadline | {"deadline": "9s", "deadline_margin": "7s", "fallback": "none"} | the run is waited for |

  Scenario: A run that is cancelled before anything of it is sent
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | never  |
    And the run is cancelled
    And the results are read in order
    Then each result says that it is canceled
      """
      was canceled, because its run was cancelled. It was not sent, and nothing was billed for it. Send it again with: claude-batch retry RUN --only canceled
      """

  Scenario: A single call whose batch somebody cancels at the API is made again by calling again
    Given an API that takes 30 seconds for a batch
    And a batch provider
    And somebody else cancels the first batch at the API, as soon as it is there
    When "hello" is asked with the key "greeting"
    Then every call fails with BatchRequestError
    And the error's fields are
      | field  | value |
      | args.0 | "request 'greeting' in batch …was canceled at the API, not by claude-batch: its batch was canceled in the Console or by another program. It did not run, and nothing was billed for it. To send it again, repeat the call" |

  Scenario: A conversation whose second turn is cancelled at the API has paid for the first
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of these prompts is submitted
      | prompt                     |
      | Search [[sandbox:pause:1]] |
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the API's clock goes 1 hours on
    Then in the ledger the states of the batches come to be ["collected", "in_progress"]
    When somebody else cancels the batches at the API
    And the run is waited for
    And the results are read in order
    Then each result says that it is canceled
      """
      This turn did not run, and nothing was billed for it; the 1 answer before it was billed and kept. Send it again with: claude-batch retry RUN --only canceled
      """
    When the canceled requests are asked again as the error says
    Then the results have these fields in the same order
      | response.turns |
      | 2              |
    And the API has been paid 2 times, never twice for the same

  Scenario: A request that was cancelled for its run's deadline
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    And the run is cancelled
    And the run is waited for
    And the ledger's runs are changed to
      | cancelled | past_margin |
      | null      | 1.0         |
    And the results are read in order
    Then each result says that it is canceled
      """
      was canceled by claude-batch, because the deadline of its run was near. It did not run, and nothing was billed for it. Send it again with: claude-batch retry RUN --only canceled
      """
    And the errors were canceled by "deadline"
