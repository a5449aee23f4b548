Feature: What the gateway passes to the API
  Everything that is not a message goes to the API with the gateway's own key.

  Background:
    Given a gateway over the sandbox
    And the gateway has tokens for ann and bob
    And the official SDK as a client of the gateway, with ann's token

  Scenario: Token counts, models, files and batches
    When the SDK uses each passed route of the gateway
    Then the SDK's calls of these routes have returned
      | route                | result                              |
      | messages.count_tokens | at least 1 token                   |
      | models.list          | a model with the name asked for     |
      | models.retrieve      | a model with the name asked for     |
      | files.upload         | a file of 1048576 bytes             |
      | files.list           | the file                            |
      | files.download       | the API's refusal                   |
      | files.delete         | the file's id                       |
      | batches.create       | results at the gateway once it ends |
      | batches.list         | results at the gateway              |
      | batches.results      | 2 succeeded                         |
    And the API has seen the gateway's key alone

  Scenario Outline: A path that leads elsewhere is not passed on: <path>
    When the gateway gets "<method> <path>" as written
    Then the gateway's response is <status>
    And the API has seen no call

    Examples:
      | method | path                          | status |
      | GET    | /v1/files/../messages/batches | 404    |
      | POST   | /v1/files/%2e%2e/messages     | 404    |
      | GET    | /v1/files//x                  | 404    |
      | PUT    | /v1/files                     | 405    |
      | GET    | /v1/organizations             | 404    |
      | GET    | /v1/messages                  | 405    |

  Scenario: An API that cannot be reached
    Given the API does not listen any more
    When the gateway gets "GET /v1/models" as written
    Then the gateway's response is 502
    And its body and headers contain no key
