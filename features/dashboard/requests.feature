@both_backends
Feature: A request's page shows each block of its prompt and its answer

  Scenario: Texts, documents, pictures, tools and their results, and what the model thought
    Given a ledger with a prompt and an answer that have blocks of every kind
    And a dashboard of this ledger
    Then the dashboard's pages say
      | path                     | words                        |
      | /runs/<blocks>/requests/1 | Be brief.                   |
      | /runs/<blocks>/requests/1 | a plain text of a document  |
      | /runs/<blocks>/requests/1 | image/png                   |
      | /runs/<blocks>/requests/1 | weather                     |
      | /runs/<blocks>/requests/1 | 21 degrees                  |
      | /runs/<blocks>/requests/1 | I thought about it          |
      | /runs/<blocks>/requests/1 | document url, https://example.com/a.pdf |
      | /runs/<blocks>/requests/1 | tool result failed the sensor is broken |
      | /runs/<blocks>/requests/1 | redacted thinking { "type": "redacted_thinking"…c2VjcmV0 |
      | /runs/<blocks>/requests/1 | It is warm. cites 1, 2 Bring a coat. cites 3 |
      | /runs/<blocks>/requests/1 | Citations twenty-one degrees Notes…warm Notes…bring a coat |
      | /runs/<blocks>/requests/1 | end_turn                    |
    And every page that the dashboard links to is valid HTML with labels

  Scenario: Addresses of requests and parts that do not exist
    Given a ledger with runs for the dashboard
      | run   | prompts          |
      | knots | ["Name a knot."] |
    And a dashboard of this ledger
    Then the dashboard's responses are
      | path                                   | status | words                                   |
      | /runs/<knots>/requests/0               | 404    | <knots> has no request                  |
      | /runs/<knots>/requests/2               | 404    | <knots> has no request                  |
      | /runs/<knots>/requests/one             | 404    | <knots> has no request                  |
      | /runs/<knots>/requests/11111111111111111 | 404  | <knots> has no request                  |
      | /runs/<knots>/requests/1/params.json   | 200    | Name a knot.                            |
      | /runs/<knots>/requests/1/result-2.json | 404    | has no such part                        |
      | /runs/run-nothing/requests/1/params.json | 404  | has no run                              |
      | /runs/<knots>/results.xml              | 404    | There is no such page                   |
      | /actors/tests%2Fasker?before=sunny_run | 200    | tests/asker                             |
      | /runs/<knots>/requests/999999999999999 | 404    | <knots> has no request                  |
      | /runs/<knots>?after=0                  | 200    | <knots>                                 |
      | /runs/<knots>?after=99999999999999999999 | 400    | names no state or no position           |
      | /runs/<knots>?after=-9999999999&key=a  | 400    | names no state or no position           |
      | /runs/<knots>?after=2147483647&key=a   | 400    | names no state or no position           |
      | /runs/<knots>?key=%00                  | 404    | There is no such page                    |
      | /runs/<knots>?key=%ED%A0%80            | 200    | <knots>                                 |
      | /runs/%00                              | 404    | There is no such page                   |
      | /runs/%ED%A0%80/results.csv            | 404    | There is no such run                    |
      | /actors?after=%00                      | 404    | There is no such page                   |
      | /actors/%00                            | 404    | There is no such page                   |
      | /actors/x?before=1e400_%00             | 404    | There is no such page                   |
      | /actors/x?before=inf_x                 | 200    | Overview                                |
      | /actors/x?before=nan_x                 | 200    | Overview                                |

  Scenario: A request without an answer shows why: it failed, or expired
    Given an API
    And a batch provider
    When a run of these prompts is stored
      | prompt                                            |
      | [[sandbox:errored:invalid_request_error]] Name it. |
      | [[sandbox:expired]] Name it.                      |
    And the run is waited for
    Given a dashboard of this ledger
    Then the dashboard's pages say
      | path                   | words                                           |
      | /runs/<run>/requests/1 | Answer The request was invalid. |
      | /runs/<run>/requests/2 | Answer…expired                                  |

  Scenario: Tools that ran here, with what they returned
    Given an API with {"uses_tools": true}
    And a batch provider
    And its actor has the tools "population,fails"
    When a run of these prompts is stored
      | prompt                     |
      | How many live in Rome?     |
    And the run is waited for
    Given a dashboard of this ledger
    Then the dashboard's pages say
      | path                   | words                                                |
      | /runs/<run>/requests/1 | turns                                                |
      | /runs/<run>/requests/1 | tools population, fails                              |
      | /runs/<run>/requests/1 | Tools that ran here Tool Started Took Result population |
      | /runs/<run>/requests/1 | fails…failed                                         |

  Scenario: The cost of a request in its run is that of all its turns
    Given an API
    And a batch provider
    When a run of these prompts is stored
      | prompt                   |
      | Search [[sandbox:pause]] |
    And the run is waited for
    Given a dashboard of this ledger
    Then the dashboard's pages say
      | path        | words                                       |
      | /runs/<run> | Cost so far $0.000082…request 1…$0.000082   |

  Scenario: An answer that is no success is among the failures
    Given a ledger with runs for the dashboard
      | run   | prompts                                    |
      | knots | ["Name a knot.", "[[sandbox:refused]] no"] |
    And a dashboard of this ledger
    Then the dashboard's pages say
      | path          | words                                                       |
      | /runs/<knots> | Failures Count Type The API's words Examples 1 refused knots-2 |

  Scenario: A damaged prompt and a damaged result still have a page
    Given a ledger with runs for the dashboard
      | run   | prompts                              |
      | knots | ["Name a knot.", "Name another."]    |
    And the ledger's prompts and results are overwritten
    And a dashboard of this ledger
    Then the dashboard's pages say
      | path                     | words                                     |
      | /runs/<knots>/requests/1 | Raw JSON What was sent [not json          |
      | /runs/<knots>/requests/1 | Answer Expected `object`, got `array` |
