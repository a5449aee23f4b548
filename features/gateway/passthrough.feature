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

  Scenario: An API that fails: a call is repeated only if nothing can be paid for twice
    Given a server that means harm, between the gateway and the API
    Then the gateway's responses to a failing API are as follows
      | fault           | call                                         | status | retry | words                        |
      | closes          | GET /v1/models                               | 502    | true  | the API did not answer (…)   |
      | closes          | POST /v1/messages/count_tokens               | 502    | true  | the API did not answer (…)   |
      | closes          | POST /v1/messages/batches/msgbatch_1/cancel  | 502    | true  | the API did not answer (…)   |
      | closes          | POST /v1/messages/batches                    | 502    | false | …may have accepted the call  |
      | ends early      | POST /v1/messages/batches                    | 502    | false | …may have accepted the call  |
      | ends early      | GET /v1/models                               | 502    | true  | the API did not answer (…)   |
      | ends early      | GET /v1/messages/batches/msgbatch_1          | 502    | true  | the API did not answer (…)   |
      | is too large    | GET /v1/messages/batches                     | 502    | true  | …ResponseTooLarge…           |
      | redirects       | GET /v1/models                               | 502    | false | …a redirect…not followed     |
      | repeats the key | GET /v1/models                               | 400    |       | Bearer … is odd              |
      | praises the key | GET /v1/models                               | 200    |       | Bearer … is fine             |
    And a download that the API ends early is aborted

  Scenario: Files and results are streams in both directions
    Given a server that means harm, between the gateway and the API
    When a file is uploaded whose second half is sent when the API has the first
    Then the API has got the upload byte for byte, with the gateway's key and no header of the caller's
    And the second half of "/v1/files/file_1/content" is sent when the caller has the first
    And the second half of "/v1/messages/batches/msgbatch_1/results" is sent when the caller has the first

  Scenario: The gateway ends while the API is silent
    Given a server that means harm, between the gateway and the API
    When the gateway ends while the API is silent about "POST /v1/messages/batches"
    Then the call has been answered with 503, and "false" in x-should-retry
    And the gateway has ended within 5 seconds
