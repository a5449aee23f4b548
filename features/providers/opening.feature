@every_python @file_ledger
Feature: The first use of a provider opens the ledger, and blocks no event loop
  Another program holds the ledger, and lets it go only when the caller's loop has ticked: a loop
  that waits for the ledger itself would wait for ever.

  Scenario Outline: An event loop goes on while the ledger is locked: <use>
    Given an API
    And a ledger that another program will lock <how>
    When it is locked until the loop has ticked 20 times, and the first use is to <use>
    Then the loop has ticked, and the first use has succeeded

    Examples:
      | how            | use                      |
      | against writes | respond                  |
      | altogether     | respond                  |
      | against writes | submit                   |
      | altogether     | submit                   |
      | altogether     | respond to all           |
      | against writes | ask by the SDK's client  |
      | against writes | wait for an opened run   |
      | against writes | give up storing          |

  Scenario: Who gives up while the ledger opens leaves the others waiting
    Given an API
    And a ledger that another program will lock against writes
    When two ask while it is locked, and the first gives up
    Then the other one is answered

  Scenario: A ledger that could not be opened is tried again by the next use
    Given an API
    And a ledger that is a folder for now
    When a prompt is asked before and after the folder is gone
    Then the first is told, and the second is answered

  Scenario: A provider that is closed while it opens says so
    Given an API
    And a ledger that another program will lock against writes
    When a provider is closed while it opens
    Then the call is told that the provider is closed
