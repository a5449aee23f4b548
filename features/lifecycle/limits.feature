Feature: Limits that the user sets are kept, whatever the API allows

  Scenario: no more batches of a run are in flight than parallel_batches
    Given an API that takes 0.4 seconds for a batch
    And a batch provider with {"max_requests": 2, "parallel_batches": 2}
    When a run of 10 prompts is submitted
    Then the status says "its queued requests wait until a batch has ended: parallel_batches allows 2 batches at once"
    When the results are read in order
    Then there are 10 results in the order of the prompts
    And the API has seen 5 batches
    And never more than 2 batches were at the API

  Scenario: parallel_batches belongs to its run, and outlives the process
    Given an API that takes 0.4 seconds for a batch
    And a batch provider with {"max_requests": 1, "parallel_batches": 1}
    When a run of 3 prompts is submitted
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 3 results in the order of the prompts
    And never more than 1 batches were at the API

  Scenario: A run that waits for its batches holds up no other run
    Given an API that takes 2 seconds for a batch
    And a batch provider with {"max_requests": 2, "parallel_batches": 1}
    When a run of 4 prompts is submitted
    Given a batch provider with {"linger": 0.1}
    When 2 prompts are asked at once
    Then the API has seen 2 batches

  Scenario: A batch that is split keeps to the limit too
    Given an API that takes 0.4 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "proxy_413"}}]}
      """
    And a batch provider with {"parallel_batches": 1}
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API has seen 2 batches
    And never more than 1 batches were at the API

  Scenario: A budget and parallel_batches hold together
    Given an API that takes 0.4 seconds for a batch
    And a batch provider with {"max_requests": 2, "parallel_batches": 1, "budget_usd": "1"}
    When a run of 6 prompts is submitted
    And the results are read in order
    Then there are 6 results in the order of the prompts
    And never more than 1 batches were at the API

  Scenario: batches_per_hour holds for every process of the ledger
    Given an API
    And a batch provider with {"max_requests": 2, "batches_per_hour": 2}
    When a run of 6 prompts is submitted
    Then the status says "batches_per_hour allows no more batches in this hour"
    And the status says "--batches-per-hour 0` lifts the limit"
    And in the ledger the reasons of the pauses come to be ["batches_per_hour"]
    When the provider is closed
    And another provider opens the run
    And the provider resumes
    Then the API has seen 2 batches
    When 1 seconds pass
    Then the API has seen 2 batches
    When the API's clock goes 2 hours on
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 6 results in the order of the prompts
    And the API has seen 3 batches

  Scenario: A date that was ahead at a sending holds the next one back for no longer than an hour
    Given a server that means harm, before an API
    And it answers the first 1000 API calls with a clock that is an hour ahead
    And a batch provider with {"max_requests": 1, "batches_per_hour": 1}
    When a run of 2 prompts is submitted
    Then the status says "batches_per_hour allows no more batches in this hour"
    When the provider is closed
    And the server means no harm any more
    And both clocks go 1 hours on
    And another provider opens the run
    And the results are read in order
    Then there are 2 results in the order of the prompts

  Scenario: Requests wait for the next batch together
    Given an API
    And a program that logs
    And a batch provider with {"batches_per_hour": 1}
    When a run of 1 prompts is submitted
    And a run of 2 prompts is stored at once
    And a run of 3 prompts is stored at once
    And a run of 4 prompts is stored at once
    And 1 seconds pass
    Then the API has seen 1 batches
    And the log has 1 line that says "sending pauses for 1h: batches_per_hour allows no more batches in this hour; 0 lifts the limit"
    When another process declares {"batches_per_hour": 0}
    Then the API has seen 2 batches

  Scenario Outline: A batch that may have been created counts: <point>
    Given an API
    When a process with {"batches_per_hour": 1, "max_requests": 1, "settling": "1h"} asks a run of 2 prompts, and dies at <point>
    And this process opens that run
    And the provider resumes
    Then the API has seen 1 batches
    When 1 seconds pass
    Then the API has seen 1 batches

    Examples:
      | point                    |
      | before_armed             |
      | after_post_before_record |
      | after_record             |

  Scenario: Few requests of mode auto go live although no batch may be sent
    Given an API
    And a batch provider with {"batches_per_hour": 1, "auto_threshold": 2, "mode": "auto"}
    When a run of 3 prompts is submitted
    And a run of 2 prompts is submitted
    And the results are read in order
    Then there are 2 results in the order of the prompts
    And the API has seen 1 batches

  Scenario Outline: Live calls keep to a limit that their driver did not set: <what>
    Given an API
    When a process with {"mode": "live", "requests_per_minute": 2} asks a run of 5 prompts, and dies at <point>
    And this process opens that run
    And the provider resumes
    And 1.5 seconds pass
    Then the API got at most <calls> live calls
    And the status says "live calls are sent as fast as the API's limits and your own allow"
    When another process declares {"requests_per_minute": 0}
    And the results are read in order
    Then no request was paid for twice, and <lost> of 5 are lost

    Examples:
      | what             | point             | calls | lost         |
      | none had left    | after_live_claim  | 0     | some         |
      | one was answered | after_live_record | 2     | none or some |

  Scenario: Tokens of live calls are limited too
    Given an API
    And a batch provider with {"mode": "live", "tokens_per_minute": 1}
    When a run of 3 prompts is stored at once
    And 1.5 seconds pass
    Then the API got at most 1 live calls

  Scenario: Live calls without a ledger share a limit in the process
    Given a live server, and a live actor of model "claude-haiku-4-5"
    When 2 live providers with {"requests_per_minute": 3} are asked 4 prompts each, and closed after 1.5 seconds
    And 1 live provider with {"requests_per_minute": 4} is asked 4 prompts, and closed after 1 second
    Then the API was called 4 times by POST /v1/messages

  Scenario: A limit that is no number is reported with its source
    Given a live server, and a live actor of model "claude-haiku-4-5"
    Then a live call ends as follows
      | settings                    | environment                                | error                                                        |
      | {"requests_per_minute": -1} |                                            | requests_per_minute: -1 is less than 0                       |
      | {}                          | {"CLAUDE_BATCH_TOKENS_PER_MINUTE": "many"} | CLAUDE_BATCH_TOKENS_PER_MINUTE: 'many' is not a whole number |
