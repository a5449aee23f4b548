Feature: Which call joins which request
  A call joins a request that no caller waits for. Equal calls that wait at the same time are
  separate requests.

  Scenario: Equal calls at once are separate requests
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | stream |
      | A    | one    | no     |
      | B    | one    | no     |
    Then the calls have ended with
      | call | status | answered | request |
      | A    | 200    | yes      | 1       |
      | B    | 200    | yes      | 2       |
    And the API has processed 2 requests in all

  Scenario: A call joins the request of a caller that went away, as a stream or not
    Given a gateway over the sandbox with {"latency": 1.5}
    When the gateway is called as follows
      | call | prompt | stream | leaves | after |
      | A    | one    | yes    | sent   |       |
      | B    | one    | no     |        | A     |
      | C    | one    | no     |        | B     |
    Then the calls have ended with
      | call | status | end   | answered | request |
      | A    | 200    | left  | no       | 1       |
      | B    | 200    | whole | yes      | 1       |
      | C    | 200    | whole | yes      | 2       |
    And the API has processed 2 requests in all

  Scenario: A caller that closes its connection and asks again at once joins its own request
    Both reach a busy gateway together, and the new call may be read before the end of the old one.
    Given a gateway over the sandbox with {"latency": 1.5}
    When 200 callers close their connections and ask again while the gateway is busy
    Then each of 200 callers has the answer to its own question
    And the API has processed 200 requests in all

  Scenario: An answer that came while nobody waited is kept
    Given a gateway over the sandbox with {"latency": 2.5}
    When the gateway is called as follows
      | call | prompt | stream | leaves | after |
      | A    | one    | no     | sent   |       |
      | B    | one    | no     |        | 5     |
    Then the calls have ended with
      | call | status | end   | answered | request | claude-batch-reused |
      | A    | 200    | left  | no       | 1       |                     |
      | B    | 200    | whole | yes      | 1       | true                |
    And the API has processed 1 requests, none twice

  Scenario: A request that is not sent yet is withdrawn with its caller
    Given a gateway over the sandbox with {"linger": 3}
    When the gateway is called as follows
      | call | prompt | stream | leaves |
      | A    | one    | no     | 1      |
    Then the calls have ended with
      | call | end  |
      | A    | left |
    And no call waits at the gateway
    And the API has seen 0 batches

  Scenario: Each call of a connection that is closed is left
    Given a gateway over the sandbox with {"linger": 120, "hold": 120}
    When a caller makes 2 calls at once over one connection, and closes it
    Then no call waits at the gateway

  Scenario Outline: An answer whose bytes did not leave the gateway is given to the next equal call: <how>
    Given a gateway over the sandbox with {"hold": 30, "responder": "toolbox:long_answer"}
    When a caller makes <calls> at once over one connection, and <how> it
    And the gateway is called as follows
      | call | prompt     |
      | A    | [[long:8]] |
    Then the calls have ended with
      | call | status | end   | claude-batch-reused |
      | A    | 200    | whole | true                |
    And the API has processed 1 requests in all

    Examples:
      | calls   | how                                 |
      | 1 call  | resets, while the gateway is busy,  |
      | 1 call  | closes, while the gateway is busy,  |
      | 2 calls | resets, in the middle of an answer, |

  Scenario: A retry joins a request whose caller seems to wait still
    Given a gateway over the sandbox with {"latency": 3}
    When the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | A    | one    | no     |       |                                  |
      | B    | one    | yes    | 1     | {"x-stainless-retry-count": "1"} |
      | C    | one    | no     | 1     | {"x-stainless-retry-count": "0"} |
    Then the calls have ended with
      | call | status | answered | request |
      | A    | 200    | yes      | 1       |
      | B    | 200    | yes      | 1       |
      | C    | 200    | yes      | 2       |
    And the API has processed 2 requests in all

  Scenario: Retries of two equal calls join one each
    Given a gateway over the sandbox with {"latency": 4}
    When the gateway is called as follows
      | call | prompt | stream | after | leaves | headers                          |
      | A    | one    | no     |       |        |                                  |
      | B    | one    | no     |       | 2.5    |                                  |
      | C    | one    | no     | 1     |        | {"x-stainless-retry-count": "1"} |
      | D    | one    | no     | 1.2   |        | {"x-stainless-retry-count": "1"} |
      | E    | one    | no     | 1.4   |        | {"x-stainless-retry-count": "2"} |
      | F    | one    | no     | 1.6   |        | {"x-stainless-retry-count": "3"} |
    Then the calls have ended with
      | call | status | answered | request |
      | C    | 200    | yes      | 1       |
      | D    | 200    | yes      | 2       |
      | E    | 200    | yes      | 1       |
      | F    | 200    | yes      | 1       |
    And the API has processed 2 requests in all

  Scenario: A retry takes its own request that nobody waits for, while an equal call waits
    The timeouts of equal calls end one after the other.
    Given a gateway over the sandbox with {"latency": 4}
    When the gateway is called as follows
      | call | prompt | stream | after | leaves | headers                          |
      | A    | one    | no     |       | 1.5    |                                  |
      | B    | one    | no     |       |        |                                  |
      | C    | one    | no     | 1.8   |        | {"x-stainless-retry-count": "1"} |
      | D    | one    | no     | 2     |        | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | end   | answered | request |
      | A    | 200    | left  | no       | 1       |
      | B    | 200    | whole | yes      | 2       |
      | C    | 200    | whole | yes      | 1       |
      | D    | 200    | whole | yes      | 2       |
    And the API has processed 2 requests in all

  Scenario: Retries of equal calls that went away join one request each
    Given a gateway over the sandbox with {"latency": 5}
    When the gateway is called as follows
      | call | prompt | stream | leaves | after   | headers                          |
      | A    | one    | no     | 3 sent |         |                                  |
      | B    | one    | no     | 3 sent |         |                                  |
      | C    | one    | no     | 3 sent |         |                                  |
      | D    | one    | no     | 3 held | A, B, C | {"x-stainless-retry-count": "1"} |
      | E    | one    | no     | 3 held | A, B, C | {"x-stainless-retry-count": "1"} |
      | F    | one    | no     | 3 held | A, B, C | {"x-stainless-retry-count": "1"} |
    And the gateway is started again
    And the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | G    | one    | no     |       | {"x-stainless-retry-count": "2"} |
      | H    | one    | no     |       | {"x-stainless-retry-count": "2"} |
      | I    | one    | no     | 0.1   | {"x-stainless-retry-count": "2"} |
      | J    | one    | no     | I     | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | answered | request |
      | G    | 200    | yes      | 1       |
      | H    | 200    | yes      | 2       |
      | I    | 200    | yes      | 3       |
      | J    | 200    | yes      | 4       |
    And the API has processed 4 requests in all

  @both_backends
  Scenario: A retry joins the answer that was written as its caller gave up
    The last byte of an answer was written, so it counts as taken, but the caller had gone away.
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | A    | one    | no     |       |                                  |
    And the gateway is started again
    And the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | B    | one    | yes    |       | {"x-stainless-retry-count": "1"} |
      | C    | one    | no     | B     | {"x-stainless-retry-count": "2"} |
      | D    | one    | no     | C     | {"x-stainless-retry-count": "0"} |
      | E    | one    | no     | D     | {"x-stainless-retry-count": "1"} |
      | F    | two    | no     | D     | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | answered | request | claude-batch-reused |
      | B    | 200    | yes      | 1       | true                |
      | C    | 200    | yes      | 1       | true                |
      | D    | 200    | yes      | 2       |                     |
      | E    | 200    | yes      | 2       | true                |
      | F    | 200    | yes      | 3       |                     |
    And the API has processed 3 requests in all

  Scenario: A retry joins no answer that was written an hour ago
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | stream | after | headers |
      | A    | one    | no     |       |         |
    And the gateway is started again
    Given the clock of this machine is 1 hours ahead
    When the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | B    | one    | no     |       | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | answered | request |
      | B    | 200    | yes      | 1       |
    And the API has processed 2 requests in all

  Scenario: Retries of two equal calls whose answers were written join one answer each
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | A    | one    | no     |       |                                  |
      | B    | one    | no     | A     |                                  |
      | C    | one    | no     | B     | {"x-stainless-retry-count": "1"} |
      | D    | one    | no     | C     | {"x-stainless-retry-count": "1"} |
      | E    | one    | no     | D     | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | answered | request | claude-batch-reused |
      | A    | 200    | yes      | 1       |                     |
      | B    | 200    | yes      | 2       |                     |
      | C    | 200    | yes      | 2       | true                |
      | D    | 200    | yes      | 1       | true                |
      | E    | 200    | yes      | 3       |                     |
    And the API has processed 3 requests in all

  Scenario: An Idempotency-Key always joins its request
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | stream | after | headers                                            |
      | A    | one    | no     |       | {"idempotency-key": "k1"}                          |
      | B    | one    | yes    |       | {"idempotency-key": "k1"}                          |
      | C    | one    | no     | A     | {"idempotency-key": "k1"}                          |
      | D    | two    | no     | A     | {"idempotency-key": "k1"}                          |
      | E    | one    | no     | A     | {"idempotency-key": "k2"}                          |
      | F    | one    | no     | A     | {"idempotency-key": "k1", "anthropic-beta": "b-1"} |
    Then the calls have ended with
      | call | status | end   | answered | error          | request |
      | A    | 200    | whole | yes      |                | 1       |
      | B    | 200    | whole | yes      |                | 1       |
      | C    | 200    | whole | yes      |                | 1       |
      | D    | 409    | whole | no       | conflict_error | 2       |
      | E    | 200    | whole | yes      |                | 3       |
      | F    | 409    | whole | no       | conflict_error | 2       |
    And the API has processed 2 requests in all

  Scenario: A new call joins nothing, and its retries join it
    Given a gateway over the sandbox with {"latency": 8}
    When the gateway is called as follows
      | call | prompt | stream | leaves | after | headers                                                      |
      | A    | one    | no     | sent   |       |                                                              |
      | B    | one    | no     |        | A     | {"claude-batch-new": "true"}                                 |
      | C    | one    | no     |        | A     | {"claude-batch-new": "true", "idempotency-key": "k"}         |
      | D    | one    | no     | 3      | A     | {"claude-batch-new": "true"}                                 |
      | E    | one    | no     |        | D     | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
      | F    | one    | no     |        | D     | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
      | G    | one    | no     |        | E     | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
      | H    | one    | no     |        | G     | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | end   | error                 | request |
      | A    | 200    | left  |                       | 1       |
      | B    | 200    | whole |                       | 2       |
      | C    | 400    | whole | invalid_request_error | 3       |
      | D    | 200    | left  |                       | 4       |
      | E    | 200    | whole |                       | 2 or 4  |
      | F    | 200    | whole |                       | 2 or 4  |
      | G    | 200    | whole |                       | 1       |
      | H    | 200    | whole |                       | 5       |
    And the API has processed 4 requests in all

  Scenario: A retry of a new call joins that call, although an older one waits too
    Given a gateway over the sandbox with {"latency": 6}
    And another process serves a gateway of the same ledger
    When the gateway is called as follows
      | call | prompt | stream | after | at      | headers                                                      |
      | A    | one    | no     |       |         |                                                              |
      | B    | one    | no     | 1     |         | {"claude-batch-new": "true"}                                 |
      | C    | one    | no     | 2     |         | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
      | D    | two    | no     |       |         |                                                              |
      | E    | two    | no     | 1     |         | {"claude-batch-new": "true"}                                 |
      | F    | two    | no     | 2     | another | {"claude-batch-new": "true", "x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | answered | request |
      | A    | 200    | yes      | 1       |
      | D    | 200    | yes      | 2       |
      | B    | 200    | yes      | 3       |
      | E    | 200    | yes      | 4       |
      | C    | 200    | yes      | 3       |
      | F    | 200    | yes      | 4       |
    And the API has processed 4 requests in all

  Scenario: A request whose caller asks for it is cancelled with its caller
    Given a gateway over the sandbox with {"latency": 60, "cancel_latency": 0.1}
    When the gateway is called as follows
      | call | prompt | stream | leaves | headers                                |
      | A    | one    | no     | sent   | {"claude-batch-on-disconnect": "drop"} |
    Then the API receives a cancellation of the batch

  Scenario: A retry at another gateway joins a request whose caller seems to wait still at the first
    Given a gateway over the sandbox with {"latency": 5}
    And another process serves a gateway of the same ledger
    When the gateway is called as follows
      | call | prompt | stream | after | at      | headers                          |
      | A    | one    | no     |       |         |                                  |
      | B    | one    | no     | 1.5   | another | {"x-stainless-retry-count": "1"} |
      | C    | one    | no     | 2     | another | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | end   | answered | request |
      | A    | 200    | whole | yes      | 1       |
      | B    | 200    | whole | yes      | 1       |
      | C    | 200    | whole | yes      | 2       |
    And the API has processed 2 requests in all

  Scenario Outline: A call does not cancel its request once a retry at another gateway waits for it: <how>
    The connection of the first try broke, and its gateway notices that later than the client.
    Given a gateway over the sandbox with <settings>
    And another process serves a gateway of the same ledger
    When the gateway is called as follows
      | call | prompt | stream | leaves | after | at      | headers                          |
      | A    | one    | no     | 3      |       |         |                                  |
      | B    | one    | no     |        | 1.5   | another | {"x-stainless-retry-count": "1"} |
    Then the calls have ended with
      | call | status | end   | answered | request |
      | A    | 200    | <end> | no       | 1       |
      | B    | 200    | whole | yes      | 1       |
    And the API has processed 1 requests in all

    Examples:
      | how       | end     | settings                                                     |
      | dropped   | left    | {"latency": 5, "on_disconnect": "drop"}                      |
      | timed out | aborted | {"latency": 5, "on_timeout": "cancel", "max_wait": "2500ms"} |

  Scenario: Callers with different tokens share nothing
    Given a gateway over the sandbox with {"latency": 1.5, "hold": 30, "max_attempts": 1}
    And the gateway has tokens for ann and bob
    When the gateway is called as follows
      | call | prompt                                    | leaves | after | token | headers                   |
      | A    | one                                       | 1      |       | ann   |                           |
      | B    | one                                       |        | A     | bob   |                           |
      | C    | one                                       |        | A     | ann   |                           |
      | D    | [[sandbox:errored:invalid_request_error]] |        |       | ann   |                           |
      | E    | [[sandbox:errored:invalid_request_error]] |        | D     | bob   |                           |
      | F    | [[sandbox:errored:invalid_request_error]] |        | D     | ann   |                           |
      | G    | two                                       |        |       | ann   | {"idempotency-key": "k1"} |
      | H    | three                                     |        | G     | bob   | {"idempotency-key": "k1"} |
    Then the calls have ended with
      | call | status | end   | request | claude-batch-reused |
      | A    | 0      | left  | 1       |                     |
      | B    | 200    | whole | 2       |                     |
      | C    | 200    | whole | 3       |                     |
      | D    | 400    | whole | 4       |                     |
      | E    | 400    | whole | 5       |                     |
      | F    | 400    | whole | 4       | true                |
      | G    | 200    | whole | 6       |                     |
      | H    | 200    | whole | 7       |                     |
    And the API has processed 6 requests in all
