@every_python
Feature: One call, one run and one request decide for themselves

  Scenario: A call has settings of its own, whatever its actor says
    Given an API
    Then calls with settings of their own end as follows
      | actor        | settings                   | how                        | via   | error                                         |
      | in batches   | {}                         | awaited                    | batch |                                               |
      | in batches   | {"mode": "live"}           | awaited                    | live  |                                               |
      | in batches   | {"mode": "live"}           | synchronously              | live  |                                               |
      | in batches   | {"mode": "live"}           | many at once               | live  |                                               |
      | in batches   | {"mode": "live"}           | many at once synchronously | live  |                                               |
      | in batches   | {"mode": "live"}           | submitted                  | live  |                                               |
      | in batches   | {"mode": "live"}           | submitted synchronously    | live  |                                               |
      | in batches   | {"mode": "live"}           | as a block                 | live  |                                               |
      | in batches   | {"mode": "auto"}           | awaited                    | live  |                                               |
      | in batches   | {"mode": null}             | awaited                    | batch |                                               |
      | live         | {}                         | awaited                    | live  |                                               |
      | live         | {"mode": "live"}           | awaited                    | live  |                                               |
      | live         | {"mode": "batch"}          | awaited                    | batch |                                               |
      | live         | {"mode": "batch"}          | many at once synchronously | batch |                                               |
      | live         | {"mode": "batch"}          | as a block                 | batch |                                               |
      | live         | {"deadline": "2h"}         | awaited                    | live  |                                               |
      | live         | {"mode": "live"}           | submitted                  | live  |                                               |
      | live         | {}                         | submitted                  |       | write `batch_processing: true` in its YAML    |
      | handed over  | {"mode": "live"}           | awaited                    | live  |                                               |
      | handed over  | {"deadline": "2h"}         | awaited                    |       | a call cannot set `deadline`…cb.load_actor    |
      | in batches   | {"budget_usd": "0.000001"} | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | live         | {"budget_usd": "0.000001"} | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | in batches   | {"budget_usd": 5}          | awaited                    | batch |                                               |
      | in batches   | {"budget": "0.000001"}     | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | live         | {"budget": 5}              | synchronously              | live  |                                               |
      | in batches   | {"mode": "sometimes"}      | awaited                    |       | mode: Input should be 'batch', 'live' or 'auto' |
      | in batches   | {"modus": "live"}          | awaited                    |       | there is no setting 'modus'                   |
      | live         | {"modus": "live"}          | awaited                    |       | there is no setting 'modus'                   |
      | in batches   | {"settling": 1}            | submitted                  |       | there is no setting 'settling'                |

  Scenario: The budget of a call is for it alone, and its deadline is on disk
    Given an API
    And a batch provider with {"deadline": "20h"}
    When 3 prompts are asked with {"budget_usd": "0.03", "deadline": "3h"}
    And 2 prompts are asked with {}
    Then the runs of the ledger have these requests, budgets and deadlines
      | requests | budget | hours |
      | 1        | 0.03   | 3     |
      | 1        | 0.03   | 3     |
      | 1        | 0.03   | 3     |
      | 2        | 0.0    | 20    |

  Scenario: A call with a budget of its own has documents too
    Given an API
    And a batch provider
    When a call with a document and a budget of its own is made
    Then all 1 are answered

  Scenario: A run that is continued keeps its settings, except the budget
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run is submitted with {"budget_usd": 1}, then with {"budget_usd": 2, "mode": "live"}
    Then the runs of the ledger have these requests, budgets and deadlines
      | requests | budget | hours |
      | 2        | 2.0    | 0     |
    And no request of it is live

  Scenario: Closing an actor closes what its calls have opened
    Given an API
    When an actor without batches makes a call in a batch, and is closed
    Then no engine runs, and none of its providers is open

  Scenario Outline: Requests of one run differ in model, options, format and documents: <who>, <how>
    Given an API that remembers what it is asked
    And <who>
    When requests that differ in all this are asked, <how>
    Then each has its own model, options, document and format in what the API was sent
    And each answer is in its own format

    Examples:
      | who                    | how                        |
      | a batch provider       | many at once               |
      | a batch provider       | many at once synchronously |
      | a batch provider       | one by one                 |
      | a live actor           | many at once               |
      | a live actor           | one by one                 |

  Scenario: An answer that does not have the request's own format fails that request alone
    Given an API
    And a batch provider
    When a run is asked in which one request has a format that its answer does not have
    Then that request alone has failed, with an OutputValidationError

  Scenario: An answer is asked again until it has the request's own format
    Given an API
    And a batch provider
    When a request with a format of its own is asked in vain twice with {"validation_attempts": 3}
    Then its answer took 3 turns, alone and in a run

  Scenario: Results are grouped by outcome, without a copy of them in memory
    Given an API
    And a batch provider with {"max_attempts": 1}
    When a run of these prompts is submitted
      | prompt                                        |
      | one                                           |
      | [[sandbox:errored:invalid_request_error]] bad |
      | two                                           |
      | [[sandbox:expired]] late                      |
      | three                                         |
    And the run is waited for
    Then by outcome the run has
      | outcome   | count | positions |
      | succeeded | 3     | [0, 2, 4] |
      | errored   | 1     | [1]       |
      | expired   | 1     | [3]       |
    And an outcome that does not occur is an empty group, and other words are refused
    And another process finds the same groups

  Scenario: Groups of a run that goes on hold what is there
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    Then by outcome the run has nothing yet

  Scenario: Groups are read page by page, through the middleware
    Given an API
    And a batch provider that makes each answer louder
    When a run of 1100 prompts is submitted
    And the run is waited for
    Then the 1100 that succeeded are read in order, louder, and a few at a time
