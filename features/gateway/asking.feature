Feature: What a call can ask for beside the Messages API
  By headers, or by a prefix of the path where a client can only set a URL.

  Scenario: Mode, label, budget and deadline
    Given a gateway over the sandbox with {"hold": 30}
    When the gateway is called as follows
      | call | prompt | path                                     | headers                                                                                                          |
      | A    | one    | /v1/messages?beta=true                   | {"claude-batch-mode": "live"}                                                                                    |
      | B    | two    | /v1/messages                             | {"claude-batch-label": "nightly", "accept-encoding": "gzip"}                                                     |
      | C    | three  | /with/mode=live,label=hasty/v1/messages  | {}                                                                                                               |
      | D    | four   | /with/mode=live/v1/messages              | {"claude-batch-mode": "batch"}                                                                                   |
      | E    | five   | /v1/messages                             | {"claude-batch-budget-usd": "1", "claude-batch-label": "bounded", "claude-batch-deadline": "5h"}                 |
      | F    | six    | /with/mode=live,label=a%2Cb%2Fc/v1/messages | {}                                                                                                            |
      | G    | seven  | /with/mode=live,label=50%2525/v1/messages | {}                                                                                                              |
      | H    | eight  | /with/mode%3Dlive%2Clabel%3Dlate/v1/messages | {}                                                                                                           |
    Then the calls have ended with
      | call | status | answered | claude-batch-via | claude-batch-attempt | content-encoding |
      | A    | 200    | yes      | live             | 1                    |                  |
      | B    | 200    | yes      | batch            | 1                    |                  |
      | C    | 200    | yes      | live             | 1                    |                  |
      | D    | 200    | yes      | batch            | 1                    |                  |
      | E    | 200    | yes      | batch            | 1                    |                  |
      | F    | 200    | yes      | live             | 1                    |                  |
      | G    | 200    | yes      | live             | 1                    |                  |
      | H    | 200    | yes      | live             | 1                    |                  |
    And in the ledger the labels of the runs are ["50%25", "a,b/c", "bounded", "hasty", "late", "nightly"]

  Scenario: The user profile of a call, or else the provider's, is billed
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05, "default_options": {"user_profile_id": "prof_A"}}
    Then the gateway's responses to callers are as follows
      | path                 | headers                                 | status | words       |
      | /v1/messages         | {}                                      | 200    |             |
      | /v1/messages         | {"anthropic-user-profile-id": "prof_B"} | 200    |             |
      | /v1/messages/batches | {"anthropic-user-profile-id": "prof_C"} | 400    | …inputs…    |
    And the gateway's responses to a field of a body are as follows
      | field           | value    | status |
      | user_profile_id | "prof_D" | 200    |
    And the batched client's batches were created with
      | anthropic-user-profile-id |
      |                           |
      | prof_A                    |
      | prof_B                    |
      | prof_C                    |

  Scenario: A call that does not wait gets the address of its request
    Given a gateway over the sandbox with {"latency": 1.5}
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers                              |
      | A    | one    |       |        | /v1/messages                        | {"prefer": "respond-async"}          |
      | B    |        | A     | GET    | /claude-batch/v1/requests/request-1 | {}                                   |
      | C    |        | A     | GET    | /claude-batch/v1/requests/request-1 | {"prefer": "wait=30"}                |
      | D    |        | 5     | GET    | /claude-batch/v1/requests/request-1 | {}                                   |
      | H    |        | D     | GET    | /claude-batch/v1/requests/request-1 | {}                                   |
      | E    | two    | A     |        | /v1/messages                        | {"prefer": "respond-async, wait=30"} |
      | F    |        |       | GET    | /claude-batch/v1/requests/request-9 | {}                                   |
      | G    |        |       | GET    | /claude-batch/v1/requests/run-1     | {}                                   |
    Then the calls have ended with
      | call | status | answered | location                            | retry-after | preference-applied | error           |
      | A    | 202    | no       | /claude-batch/v1/requests/request-1 | 1           | respond-async      |                 |
      | B    | 202    | no       | /claude-batch/v1/requests/request-1 | 1           | respond-async      |                 |
      | C    | 200    | yes      |                                     |             |                    |                 |
      | D    | 200    | yes      |                                     |             |                    |                 |
      | H    | 200    | yes      |                                     |             |                    |                 |
      | E    | 200    | yes      |                                     |             |                    |                 |
      | F    | 404    | no       |                                     |             |                    | not_found_error |
      | G    | 404    | no       |                                     |             |                    | not_found_error |
    And the API has processed 2 requests, none twice
    And no call waits at the gateway
    And the gateway's metrics are
      | metric                                                                         | value |
      | claude_batch_gateway_answers_total{origin="new",state="succeeded",via="batch"} | 2     |
      | claude_batch_gateway_calls_total{end="whole",status="202",stream="false"}      | 1     |

  Scenario: A request that was accepted stays, although the call that it joined goes away
    Given a gateway over the sandbox with {"linger": 3, "hold": 30}
    When the gateway is called as follows
      | call | prompt | leaves | after | method | path                                | headers                                                     |
      | A    | one    | 1.5    |       |        | /v1/messages                        | {}                                                          |
      | B    | one    |        | 0.5   |        | /v1/messages                        | {"prefer": "respond-async", "x-stainless-retry-count": "1"} |
      | C    |        |        | A     | GET    | /claude-batch/v1/requests/request-1 | {"prefer": "wait=30"}                                       |
    Then the calls have ended with
      | call | status | end   | answered | request |
      | A    | 0      | left  | no       | 1       |
      | B    | 202    | whole | no       | 2       |
      | C    | 200    | whole | yes      | 2       |

  Scenario: A call that does not wait is withdrawn if it cannot be stored in time
    Given a gateway over the sandbox with {"hold": 0}
    When the gateway is called as follows
      | call | prompt | after | headers                                                  |
      | A    | one    |       | {"prefer": "respond-async", "claude-batch-new": "true"}  |
      | B    | one    | A     | {"claude-batch-new": "true"}                             |
    Then the calls have ended with
      | call | status | answered | error            |
      | A    | 503    | no       | overloaded_error |
      | B    | 200    | yes      |                  |
    And the API has processed 1 requests in all

  Scenario: A call that waits for a request which ends as it begins to wait gets the answer
    Given a gateway over the sandbox with {"latency": 1}
    And the gateway takes 3 seconds to look a request up
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers               |
      | A    | one    |       |        | /v1/messages                        | {}                    |
      | B    |        | 0.7   | GET    | /claude-batch/v1/requests/request-1 | {"prefer": "wait=2m"} |
    Then the calls have ended with
      | call | status | answered |
      | A    | 200    | yes      |
      | B    | 200    | yes      |

  Scenario: A program that looks at a request does not keep its answer from an equal call
    The caller goes away while another program waits to see whether the request has ended.
    Given a gateway over the sandbox with {"latency": 3}
    When the gateway is called as follows
      | call | prompt | leaves | after | method | path                                | headers               |
      | A    | one    | 1.5    |       |        | /v1/messages                        | {}                    |
      | B    |        |        | 0.7   | HEAD   | /claude-batch/v1/requests/request-1 | {"prefer": "wait=30"} |
      | C    | one    |        | B     |        | /v1/messages                        | {}                    |
    Then the calls have ended with
      | call | status | end   | request |
      | A    | 200    | left  | 1       |
      | B    | 200    | whole | 1       |
      | C    | 200    | whole | 1       |
    And the API has processed 1 requests in all

  Scenario: A program that looks at a request does not keep it for a caller that goes away
    Given a gateway over the sandbox with {"linger": 3}
    When the gateway is called as follows
      | call | prompt | leaves | after | method | path                                | headers                  |
      | A    | one    | 2      |       |        | /v1/messages                        | {}                    |
      | B    |        |        | 0.7   | GET    | /claude-batch/v1/requests/request-1 | {"prefer": "wait=500ms"} |
      | C    | two    |        | A     |        | /v1/messages                        | {}                       |
    Then the calls have ended with
      | call | status | end   | request |
      | A    | 200    | left  | 1       |
      | B    | 202    | whole | 1       |
      | C    | 200    | whole | 2       |
    And the API has processed 1 requests in all

  Scenario: A request that is not wanted any more is cancelled
    Given a gateway over the sandbox with {"latency": 60, "cancel_latency": 0.1, "hold": 30}
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers                       |
      | A    | one    |       |        | /v1/messages                        | {}                            |
      | B    |        | 1.5   | DELETE | /claude-batch/v1/requests/request-1 | {}                            |
      | C    |        | A     | GET    | /claude-batch/v1/requests/request-1 | {}                            |
      | D    |        | A     | DELETE | /claude-batch/v1/requests/request-1 | {}                            |
    Then the calls have ended with
      | call | status | error            |
      | A    | 499    | request_canceled |
      | B    | 202    |                  |
      | C    | 499    | request_canceled |
      | D    | 499    | request_canceled |

  Scenario: A caller that leaves in the middle of its answer gets it again
    Given a gateway over the sandbox with {"hold": 30, "responder": "toolbox:long_answer"}
    When the gateway is called as follows
      | call | prompt     | reads  |
      | A    | [[long:8]] | a part |
    Then no call waits at the gateway
    When the gateway is called as follows
      | call | prompt     |
      | B    | [[long:8]] |
    Then the calls have ended with
      | call | status | end   | claude-batch-reused | characters |
      | B    | 200    | whole | true                | 8388608    |
    And the API has processed 1 requests in all

  @long
  Scenario: One command shows the gateway working
    When the commands of docs/how-to/gateway.md are typed, on a free port
    Then the command line exits with 0
    And the command line prints
      """
      "Sandbox answer
      """
    And the gateway may open as many files as this machine allows

  Scenario: Each token has a budget of its own
    The budget has room for one call at a time, so ann's second call waits for her first.
    Given a gateway over the sandbox with {"hold": 30, "actor_budget_usd": "0.0004"}
    And the gateway has tokens for ann and bob
    When the gateway is called as follows
      | call | prompt | token |
      | A    | one    | ann   |
      | B    | two    | ann   |
      | C    | three  | bob   |
    Then the calls have ended with
      | call | status | answered |
      | A    | 200    | yes      |
      | B    | 200    | yes      |
      | C    | 200    | yes      |
    And the API has seen 2 batches

  Scenario: A call that a spent budget holds is refused as one that is too dear for it, and is kept
    Given a gateway over the sandbox with {"hold": 30, "actor_budget_usd": "0.00036"}
    When the gateway is called as follows
      | call | prompt | token |
      | A    | one    |       |
    Then the calls have ended with
      | call | status | answered |
      | A    | 200    | yes      |
    When the gateway is called as follows
      | call | prompt | token |
      | B    | two    |       |
    Then the calls have ended with
      | call | status | answered |
      | B    | 402    | no       |
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers                     |
      | C    | three  |       |        | /v1/messages                        | {"prefer": "respond-async"} |
      | D    |        | C     | GET    | /claude-batch/v1/requests/request-3 | {}                          |
      | E    |        | C     | GET    | /claude-batch/v1/requests/request-3 | {"prefer": "wait=60"}       |
      | F    |        | E     | DELETE | /claude-batch/v1/requests/request-3 | {}                          |
    Then the calls have ended with
      | call | status | error            |
      | C    | 202    |                  |
      | D    | 402    | billing_error    |
      | E    | 402    | billing_error    |
      | F    | 499    | request_canceled |
    And the API has seen 1 batches
