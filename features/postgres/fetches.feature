@long
Feature: Processes that share a ledger fetch results for the one that drives

  Background:
    Given a PostgreSQL server
    And a ledger on that server

  Scenario: While the driver fetches one batch, another process fetches those that wait
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "delay", "seconds": 20}}]}
      """
    And a batch provider with {"max_requests": 110}
    When a run of 440 prompts is submitted, a worker joins, and all batches end together
    Then in the ledger there are 330 results within 15 seconds
    When the results are read in order
    Then there are 440 results in the order of the prompts
    And the API has processed 440 requests, none twice
    And no offer is left in the ledger

  Scenario Outline: A fetch of another process that meets <action> is left to the driver
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "delay", "seconds": 2}},
                 {"route": "results", "nth": [2], "action": <action>}]}
      """
    And a batch provider with {"max_requests": 110}
    When a run of 330 prompts is submitted, a worker joins, and all batches end together
    And the results are read in order
    Then there are 330 results in the order of the prompts
    And the API has processed 330 requests, none twice
    And no offer is left in the ledger

    Examples:
      | action                                           |
      | {"type": "cut_inside_line", "after_lines": 7}    |
      | {"type": "missing_lines", "count": 3}            |
      | {"type": "error", "status": 404}                 |

  Scenario Outline: The results that a worker was fetching when it was <ended> are fetched again
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "delay", "seconds": 4}}]}
      """
    And a batch provider with {"max_requests": 110}
    When a run of 220 prompts is submitted, a worker joins, and all batches end together
    And the worker is <ended> while it fetches a batch
    And the results are read in order
    Then there are 220 results in the order of the prompts
    And the API has processed 220 requests, none twice
    And no offer is left in the ledger

    Examples:
      | ended      |
      | killed     |
      | stopped    |
      | terminated |

  Scenario: A worker that goes on after the driver took its batch back stores nothing
    Given a proxy before the PostgreSQL server
    And process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B offers batch 7
    When process A claims an offered batch
    Then process B leaves batch 7 to the other
    When the proxy is stalled
    Then process B fetches batch 7 itself within 5 seconds
    When the proxy is restored
    Then process A can store no result of its batch
    And process A finds no offered batch

  Scenario: A claim that could not be given up in an outage is given up after it
    Given process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 30
    And process B drives, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 30
    And process B offers batch 7
    When process A claims an offered batch
    And the PostgreSQL server ends
    And process A gives its batch up
    And the PostgreSQL server starts
    Then process B fetches batch 7 itself within 10 seconds

  Scenario: A batch is fetched, although the COMMIT of its claim had no answer
    Given a proxy before the PostgreSQL server
    And process A
    And process B
    And process B offers batch 7
    And a COMMIT that has "UPDATE fetches" fails by "lose_answer"
    When process A loses its ledger while it claims an offered batch
    Then process B leaves batch 7 to the other
    When process A claims an offered batch
    Then process A leaves batch 7 to the other
    Given process B offers batch 8
    And a COMMIT that has "UPDATE fetches" fails by "lose_answer"
    When process A loses its ledger while it claims an offered batch
    Then process A fetches batch 8 itself within 1 seconds

  Scenario: A process whose event loop hangs gives its batch up
    Given process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 30
    And process B drives, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 30
    And process B offers batch 7
    When process A claims an offered batch
    Then process B leaves batch 7 to the other
    When the event loop of process A hangs for longer than a process may
    Then process B fetches batch 7 itself within 10 seconds

  Scenario: A driver with a function of the user's that decides what errors mean offers nothing
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "delay", "seconds": 4}}]}
      """
    And a batch provider that classifies errors itself, with {"max_requests": 110}
    When a run of 220 prompts is submitted, a worker joins, and all batches end together
    Then no batch is offered until the run is finished
    When the results are read in order
    Then there are 220 results in the order of the prompts
