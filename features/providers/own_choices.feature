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
      | in batches   | {"actor_budget_usd": "0.000001"} | awaited              |       | more than the whole budget of the actor, $0.000001 |
      | in batches   | {"budget_usd": "0.000001"} | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | live         | {"budget_usd": "0.000001"} | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | in batches   | {"budget_usd": 5}          | awaited                    | batch |                                               |
      | in batches   | {"budget": "0.000001"}     | awaited                    |       | more than the whole budget of the run, $0.000001 |
      | live         | {"budget": 5}              | synchronously              | live  |                                               |
      | in batches   | {"mode": "sometimes"}      | awaited                    |       | mode: Input should be 'batch', 'live' or 'auto' |
      | in batches   | {"deadline": "2020-01-01T00:00Z"} | awaited             |       | the deadline 2020-01-01T00:00:00+00:00 is in the past |
      | in batches   | {"deadline": "2020-01-01T00:00Z", "mode": "auto"} | synchronously |  | the deadline 2020-01-01T00:00:00+00:00 is in the past |
      | in batches   | {"deadline": "2020-01-01T00:00Z", "mode": "live"} | synchronously | live | |
      | in batches   | {"deadline": "2020-01-01T00:00Z"} | submitted           |       | the deadline 2020-01-01T00:00:00+00:00 is in the past |
      | in batches   | {"modus": "live"}          | awaited                    |       | there is no setting 'modus'                   |
      | live         | {"modus": "live"}          | awaited                    |       | there is no setting 'modus'                   |
      | in batches   | {"settling": 1}            | submitted                  |       | there is no setting 'settling'                |
      | in batches   | {"response_model": "L"}    | awaited                    |       | there is no setting 'response_model'; the format of answers is `output_format=` of respond |
      | in batches   | {"documents": []}          | awaited                    |       | it belongs to a request: pass an ActorRequest |
      | in batches   | {"temperature": 0}         | awaited                    |       | parameters of the Messages API go into `options=` |
    And calls with settings of their own end as follows
      | actor      | settings          | how           | document              | via   |
      | in batches | {"budget_usd": 1} | synchronously | a text of a few words | batch |

  Scenario: The budget of a call is for it alone, and its deadline is on disk
    Given an API
    And a batch provider with {"deadline": "20h"}
    When 3 prompts are asked with {"budget_usd": "0.03", "deadline": "3h"}
    And 2 prompts are asked with {"budget": "0.02"}
    And 2 prompts are asked with {}
    Then the runs of the ledger have these requests, budgets and deadlines
      | requests | budget | hours |
      | 1        | 0.03   | 3     |
      | 1        | 0.03   | 3     |
      | 1        | 0.03   | 3     |
      | 1        | 0.02   | 20    |
      | 1        | 0.02   | 20    |
      | 2        | 0.0    | 20    |

  Scenario: A run that is continued keeps its settings, except the budget
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted with {"budget_usd": 1}
    And a run of 2 prompts is submitted with {"budget_usd": 2, "mode": "live"}
    Then the runs of the ledger have these requests, budgets and deadlines
      | requests | budget | hours |
      | 2        | 2.0    | 0     |
    And in the ledger the live marks of the requests are [null, null]

  Scenario: Closing an actor closes what its calls have opened
    Given an API
    Then calls of an actor without batches open, until it is closed, as follows
      | mode  | via   | engines | engines later | closed |
      | live  | live  | 0       | 0             | yes    |
      | batch | batch | 1       | 0             | yes    |

  Scenario Outline: Requests of one run differ in model, options, format and documents: <who>, <how>
    Given an API that remembers what it is asked
    And <who>
    When requests with these fields are asked, <how>
      | key     | prompt          | model           | options                                       | format         | document         | params                                             |
      | plain   | as the actor    |                 |                                               |                |                  |                                                    |
      | all     | an invoice      | claude-opus-5-5 | {"max_tokens": 77, "system": "Be brief."}     | Flat           | what it is about |                                                    |
      | options | warm            |                 | {"temperature": 0.5, "stop_sequences": ["."]} |                |                  |                                                    |
      | schema  | a schema        |                 |                                               | schema of Flat |                  |                                                    |
      | again   | another invoice |                 |                                               | Flat           |                  |                                                    |
      | raw     |                 |                 |                                               | Flat           |                  | {"messages": [{"role": "user", "content": "raw"}]} |
    Then the requests to the API have these fields in any order
      | messages.0.content | messages.0.content.0.type | messages.0.content.1.text | model            | max_tokens | system    | temperature | stop_sequences | output_config |
      | as the actor       |                           |                           | claude-haiku-4-5 | …          |           |             |                |               |
      | …                  | document                  | an invoice                | claude-opus-5-5  | 77         | Be brief. |             |                | …             |
      | warm               |                           |                           | claude-haiku-4-5 | …          |           | 0.5         | ["."]          |               |
      | a schema           |                           |                           | claude-haiku-4-5 | …          |           |             |                | …             |
      | another invoice    |                           |                           | claude-haiku-4-5 | …          |           |             |                | …             |
      | raw                |                           |                           | claude-haiku-4-5 | …          |           |             |                | …             |
    And the results have these fields in any order
      | key     | response.parsed_output | response.parsed_output.total | response.model  |
      | plain   | OutputValidationError… | OutputValidationError…       | …               |
      | all     | Flat(…)                | 1.0                          | claude-opus-5-5 |
      | options | OutputValidationError… | OutputValidationError…       | …               |
      | schema  | …                      | 1.0                          | …               |
      | again   | Flat(…)                | 1.0                          | …               |
      | raw     | Flat(…)                | 1.0                          | …               |

    Examples:
      | who              | how                        |
      | a batch provider | many at once               |
      | a batch provider | many at once synchronously |
      | a batch provider | synchronously              |
      | a live actor     | many at once               |
      | a live actor     | synchronously              |

  Scenario: An answer that does not have the request's own format fails that request alone
    Given an API
    And a batch provider
    When requests with these fields are asked, many at once synchronously
      | prompt | format |
      | a      | Flat   |
      | b      | Picky  |
      | c      |        |
    Then the results have these fields in any order
      | position | error                    |
      | 0        |                          |
      | 1        | OutputValidationError: … |
      | 2        |                          |

  Scenario Outline: An answer is asked again until it has the request's own format: <how>
    Given an API
    And a batch provider
    When requests with these fields are asked with {"validation_attempts": 3}, <how>
      | prompt                        | format |
      | invoice [[sandbox:invalid:2]] | Flat   |
    Then the results have these fields in any order
      | response.turns | response.parsed_output |
      | 3              | Flat(…)                |

    Examples:
      | how                        |
      | synchronously              |
      | many at once synchronously |

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
    Then the run's results by outcome are as follows
      | outcome   | positions | outcomes                            | error                                 |
      | succeeded | [0, 2, 4] | ["succeeded", "errored", "expired"] |                                       |
      | errored   | [1]       | ["succeeded", "errored", "expired"] |                                       |
      | expired   | [3]       | ["succeeded", "errored", "expired"] |                                       |
      | lost      | []        | ["succeeded", "errored", "expired"] |                                       |
      | queued    |           |                                     | the outcomes are: succeeded, errored, |
      | faild     |           |                                     | the outcomes are: succeeded, errored, |
    When another provider opens the run
    Then the run's results by outcome are as follows
      | outcome   | positions | outcomes                            |
      | succeeded | [0, 2, 4] | ["succeeded", "errored", "expired"] |
      | errored   | [1]       | ["succeeded", "errored", "expired"] |
      | expired   | [3]       | ["succeeded", "errored", "expired"] |

  Scenario: Groups of a run that goes on hold what is there
    Given an API that takes 30 seconds for a batch
    And a batch provider
    When a run of 2 prompts is submitted
    Then the run's results by outcome are as follows
      | outcome   | positions | outcomes |
      | succeeded | []        | []       |

  Scenario: Groups are read page by page, through the middleware
    Given an API
    And a limit of 10 results in a page
    And a limit of 10 requests that middleware takes at once
    And the middleware "first" and "second", which add their names
    And a batch provider that has it
    When a run of 25 prompts is submitted
    And the run is waited for
    Then the 25 that succeeded are read in order, a few at a time, and end with "second first"
