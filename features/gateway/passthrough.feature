Feature: What the gateway passes to the API
  Everything that is not a message goes to the API with the gateway's own key.

  Background:
    Given a gateway over the sandbox with {"latency": 0}
    And the gateway has tokens for ann

  Scenario: Token counts, models, files and batches
    Then the official SDK's calls of the gateway return as follows
      | call                      | arguments                                                                                                                                        | field                     | value                                         |
      | messages.count_tokens     | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "How many?"}]}                                                            | input_tokens              | 10                                            |
      | models.list               | {"limit": 1}                                                                                                                                     | 0.id                      | claude-opus-5-5                               |
      | models.retrieve           | {"model_id": "claude-haiku-4-5"}                                                                                                                 | id                        | claude-haiku-4-5-20251001                     |
      | beta.files.upload         | {"file": ["a.txt", "All is well."]}                                                                                                              | size_bytes                | 12                                            |
      | beta.files.list           | {}                                                                                                                                               | 0.id                      | {file}                                        |
      | beta.files.download       | {"file_id": "{file}"}                                                                                                                            | error.message             | File is not downloadable                      |
      | beta.files.delete         | {"file_id": "{file}"}                                                                                                                            | id                        | {file}                                        |
      | messages.batches.create   | {"requests": [{"custom_id": "one", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}}]} | request_counts.processing | 1                                             |
      | messages.batches.retrieve | {"message_batch_id": "{batch}"}                                                                                                                  | results_url               | {gateway}/v1/messages/batches/{batch}/results |
      | messages.batches.list     | {}                                                                                                                                               | 0.results_url             | {gateway}/v1/messages/batches/{batch}/results |
      | messages.batches.results  | {"message_batch_id": "{batch}"}                                                                                                                  | 0.result.type             | succeeded                                     |
    When the sandbox is called with GET "/sandbox/log"
    Then the sandbox's answer contains ""auth":"bearer""
    And the sandbox's answer contains no ""auth":"x-api-key""
    And the sandbox's answer contains no "cbg-"

  Scenario: A list shows a caller's own batches, however many of the gateway's are between them
    Then the official SDK's calls of the gateway return as follows
      | call                    | arguments                                                                                                                                        | field   | value         |
      | messages.batches.create | {"requests": [{"custom_id": "one", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}}]} | id      | {batch}       |
      | messages.batches.create | {"requests": [{"custom_id": "two", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}}]} | id      | {batch}       |
      | messages.create         | {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "three"}]}                                               | role    | assistant     |
      | messages.create         | {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "four"}]}                                                | role    | assistant     |
      | messages.batches.list   | {"limit": 1}                                                                                                                                     | 0.id    | {batch}       |
      | messages.batches.list   | {"limit": 1}                                                                                                                                     | 1.id    | {first batch} |
      | messages.batches.create | {"requests": [{"custom_id": "six", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "six"}]}}]} | id      | {batch}       |
      | messages.batches.list   | {"limit": 1}                                                                                                                                     | 0.id    | {batch}       |
      | messages.batches.list   | {"limit": 1, "after_id": "{batch}"}                                                                                                              | 1.id    | {first batch} |
      | messages.batches.list   | {"limit": 1, "before_id": "{first batch}"}                                                                                                       | 1.id    | {batch}       |

  Scenario Outline: A path that leads elsewhere is not passed on: <path>
    When the gateway gets "<method> <path>" as written
    Then the gateway's response is <status>, and contains no key
    And the API has seen no call

    Examples:
      | method | path                          | status |
      | GET    | /v1/files/../messages/batches | 404    |
      | POST   | /v1/files/%2e%2e/messages     | 404    |
      | GET    | /v1/files//x                  | 404    |
      | PUT    | /v1/files                     | 405    |
      | GET    | /v1/organizations             | 404    |
      | GET    | /v1/messages                  | 405    |
      | GET    | http:///v1/files              | 400    |
      | CONNECT | 127.0.0.1:443                | 400    |

  Scenario: An API that cannot be reached
    Given a gateway over the sandbox with {"base_url": "http://127.0.0.1:9"}
    When the gateway gets "GET /v1/models" as written
    Then the gateway's response is 502, and contains no key

  Scenario: An API that fails: a call is repeated only if nothing can be paid for twice
    Given a server that means harm, between the gateway and the API
    Then the gateway's responses to a failing API are as follows
      | fault           | call                                        | status  | retry | words                       |
      | closes          | GET /v1/models                              | 502     | true  | the API did not answer (…)  |
      | closes          | POST /v1/messages/count_tokens              | 502     | true  | the API did not answer (…)  |
      | closes          | POST /v1/messages/batches/msgbatch_1/cancel | 502     | true  | the API did not answer (…)  |
      | closes          | POST /v1/messages/batches                   | 502     | false | …may have accepted the call |
      | ends early      | POST /v1/messages/batches                   | 502     | false | …may have accepted the call |
      | ends early      | GET /v1/models                              | 502     | true  | the API did not answer (…)  |
      | ends early      | GET /v1/messages/batches/msgbatch_1         | 502     | true  | the API did not answer (…)  |
      | is too large    | GET /v1/messages/batches                    | 502     | true  | …ResponseTooLarge…          |
      | redirects       | GET /v1/models                              | 502     | false | …a redirect…not followed    |
      | repeats the key | GET /v1/models                              | 400     |       | Bearer … is odd             |
      | ends early      | GET /v1/messages/batches/msgbatch_1/results | aborted |       |                             |
      | praises the key | GET /v1/models                              | 200     |       | Bearer … is fine            |
      | praises the key | GET /v1/files/file_1/content                | 200     |       | Bearer … is fine            |

  Scenario: Headers of the API are passed on byte for byte, and malformed responses are a 502
    Given a server that means harm, between the gateway and the API
    Then the gateway's responses to a failing API are as follows
      | fault                   | call                         | status | retry | words                           | file          |
      | names a file in UTF-8   | GET /v1/files/file_1/content | 200    |       | Bearer … is fine                | filename=日本 |
      | names a file in UTF-8   | GET /v1/files/file_1         | 200    |       | Bearer … is fine                | filename=日本 |
      | names a file in Latin-1 | GET /v1/files/file_1/content | 200    |       | Bearer … is fine                | filename=café |
      | has a control character | GET /v1/files/file_1/content | 502    | false | …a malformed status or header   |               |
      | has the status 999      | GET /v1/models               | 502    | false | …a malformed status or header   |               |

  Scenario: Files and results are streams in both directions
    Given a server that means harm, between the gateway and the API
    Then the second half of an upload is sent when the API has the first, with the headers
      | header             | value                              |
      | content-type       | multipart/form-data; boundary=edge |
      | content-encoding   | identity                           |
      | anthropic-beta     | files-api-2025-04-14               |
      | authorization      | Bearer <own key>                   |
      | x-api-key          | (none)                             |
      | cookie             | (none)                             |
      | claude-batch-label | (none)                             |
    And the second half of "/v1/files/file_1/content" is sent when the caller has the first
    And the second half of "/v1/messages/batches/msgbatch_1/results" is sent when the caller has the first

  Scenario: The gateway ends while the API is silent
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "hang"}}]}
      """
    When the gateway ends after 1 seconds of these calls
      | call | prompt | path                 | token |
      | A    | one    | /v1/messages/batches | ann   |
    Then the calls have ended with
      | call | status | end   | x-should-retry |
      | A    | 503    | whole | false          |
    And the gateway has ended within 5 seconds
