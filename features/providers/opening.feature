@every_python @file_ledger
Feature: The first use of a provider opens the ledger, and blocks no event loop
  Another program holds the ledger, and lets it go only when the caller's loop has ticked: a loop
  that waits for the ledger itself would wait for ever.

  Scenario: An event loop goes on while the ledger is locked
    Given an API
    Then the first use of a provider succeeds once the loop of its caller has freed the ledger as follows
      | locked by others | first use is to         | ticks | succeeds |
      | against writes   | respond                 | 20    | yes      |
      | altogether       | respond                 | 20    | yes      |
      | against writes   | submit                  | 20    | yes      |
      | altogether       | submit                  | 20    | yes      |
      | altogether       | respond to all          | 20    | yes      |
      | against writes   | ask by the SDK's client | 20    | yes      |
      | against writes   | wait for an opened run  | 20    | yes      |
      | against writes   | give up storing         | 20    | yes      |

  Scenario: A caller that gives up while the ledger opens leaves the others waiting
    Given an API
    And another program that has locked the ledger against writes
    And a batch provider
    When "first" is asked in the background
    And "other" is asked in the background
    And the caller of "first" leaves
    And the other program lets the ledger go
    And the calls in the background have ended
    Then all 1 are answered

  Scenario: A ledger that could not be opened is tried again by the next use
    Given an API
    And a batch provider
    When "first" is asked while there is a folder in the place of the ledger
    Then every call fails with LedgerError
    When 1 prompts are asked at once
    Then all 1 are answered

  Scenario: A ledger that no thread could open is opened by the next use
    Given an API
    And a batch provider
    When "first" is asked while no thread can start to open the ledger
    And 1 prompts are asked at once
    Then all 1 are answered

  Scenario: A provider that is closed while it opens raises an error that names the cause
    Given an API
    And another program that has locked the ledger against writes
    And a batch provider
    When "never" is asked in the background
    And the provider begins to close
    And the other program lets the ledger go
    And the calls in the background have ended
    Then every call fails with ActorError
    And the error is a ActorError that says
      """
      closed
      """
