@long
Feature: One request of each shared prefix goes ahead, and requests that share one travel together

  Scenario: The primers of a run are one batch, and the rest follows when it has ended
    Given an API
    And a batch provider with {"cache": "auto", "prime": true}
    When 8 requests about each of the documents A B are asked in a run, in turn
    Then the batches of the run had 2, 4, 10 requests
    And the first batch had one request of each prefix
    And each primer wrote to the cache, and every other marked request read from it
    And every request of it was answered once

  Scenario: Without it all are sent at once
    Given an API
    And a batch provider with {"cache": "auto"}
    When 8 requests about each of the documents A B are asked in a run, in turn
    Then the batches of the run had 16 requests

  Scenario: Requests without a cache mark have no primer
    Given an API
    And a batch provider with {"cache": "auto", "prime": true}
    When 3 requests about each of the documents A B are asked in a run, in turn
    Then the batches of the run had 6 requests

  Scenario: A primer that fails holds nobody back
    Given an API
    And a batch provider with {"cache": "auto", "prime": true}
    And the API has the faults
      """
      {"requests": [{"contains": "ask A 2", "outcome": "errored", "error": {"type": "invalid_request_error"}}]}
      """
    When 8 requests about each of the documents A are submitted as a run, in turn
    And the run is waited for
    Then the status shows 7 requests succeeded
    And the status shows 1 requests errored

  Scenario: The shortest request goes ahead, so that a budget which holds a long one holds no other
    Given an API
    And a batch provider with {"cache": "auto", "prime": true, "budget_usd": "0.1"}
    When 8 requests about each of the documents A are asked, number 2 a long one
    Then 7 results are answers and 1 are errors
    And result 3 failed with BudgetExceededError

  Scenario: A primer that has to be tried again lets the others go at once
    Given an API
    And a batch provider with {"cache": "auto", "prime": true}
    And the API has the faults
      """
      {"requests": [{"contains": "ask A 2", "outcome": "errored", "error": {"type": "overloaded_error"}, "once": true}]}
      """
    When 8 requests about each of the documents A are asked in a run, in turn
    Then the batches of the run had 1, 2, 6 requests
    And every request of it was answered once

  Scenario: A primer whose sending is unknown holds nobody back
    Given an API
    And a batch provider with {"cache": "auto", "prime": true, "settling": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "drop_before"}}]}
      """
    When 8 requests about each of the documents A are submitted as a run, in turn
    Then the status shows 7 requests succeeded
    And the status shows 1 requests packed

  Scenario: Held requests are cancelled with their run
    Given an API that takes 60 seconds for a batch
    And a batch provider with {"cache": "auto", "prime": true}
    When 8 requests about each of the documents A are submitted as a run, in turn
    Then the status shows 5 requests held
    When the run is cancelled
    And the run is waited for
    Then the status shows 8 requests canceled

  Scenario Outline: A process that dies <where> forgets nobody
    Given an API
    When a process with {"cache": "auto", "prime": true} asks for 0 1 2 3 4 5 6 7, and dies at <point>
    And another process with {"cache": "auto", "prime": true} asks for 0 1 2 3 4 5 6 7
    Then the API has processed 8 requests in all
    And in the ledger the sizes of the batches are [1, 2, 5]

    Examples:
      | where                      | point           |
      | before the run is whole    | before_stored   |
      | when it is                 | after_stored    |
      | when the primers are packed | after_pack     |
      | when they are collected    | after_collected |
      | when the others are let go | after_release   |

  Scenario: Batches are filled prefix by prefix
    Given an API
    And a batch provider with {"cache": "auto", "max_requests": 10}
    When 16 requests about each of the documents A B C are asked in a run, in turn
    Then no prefix is in more than 2 batches, where each could have been in 5
    And every request of it was answered once

  Scenario: A command that only submits reports the held requests, and the next one sends them
    Given a command's API with {"latency": 1.5}
    And a command's actor with a long system prompt
    And a command's file "many.jsonl" of 8 prompts
    When a command runs: submit --cache auto --prime long.yaml many.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      5 requests are held until other requests
      """
    When a command runs: status RUN
    Then the command line prints
      """
      5 requests are held until other requests
      """
    When a command repeats every advance until it exits with 0
    Then the command line has written 8 answers in order to "out.jsonl"
