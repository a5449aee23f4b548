Feature: The gateway keeps a call alive until its batch has ended
  Nothing is sent before `hold` has passed, so that answers and failures within it have their true status.
  Afterwards signs of life follow each other at the interval `ping`.

  Scenario: An answer within the hold is an ordinary response
    Given a gateway over the sandbox with {"hold": 30}
    When the gateway is called as follows
      | call | prompt | stream |
      | A    | one    | no     |
      | B    | two    | yes    |
    Then the calls have ended with
      | call | status | end   | answered | signs | content-type                     | claude-batch-via | claude-batch-cost-usd |
      | A    | 200    | whole | yes      | none  | application/json                 | batch            | 0.000039500           |
      | B    | 200    | whole | yes      | none  | text/event-stream; charset=utf-8 | batch            | 0.000039500           |
    And no call waits at the gateway

  Scenario: A later answer comes after signs of life
    Given a gateway over the sandbox with {"latency": 1}
    When the gateway is called as follows
      | call | prompt | stream |
      | A    | one    | no     |
      | B    | two    | yes    |
    Then the calls have ended with
      | call | status | end   | answered | signs | cache-control          | x-accel-buffering | request | events                                                                                                   |
      | A    | 200    | whole | yes      | some  | no-cache, no-transform | no                | 1       |                                                                                                          |
      | B    | 200    | whole | yes      | some  | no-cache, no-transform | no                | 2       | ping message_start content_block_start content_block_delta content_block_stop message_delta message_stop |
    And call A has a sign of life for each 0.1 seconds at least
    And call B has a sign of life for each 0.1 seconds at least
    And the API has seen 1 batch

  Scenario: Claude Code gets fewer signs of life, because it counts them
    Given a gateway over the sandbox with {"latency": 1, "claude_code_ping": 60}
    When the gateway is called as follows
      | call | prompt | stream | headers                             |
      | A    | one    | yes    | {"user-agent": "claude-cli/2.1.90"} |
    Then the calls have ended with
      | call | status | end   | answered | signs |
      | A    | 200    | whole | yes      | 1     |

  Scenario Outline: A failure within the hold has its true status: <prompt>
    Given a gateway over the sandbox with {"hold": 30, "max_attempts": 1}
    When the gateway is called as follows
      | call | prompt   | stream |
      | A    | <prompt> | no     |
      | B    | <prompt> | yes    |
    Then the calls have ended with
      | call | status   | end   | error  | x-should-retry | content-type     |
      | A    | <status> | whole | <type> | false          | application/json |
      | B    | <status> | whole | <type> | false          | application/json |

    Examples:
      | prompt                                    | status | type                  |
      | [[sandbox:errored:invalid_request_error]] | 400    | invalid_request_error |
      | [[sandbox:errored:overloaded_error]]      | 529    | overloaded_error      |
      | [[sandbox:errored:api_error]]             | 500    | api_error             |
      | [[sandbox:expired]]                       | 504    | timeout_error         |
      | [[sandbox:canceled]]                      | 499    | request_canceled      |

  Scenario: A later failure ends a stream with the API's error
    Given a gateway over the sandbox with {"latency": 1, "max_attempts": 1}
    And the API has the faults
      """
      {"requests": [{"contains": "zz", "outcome": "errored", "error": {"type": "invalid_request_error", "message": "the text 'a\u2028b'"}}]}
      """
    When the gateway is called as follows
      | call | prompt                                    | stream |
      | A    | [[sandbox:errored:invalid_request_error]] | yes    |
      | B    | zz                                        | yes    |
    Then the calls have ended with
      | call | status | end   | error                 | answered | events     |
      | A    | 200    | whole | invalid_request_error | no       | ping error |
      | B    | 200    | whole | invalid_request_error | no       | ping error |

  Scenario: A later failure without streaming aborts the call, and the next one gets the true status
    Given a gateway over the sandbox with {"latency": 1, "max_attempts": 1}
    When the gateway is called as follows
      | call | prompt                                    | after | stream | headers                                                      |
      | A    | [[sandbox:errored:invalid_request_error]] |       | no     |                                                              |
      | B    | [[sandbox:errored:invalid_request_error]] | A     | no     | {"x-stainless-retry-count": "1"}                             |
      | C    | [[sandbox:errored:invalid_request_error]] | B     | yes    |                                                              |
      | D    | [[sandbox:errored:invalid_request_error]] | C     | no     | {"claude-batch-failure-ttl": "0"}                            |
      | E    | [[sandbox:errored:invalid_request_error]] | D     | no     | {"claude-batch-new": "true"}                                 |
      | F    | [[sandbox:errored:invalid_request_error]] | E     | no     | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | end     | error                 | signs | claude-batch-reused | request |
      | A    | 200    | aborted |                       | some  |                     | 1       |
      | B    | 400    | whole   | invalid_request_error | none  | true                | 1       |
      | C    | 400    | whole   | invalid_request_error | none  | true                | 1       |
      | D    | 200    | aborted |                       | some  |                     | 2       |
      | E    | 200    | aborted |                       | some  |                     | 3       |
      | F    | 400    | whole   | invalid_request_error | none  | true                | 3       |
    And the ledger holds 3 requests

  Scenario Outline: A late failure that the ledger does not repeat is repeated to each aborted call: <failure>
    Given a gateway over the sandbox with {"latency": <latency>, "max_wait": "<max_wait>", "on_timeout": "<on_timeout>", "max_attempts": 1}
    When the gateway is called as follows
      | call | prompt   | stream | after | headers |
      | A    | <prompt> | no     |       | <first> |
      | B    | <prompt> | no     |       | <first> |
      | C    | <prompt> | no     | A, B  | <again> |
      | D    | <prompt> | no     | A, B  | <again> |
    Then the calls have ended with
      | call | status   | end     | error   | signs |
      | A    | 200      | aborted |         | some  |
      | B    | 200      | aborted |         | some  |
      | C    | <status> | whole   | <error> | none  |
      | D    | <status> | whole   | <error> | none  |
    And the ledger holds <count> requests

    Examples:
      | failure                             | latency | max_wait | on_timeout | prompt                                    | first                                                            | again                                                            | status | error                 | count |
      | a time-out that cancels             | 60      | 2s       | cancel     | one                                       | {"x-stainless-retry-count": "0"}                                 | {"x-stainless-retry-count": "1"}                                 | 504    | timeout_error         | 2     |
      | a time-out that keeps the request   | 60      | 2s       | park       | one                                       | {"x-stainless-retry-count": "0"}                                 | {"x-stainless-retry-count": "1"}                                 | 504    | timeout_error         | 2     |
      | a time-out of calls with a key      | 60      | 2s       | park       | one                                       | {"idempotency-key": "k"}                                         | {"idempotency-key": "k"}                                         | 504    | timeout_error         | 1     |
      | a time-out of an unnumbered call    | 60      | 2s       | cancel     | one                                       | {}                                                               | {}                                                               | 504    | timeout_error         | 2     |
      | one that is asked not to be repeated | 1      | 60s      | park       | [[sandbox:errored:invalid_request_error]] | {"claude-batch-failure-ttl": "0", "x-stainless-retry-count": "0"} | {"claude-batch-failure-ttl": "0", "x-stainless-retry-count": "1"} | 400    | invalid_request_error | 2     |

  Scenario: A late failure is repeated to each of two aborted calls that waited for one request
    Given a gateway over the sandbox with {"latency": 60, "max_wait": "3s", "on_timeout": "cancel", "max_attempts": 1}
    When the gateway is called as follows
      | call | prompt | after   | headers                          |
      | A    | one    |         | {"x-stainless-retry-count": "0"} |
      | B    | one    | 1 begun | {"x-stainless-retry-count": "1"} |
      | C    | one    | A, B    | {"x-stainless-retry-count": "1"} |
      | D    | one    | A, B    | {"x-stainless-retry-count": "2"} |
    Then the calls have ended with
      | call | status | end     | error         |
      | A    | 200    | aborted |               |
      | B    | 200    | aborted |               |
      | C    | 504    | whole   | timeout_error |
      | D    | 504    | whole   | timeout_error |
    And the ledger holds 1 requests

  Scenario: Late failures of many calls are repeated to each of them for a minute, then they are forgotten
    Then late failures are repeated as follows
      | aborted | prompts | repeated at once | after a minute |
      | 1       | 1       | 1                | 0              |
      | 1200    | 1       | 1200             | 0              |
      | 1200    | 1200    | 1200             | 0              |

  Scenario: The gateway ends while calls wait, and loses nothing
    Given a gateway over the sandbox with {"latency": 4, "hold": 1.5}
    When the gateway ends once 3 of these calls wait
      | call | prompt | stream | after   |
      | A    | one    | no     |         |
      | B    | two    | yes    |         |
      | C    | three  | no     | 2 begun |
    Then the calls have ended with
      | call | status | end     | error     | retry-after | x-should-retry |
      | A    | 200    | aborted |           |             |                |
      | B    | 200    | aborted |           |             |                |
      | C    | 503    | whole   | api_error | 5           | true           |
    And the gateway has ended within 5 seconds
    When the gateway is started again
    And the gateway is called as follows
      | call | prompt | stream |
      | A    | one    | no     |
      | B    | two    | no     |
      | C    | three  | yes    |
    Then the calls have ended with
      | call | status | end   | answered |
      | A    | 200    | whole | yes      |
      | B    | 200    | whole | yes      |
      | C    | 200    | whole | yes      |
    And the API has processed 3 requests, none twice
