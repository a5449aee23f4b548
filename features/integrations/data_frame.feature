Feature: A run as a data frame

  @both_backends
  Scenario: A row for each request, with its answer, cost and times, or its error
    Given an API whose model answers as it is told
    And a batch provider with {"max_attempts": 1}
    When a run of these prompts is submitted as Flat
      | prompt                                    |
      | say: {"number": "12", "total": 3}         |
      | say: not an invoice                       |
      | [[sandbox:errored:invalid_request_error]] |
      | [[sandbox:expired]] late                  |
      | [[sandbox:refused]] no                    |
    And the run is waited for
    Then the run's data frame has the rows
      | id | state     | ok    | text           | parsed                        | stop_reason | error_type            | attempt |
      | 1  | succeeded | true  | {"number": "12", "total": 3} | {"number":"12","total":3.0} | end_turn | -           | 1       |
      | 2  | succeeded | true  | not an invoice | -                             | end_turn    | -                     | 1       |
      | 3  | errored   | false | -              | -                             | -           | invalid_request_error | 1       |
      | 4  | expired   | false | -              | -                             | -           | expired               | 1       |
      | 5  | refused   | false | …              | -                             | refusal     | refusal               | 1       |
    And its costs, tokens, models, batches, messages and times are those of the run's results
    And by its id, in an event loop, as pandas and with rows in its place it is the same

  Scenario: Requests that wait have nulls
    Given an API that takes 3600 seconds for a batch
    And a batch provider
    When a run of 1 prompts is submitted
    Then the run's data frame has the rows
      | id | state  | ok | text | parsed | cost_usd | error_type | answered | reused |
      | 1  | …      | -  | -    | -      | -        | -          | -        | -      |

  Scenario: Contexts are JSON texts
    Given an API
    And a batch provider
    When a run with the contexts [{"row": 7}, null, "é"] is submitted
    Then the run's data frame has the rows
      | id | state     | ok   | context   |
      | 1  | succeeded | true | {"row":7} |
      | 2  | succeeded | true | -         |
      | 3  | succeeded | true | "é"       |

  Scenario: Ten thousand rows are not held as Python objects
    Given an API
    And a batch provider
    When a run of 10000 prompts is submitted
    And the run is waited for
    Then its data frame takes less than a third of the Python memory of its rows

  Scenario: A value that cannot become a frame is refused
    Then data frames are refused as follows
      | what            | error                                                              |
      | no such run     | has no run 'run-none'                                              |
      | run and ledger  | a Run has its ledger                                               |
      | without polars  | a data frame needs an extra: pip install 'claude-batch[frame]'     |
