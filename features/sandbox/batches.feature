Feature: The sandbox keeps batches as the API does

  Scenario: The official SDK works against it unchanged
    Given a sandbox
    Then the official SDK lives through a batch in the sandbox

  Scenario Outline: A create is refused at once for its envelope
    Given a sandbox
    When the sandbox is sent the batch body
      """
      <body>
      """
    Then the sandbox answers 400 invalid_request_error saying "<message>"
    And the sandbox shows 0 batches

    Examples:
      | body                                                                               | message                                                                           |
      | {"requests": [                                                                     | not valid JSON                                                                    |
      | []                                                                                 | body: Input should be a valid dictionary                                          |
      | {}                                                                                 | requests: Field required                                                          |
      | {"requests": {}}                                                                   | requests: Input should be a valid list                                            |
      | {"requests": []}                                                                   | at least 1 item                                                                   |
      | {"requests": [{"params": {}}]}                                                     | requests.0.custom_id: Field required                                              |
      | {"requests": [{"custom_id": 7, "params": {}}]}                                     | requests.0.custom_id: Input should be a valid string                              |
      | {"requests": [{"custom_id": "a"}]}                                                 | requests.0.params: Field required                                                 |
      | {"requests": [{"custom_id": "a", "params": {}, "body": {}}]}                       | requests.0.body: Extra inputs are not permitted                                   |
      | {"requests": [{"custom_id": "a", "params": {}}], "metadata": {}}                   | metadata: Extra inputs are not permitted                                          |
      | {"requests": [{"custom_id": "a b", "params": {}}]}                                 | requests.0.custom_id: String should match pattern                                 |
      | {"requests": [{"custom_id": "", "params": {}}]}                                    | requests.0.custom_id: String should match pattern                                 |
      | {"requests": [{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}]} | requests: custom_id's must be unique within a batch. Duplicate custom_id found: a |

  Scenario: A batch may not hold more requests than the limit
    Given a sandbox with the settings
      """
      {"max_requests": 2}
      """
    When the sandbox is sent a batch of 3 requests
    Then the sandbox answers 400 invalid_request_error saying "at most 2 items after validation, not 3"

  Scenario Outline: A body over the limit is too large, with and without a length
    Given a sandbox with the settings
      """
      {"max_body_bytes": 99999}
      """
    When the sandbox is sent a body of <bytes> bytes in pieces
    Then the sandbox answers <status> <kind> saying "<message>"

    Examples:
      | bytes  | status | kind                  | message          |
      | 100000 | 413    | request_too_large     | maximum size     |
      | 99000  | 400    | invalid_request_error | not valid JSON   |

  Scenario: Counts stay 0 until the whole batch has ended
    Given a sandbox
    And the sandbox has a batch of 3 requests
    When the sandbox's clock moves on by 3500 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                     | value         |
      | type                      | "message_batch" |
      | processing_status         | "in_progress" |
      | request_counts.processing | 3             |
      | request_counts.succeeded  | 0             |
      | ended_at                  | null          |
      | results_url               | null          |
    When the sandbox's clock moves on by 200 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                     | value   |
      | processing_status         | "ended" |
      | request_counts.processing | 0       |
      | request_counts.succeeded  | 3       |
      | request_counts.errored    | 0       |
      | archived_at               | null    |

  Scenario: A young batch's counts can be all 0 for a while
    Given a sandbox with the settings
      """
      {"counts_after": 60}
      """
    And the sandbox has a batch of 3 requests
    When the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                     | value |
      | request_counts.processing | 0     |
    When the sandbox's clock moves on by 61 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                     | value |
      | request_counts.processing | 3     |

  Scenario: A batch can be listed late, and is read by its id at once
    Given a sandbox with the settings
      """
      {"listed_after": 60}
      """
    And the sandbox has a batch of 3 requests
    Then the sandbox shows 0 batches
    When the sandbox's last batch is read back
    Then the sandbox answers 200
    When the sandbox's clock moves on by 61 seconds
    Then the sandbox shows 1 batches

  Scenario: The bill shows when a request was accepted and processed, and which fault failed it
    Given a sandbox
    And the sandbox has a batch of the prompts
      | custom_id | prompt                               |
      | a         | Hello                                |
      | b         | [[sandbox:errored:overloaded_error]] |
    And the sandbox's batches have had their time
    Then the sandbox's bill tells of a request as follows
      | custom_id | outcome   | error_type       | seconds |
      | a         | succeeded |                  | 3600    |
      | b         | errored   | overloaded_error | 3600    |

  Scenario: Results come in an order that only the seed decides
    Then the sandbox's results come in an order as follows
      | seed | requests | order             |
      | 0    | 6        | r2 r3 r1 r0 r5 r4 |
      | 0    | 6        | r2 r3 r1 r0 r5 r4 |
      | 8    | 6        | r0 r3 r5 r2 r4 r1 |

  Scenario: Results cannot be read before the end
    Given a sandbox
    And the sandbox has a batch of 1 requests
    When the sandbox is called with GET "/v1/messages/batches/{batch}/results"
    Then the sandbox answers 404 not_found_error saying "has no available results."

  Scenario: Results cannot be read when they are too old
    Given a sandbox with the settings
      """
      {"results_kept": 7200}
      """
    And the sandbox has a batch of 1 requests
    And the sandbox's batches have had their time
    When the sandbox is called with GET "/v1/messages/batches/{batch}/results"
    Then the sandbox answers 200
    When the sandbox's clock moves on by 3600 seconds
    And the sandbox is called with GET "/v1/messages/batches/{batch}/results"
    Then the sandbox answers 404 not_found_error saying "archived"
    When the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field             | value   |
      | processing_status | "ended" |
      | results_url       | null    |

  Scenario: Requests that a batch has no time for expire
    Given a sandbox with the settings
      """
      {"expires_after": 1800}
      """
    And the sandbox has a batch of 4 requests
    When the sandbox's clock moves on by 1801 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                    | value   |
      | processing_status        | "ended" |
      | request_counts.succeeded | 2       |
      | request_counts.expired   | 2       |
    And the sandbox's results end as
      | custom_id | ending    |
      | r0        | succeeded |
      | r1        | succeeded |
      | r2        | expired   |
      | r3        | expired   |
    And the sandbox's bill agrees with the usage of its results

  Scenario: A batch is canceling, then ended with what it had finished
    Given a sandbox with the settings
      """
      {"cancel_latency": 60}
      """
    And the sandbox has a batch of 4 requests
    When the sandbox's clock moves on by 1000 seconds
    And the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    Then the sandbox's answer has the fields
      | field                     | value       |
      | processing_status         | "canceling" |
      | request_counts.processing | 4           |
    When the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    Then the sandbox answers 200
    When the sandbox's clock moves on by 61 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                    | value   |
      | processing_status        | "ended" |
      | request_counts.succeeded | 1       |
      | request_counts.canceled  | 3       |
    When the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    Then the sandbox answers 400 invalid_request_error saying "already ended"
    And the sandbox's bill sums up as
      | what      | count |
      | paid      | 1     |
      | canceled  | 3     |
      | succeeded | 1     |

  Scenario: A batch that is canceled near its end is over only when it is canceled
    Given a sandbox with the settings
      """
      {"cancel_latency": 60}
      """
    And the sandbox has a batch of 10 requests
    When the sandbox's clock moves on by 3590 seconds
    And the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    And the sandbox's clock moves on by 20 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field             | value       |
      | processing_status | "canceling" |
    When the sandbox's clock moves on by 60 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field                    | value   |
      | processing_status        | "ended" |
      | request_counts.succeeded | 9       |
      | request_counts.canceled  | 1       |

  Scenario: A batch is deleted only after its end, and stays on the bill
    Given a sandbox
    And the sandbox has a batch of 2 requests
    When the sandbox is called with DELETE "/v1/messages/batches/{batch}"
    Then the sandbox answers 400 invalid_request_error saying "In progress batches cannot be deleted. Consider canceling the batch instead."
    When the sandbox's batches have had their time
    And the sandbox is called with DELETE "/v1/messages/batches/{batch}"
    Then the sandbox's answer has the fields
      | field | value                   |
      | type  | "message_batch_deleted" |
    When the sandbox is called with GET "/v1/messages/batches/{batch}"
    Then the sandbox answers 404 not_found_error saying "not found"
    And the sandbox shows 0 batches
    And the sandbox's bill has 2 records
    And the sandbox's bill names params by the SHA-256 of their sorted compact JSON as follows
      | text                                                                                             | custom_id |
      | {"max_tokens":1000,"messages":[{"content":"Prompt 0","role":"user"}],"model":"claude-haiku-4-5"} | r0        |
      | {"max_tokens":1000,"messages":[{"content":"Prompt 1","role":"user"}],"model":"claude-haiku-4-5"} | r1        |

  Scenario Outline: A batch that does not exist is not found
    Given a sandbox
    When the sandbox is called with <method> "/v1/messages/batches/msgbatch_none<tail>"
    Then the sandbox answers 404 not_found_error saying "Message Batch msgbatch_none not found."

    Examples:
      | method | tail     |
      | GET    |          |
      | DELETE |          |
      | POST   | /cancel  |
      | GET    | /results |

  Scenario: The list is newest first, in pages both ways
    Given a sandbox
    And the sandbox has 5 batches of 1 requests
    When the sandbox is called with GET "/v1/messages/batches?limit=2"
    Then the sandbox's list shows the batches 5 4
    And the sandbox's answer has the fields
      | field    | value |
      | has_more | true  |
    When the sandbox is called with GET "/v1/messages/batches?limit=3&after_id={batch}"
    Then the sandbox's list shows the batches 4 3 2
    When the sandbox is called with GET "/v1/messages/batches?limit=2&before_id={first}"
    Then the sandbox's list shows the batches 3 2
    And the sandbox's answer has the fields
      | field    | value |
      | has_more | true  |
    When the sandbox is called with GET "/v1/messages/batches?limit=2&after_id={first}"
    Then the sandbox's list shows the batches none
    And the official SDK reads from the sandbox as follows
      | call                  | arguments                            | field | value                                                   |
      | messages.batches.list | {"limit": 2}                         | *.id  | ["batch 5", "batch 4", "batch 3", "batch 2", "batch 1"] |
      | messages.batches.list | {"limit": 2, "before_id": "batch 1"} | *.id  | ["batch 3", "batch 2", "batch 5", "batch 4"]            |

  Scenario Outline: A list that cannot be understood is refused
    Given a sandbox
    When the sandbox is called with GET "/v1/messages/batches?<query>"
    Then the sandbox answers 400 invalid_request_error saying "<message>"

    Examples:
      | query                   | message              |
      | limit=0                 | from 1 to 1000       |
      | limit=1001              | from 1 to 1000       |
      | limit=many              | from 1 to 1000       |
      | after_id=x              | after_id: no message |
      | before_id=x             | before_id: no message |
      | after_id=x&before_id=y  | after_id: no message |

  Scenario: A deleted batch is still a place in the list
    Given a sandbox
    And the sandbox has 3 batches of 1 requests
    And the sandbox's batches have had their time
    When the sandbox is called with DELETE "/v1/messages/batches/{batch}"
    And the sandbox is called with GET "/v1/messages/batches?after_id={batch}"
    Then the sandbox's list shows the batches 2 1

  Scenario: Queued requests are limited
    Given a sandbox with the settings
      """
      {"queue_limit": 5, "cancel_latency": 3600}
      """
    And the sandbox has a batch of 4 requests
    When the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    And the sandbox is sent a batch of 2 requests
    Then the sandbox answers 429 rate_limit_error saying "4 are queued"
    When the sandbox's batches have had their time
    And the sandbox is sent a batch of 2 requests
    Then the sandbox answers 200

  Scenario: A client that goes away in the middle of its upload has made nothing
    Given a sandbox
    When a client of the sandbox sends
      """
      POST /v1/messages/batches HTTP/1.1
      host: x
      x-api-key: k
      anthropic-version: 2023-06-01
      content-length: 1000

      {
      """
    And that client gives up after 0.1 seconds without an answer
    Then the sandbox's log soon has 1 calls
    And the sandbox shows 0 batches

  Scenario: A large batch is taken and streamed
    Given a sandbox
    And the sandbox has a batch of 3000 requests
    And the sandbox's batches have had their time
    Then the sandbox's result lines count as
      | what      | count |
      | lines     | 3000  |
      | succeeded | 3000  |
      | of r2999  | 1     |
    And the sandbox's bill sums up as
      | what                     | count |
      | paid                     | 3000  |
      | distinct_params          | 3000  |
      | processed_more_than_once | 0     |
