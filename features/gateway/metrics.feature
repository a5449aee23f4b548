Feature: What the gateway counts, and whether it is ready
  Probes need no token. Numbers are for Prometheus.

  Scenario: Calls are counted by how they ended
    Given a gateway over the sandbox with {"latency": 1}
    When the gateway is called as follows
      | call | prompt | stream | leaves |
      | A    | one    | no     |        |
      | B    | two    | yes    |        |
      | C    | three  | yes    | sent   |
    Then the gateway's metrics are
      | metric                                                                                       | value |
      | claude_batch_gateway_calls_total{end="whole",status="200",stream="false"}                    | 1     |
      | claude_batch_gateway_calls_total{end="whole",status="200",stream="true"}                     | 1     |
      | claude_batch_gateway_calls_total{end="left",status="200",stream="true"}                      | 1     |
      | claude_batch_gateway_answers_total{origin="new",state="succeeded",via="batch"}               | 2     |
      | claude_batch_gateway_calls_waiting                                                           | 0     |
      | claude_batch_gateway_wait_seconds_count                                                      | 3     |

  Scenario: A joined retry and a live answer are counted apart
    Given a gateway over the sandbox with {"latency": 1, "hold": 30}
    When the gateway is called as follows
      | call | prompt | stream | after | headers                          |
      | A    | one    | no     |       |                                  |
      | B    | one    | no     | 0.3   | {"x-stainless-retry-count": "1"} |
      | C    | two    | no     |       | {"claude-batch-mode": "live"}    |
    Then the calls have ended with
      | call | status | claude-batch-cost-usd |
      | A    | 200    | 0.000039500           |
      | B    | 200    | 0.000039500           |
      | C    | 200    | 0.000079000           |
    And the gateway's metrics are
      | metric                                                                         | value     |
      | claude_batch_gateway_joins_total{kind="retry"}                                 | 1         |
      | claude_batch_gateway_answers_total{origin="new",state="succeeded",via="batch"} | 1         |
      | claude_batch_gateway_answers_total{origin="new",state="succeeded",via="live"}  | 1         |
      | claude_batch_gateway_requests_waiting                                          | 0         |
      | claude_batch_gateway_body_bytes                                                | 0         |
      | claude_batch_gateway_cost_dollars_total                                        | 0.0001185 |
      | claude_batch_gateway_wait_seconds_bucket{le="86400.0"}                         | 3         |

  Scenario: Calls that join are counted by what they join
    Given a gateway over the sandbox with {"latency": 3, "hold": 60, "max_attempts": 1}
    When the gateway is called as follows
      | call | prompt                                    | leaves | after | headers                   |
      | A    | one                                       | sent   |       |                           |
      | B    | one                                       |        | A     |                           |
      | C    | two                                       |        |       | {"idempotency-key": "k1"} |
      | D    | two                                       |        | C     | {"idempotency-key": "k1"} |
      | E    | [[sandbox:errored:invalid_request_error]] |        |       |                           |
      | F    | [[sandbox:errored:invalid_request_error]] |        | E     |                           |
    Then the gateway's metrics are
      | metric                                            | value |
      | claude_batch_gateway_joins_total{kind="equal"}    | 1     |
      | claude_batch_gateway_joins_total{kind="key"}      | 1     |
      | claude_batch_gateway_joins_total{kind="failure"}  | 1     |
      | claude_batch_gateway_requests_waiting             | 0     |

  Scenario: Calls that are refused before they are stored are counted
    Given a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | headers                                |
      | A    | one    | {"claude-batch-new": "maybe"}          |
      | B    | two    | {"claude-batch-deadline": "2020-01-01"} |
      | C    | three  | {"prefer": "respond-async", "idempotency-key": "k1"} |
    And the gateway is called as follows
      | call | prompt | headers                                |
      | D    | four   | {"prefer": "respond-async", "idempotency-key": "k1"} |
    Then the gateway's metrics are
      | metric                                                                    | value |
      | claude_batch_gateway_calls_total{end="whole",status="400",stream="false"} | 2     |
      | claude_batch_gateway_calls_total{end="whole",status="202",stream="false"} | 1     |
      | claude_batch_gateway_calls_total{end="whole",status="409",stream="false"} | 1     |
      | claude_batch_gateway_wait_seconds_count                                   | 1     |

  Scenario: A halted gateway is alive but not ready
    Given a gateway over the sandbox with {"latency": 1, "hold": 30}
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 401}}]}
      """
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers               |
      | A    | one    |       |        | /v1/messages                        | {}                    |
      | B    | two    | A     |        | /v1/messages                        | {}                    |
      | C    |        | B     | GET    | /claude-batch/v1/requests/request-1 | {"prefer": "wait=60"} |
    Then the calls have ended with
      | call | status |
      | B    | 401    |
      | C    | 401    |
    And "/readyz" is 503 with "sending is halted (credentials)…"
    And "/healthz" is 200 with "ok"

  Scenario: A gateway whose disk is full is not ready until there is room
    Given a gateway over the sandbox
    Then the gateway is not ready while its disk is full, because "the ledger … cannot be written: …"

  Scenario: A gateway that could not start a thread for a probe is ready again afterwards
    Given a gateway over the sandbox
    Then the gateway is not ready while no thread can start, because "the ledger was not asked: …"

  Scenario: A gateway whose ledger does not answer is not ready, and asks it once at a time
    Given a gateway over the sandbox
    Then three probes of a gateway whose ledger does not answer are 503 within 8 seconds, by one question
    And "/readyz" is 200 with "ok"

  Scenario: A gateway that ends is not ready, and takes no call
    Given a gateway over the sandbox
    When the gateway begins to end
    Then the gateway's responses to callers are as follows
      | path         | headers | status |
      | /v1/messages | {}      | 503    |
    And "/readyz" is 503 with "shutting down"
    And "/healthz" is 200 with "ok"
