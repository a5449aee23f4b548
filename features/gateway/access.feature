Feature: Who may call the gateway, and how much
  Each call is paid for with the gateway's own key.

  Scenario: Programs of this machine may call, and web pages may not
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05, "allowed_hosts": ["gateway.test", "Other.test:8443"], "allowed_origins": ["https://app.test"]}
    Then the gateway's responses to callers are as follows
      | path                 | headers                                           | status | words                                         | other origins |
      | /v1/messages         | {}                                                | 200    |                                               |               |
      | /v1/messages         | {"x-api-key": "any"}                              | 200    |                                               |               |
      | /v1/messages         | {"host": "localhost:1"}                           | 200    |                                               |               |
      | /v1/messages         | {"host": "[::1]:8788"}                            | 200    |                                               |               |
      | /v1/messages         | {"host": "Gateway.test"}                          | 200    |                                               |               |
      | /v1/messages         | {"host": "other.test:8443"}                       | 200    |                                               |               |
      | /v1/messages         | {"host": "rebound.test"}                          | 421    | …does not serve the host 'rebound.test'…      |               |
      | /v1/messages         | {"host": "127.0.0.1.rebound.test:8788"}           | 421    | …does not serve the host…                     |               |
      | /v1/messages         | {"host": "127.0.0.1:80@rebound.test"}             | 421    | …does not serve the host…                     |               |
      | /v1/messages         | {"host": "[::1]rebound.test"}                     | 421    | …does not serve the host…                     |               |
      | /healthz             | {"host": "rebound.test"}                          | 421    | …does not serve the host…                     |               |
      | /v1/messages         | {"origin": "https://evil.test"}                   | 403    | …web pages of 'https://evil.test' may not…    |               |
      | /v1/messages         | {"origin": "null"}                                | 403    | …web pages of 'null' may not…                 |               |
      | /v1/messages         | {"origin": "https://app.test"}                    | 200    |                                               |               |
      | /v1/messages         | {"origin": "https://app.test", "sec-fetch-site": "cross-site"} | 200    |                                               |               |
      | /claude-batch/v1/requests/request-1 | {"sec-fetch-site": "cross-site"}                  | 403    | …by links, pictures or scripts                |               |
      | /claude-batch/v1/requests/request-1 | {"sec-fetch-site": "same-site"}                   | 403    | …by links, pictures or scripts                |               |
      | /healthz             | {"sec-fetch-site": "none"}                        | 200    |                                               |               |
      | /v1/messages         | {"x-api-key": "sk-ant-somebody-elses"}            | 401    | …pays with its own API key…set ANTHROPIC_API… |               |
      | /v1/messages         | {"authorization": "Bearer sk-ant-somebody-elses"} | 401    | …pays with its own API key…                   |               |
      | /v1/messages         | {"x-api-key": "<own key>"}                        | 200    |                                               |               |
      | /v1/messages         | {"anthropic-workspace-id": "wrkspc_other"}        | 400    | …another anthropic-workspace-id than the ga… |               |
      | /v1/messages/count_tokens | {"anthropic-workspace-id": "wrkspc_other"}   | 400    | …another anthropic-workspace-id than the ga… |               |
      | /v1/messages         | {"anthropic-workspace-id": "wrkspc_01SandboxDefault"} | 200    |                                               |               |
      | /v1/chat/completions | {}                                                | 404    | …speaks Anthropic's Messages API, not OpenAI… |               |
      | /messages            | {}                                                | 200    |                                               |               |
      | /v2/messages         | {}                                                | 404    | there is nothing at '/v2/messages'            |               |
      | /v1/v1/messages      | {}                                                | 404    | there is nothing at '/v1/v1/messages'; leave out /v1 at the end of the base URL (--base-url, ANTHROPIC_BASE_URL) | |
      | /v1/messages/v1/messages | {}                                            | 404    | …; leave out /v1/messages at the end of the base URL… | |
      | /proxy/v1/messages   | {}                                                | 404    | …; correct the base URL…                      |               |

  Scenario: The gateway knows its workspace while the API cannot be reached, if an earlier answer has named it
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to callers are as follows
      | path         | headers | status | words |
      | /v1/messages | {}      | 200    |       |
    When the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "drop_before"}}]}
      """
    And the gateway is started again
    Then the gateway's responses to callers are as follows
      | path         | headers                                                                           | status | words                                                             |
      | /v1/messages | {"anthropic-workspace-id": "wrkspc_01SandboxDefault", "prefer": "respond-async"}  | 202    |                                                                   |
      | /v1/messages | {"anthropic-workspace-id": "wrkspc_other", "prefer": "respond-async"}             | 400    | …than the gateway's key (wrkspc_01SandboxDefault), whose…         |

  Scenario: A call that names a workspace is refused only for now while that of the gateway's key is unknown
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05, "workspace_header": false}
    When the gateway is called as follows
      | call | prompt | headers                                               |
      | A    | one    | {"anthropic-workspace-id": "wrkspc_01SandboxDefault"} |
      | B    | one    | {}                                                    |
    Then the calls have ended with
      | call | status | error     | retry-after | x-should-retry |
      | A    | 503    | api_error | 5           | true           |
      | B    | 200    |           |             |                |

  Scenario: A client that offers HTTP/2, as Java's does by default, is answered over HTTP/1.1
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to callers are as follows
      | path         | headers                                                                                   | status | words |
      | /v1/messages | {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"} | 200    |       |
    And the gateway's responses to calls that offer HTTP/2 in pieces are as follows
      | cut at       | statuses |
      | (?=Upgrade:) | 200 200  |
      | (?<=Upg)     | 200 200  |
      | (?<=Upgrade) | 200 200  |
      | (?=h2c)      | 200 200  |
      | (?<=\r)      | 200 200  |
      | (?<=\n)      | 200 200  |
      | (?<=\n\r)    | 200 200  |
      | (?<=.)       | 200 200  |

  Scenario: A client of HTTP/1.0 gets no chunks, and a reset if its response is aborted
    Given a gateway over the sandbox with {"hold": 0.1, "latency": 1, "max_attempts": 1}
    Then the gateway's responses over HTTP/1.0 are as follows
      | prompt                                    | stream | connection | chunked | end   |
      | one                                       | no     | close      | no      | whole |
      | two                                       | yes    | close      | no      | whole |
      | [[sandbox:errored:invalid_request_error]] | no     | close      | no      | reset |

  Scenario: A method that a path does not have is refused
    Given a gateway over the sandbox
    Then the gateway's responses to methods are as follows
      | method  | path                                | status | allowed           | type                  |
      | GET     | /v1/messages                        | 405    | POST              | invalid_request_error |
      | OPTIONS | /v1/messages                        | 405    | POST              | invalid_request_error |
      | PUT     | /v1/files/file_1                    | 405    | DELETE, GET, POST | invalid_request_error |
      | POST    | /claude-batch/v1/requests/request-1 | 405    | DELETE, GET       | invalid_request_error |
      | POST    | /readyz                             | 405    | GET               | invalid_request_error |
      | DELETE  | /metrics                            | 405    | GET               | invalid_request_error |

  Scenario: With tokens, only their holders may call
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    And the gateway has tokens for ann and bob
    Then the gateway's responses to callers are as follows
      | path         | headers                                                                   | status | words                       |
      | /v1/messages | {}                                                                        | 401    | …needs a token…             |
      | /v1/messages | {"x-api-key": "any"}                                                      | 401    | …needs a token…             |
      | /v1/messages | {"x-api-key": "<own key>"}                                                | 401    | …needs a token…             |
      | /v1/messages | {"x-api-key": "sk-ant-somebody-elses"}                                    | 401    | …your token for this gateway… |
      | /v1/messages | {"x-api-key": "<ann>"}                                                    | 200    |                             |
      | /v1/messages | {"authorization": "Bearer <bob>"}                                         | 200    |                             |
      | /v1/messages | {"x-api-key": "any", "authorization": "bearer <bob>"}                     | 200    |                             |
      | /metrics     | {}                                                                        | 401    | …needs a token…             |
      | /metrics     | {"x-api-key": "<ann>"}                                                    | 200    |                             |
      | /healthz     | {}                                                                        | 200    |                             |
      | /readyz      | {}                                                                        | 200    |                             |
    When bob's token is removed from the file
    Then the gateway's responses to callers are as follows
      | path         | headers                | status | words           |
      | /v1/messages | {"x-api-key": "<bob>"} | 401    | …needs a token… |
      | /v1/messages | {"x-api-key": "<ann>"} | 200    |                 |
    And the file of tokens has mode 600, and contains none of them

  Scenario: Another token's request does not exist
    Given a gateway over the sandbox with {"hold": 30}
    And the gateway has tokens for ann and bob
    When the gateway is called as follows
      | call | prompt | token | after | method | path                                |
      | A    | one    | ann   |       |        |                                        |
      | B    |        | ann   | A     | GET    | /claude-batch/v1/requests/request-1    |
      | C    |        | bob   | A     | GET    | /claude-batch/v1/requests/request-1    |
      | D    |        | bob   | A     | DELETE | /claude-batch/v1/requests/request-1    |
    Then the calls have ended with
      | call | status | error           |
      | A    | 200    |                 |
      | B    | 200    |                 |
      | C    | 404    | not_found_error |
      | D    | 404    | not_found_error |

  Scenario: While it is not known what a sending has become, another token sees no new batch
    Given a gateway over the sandbox with {"hold": 30, "latency": 0}
    And the gateway has tokens for ann and bob
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "hang", "seconds": 3, "processed": true}}]}
      """
    When the gateway is called as follows
      | call | prompt | token | after | method | path                                 |
      | A    | one    | ann   |       |        |                                      |
      | B    |        | bob   | there | GET    | /v1/messages/batches                 |
      | C    |        | bob   | there | GET    | /v1/messages/batches/{batch}         |
      | D    |        | bob   | there | GET    | /v1/messages/batches/{batch}/results |
      | E    |        | bob   | D     | DELETE | /v1/messages/batches/{batch}         |
      | F    |        | bob   | A     | GET    | /v1/messages/batches/{batch}         |
      | G    |        | bob   | A     | GET    | /v1/messages/batches                 |
    Then the calls have ended with
      | call | status | error           | batches | answered |
      | A    | 200    |                 |         | yes      |
      | B    | 200    |                 | 0       | no       |
      | C    | 503    | api_error       |         | no       |
      | D    | 503    | api_error       |         | no       |
      | E    | 503    | api_error       |         | no       |
      | F    | 404    | not_found_error |         | no       |
      | G    | 200    |                 | 0       | no       |
    And the API has processed 1 requests in all

  Scenario: A caller's own batch stays there while it is not known what a sending has become
    Given a gateway over the sandbox with {"hold": 30, "latency": 60}
    And the gateway has tokens for ann and bob
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": 1, "action": {"type": "hang", "seconds": 6, "processed": false}}]}
      """
    When the gateway is called as follows
      | call | prompt | token | after  | leaves | method | path                         | body                                                                                                                                            |
      | A    | one    | ann   |        | 11     |        |                              |                                                                                                                                                 |
      | B    |        | bob   | 3      |        | POST   | /v1/messages/batches         | {"requests": [{"custom_id": "x", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}}]} |
      | C    |        | bob   | B      |        | GET    | /v1/messages/batches/{batch} |                                                                                                                                                 |
      | D    |        | bob   | B, 4   |        | GET    | /v1/messages/batches/{batch} |                                                                                                                                                 |
      | E    |        | bob   | B, 4   |        | GET    | /v1/messages/batches         |                                                                                                                                                 |
    Then the calls have ended with
      | call | status | batches |
      | B    | 200    |         |
      | C    | 200    |         |
      | D    | 200    |         |
      | E    | 200    | 1       |

  Scenario: Bodies have a limit each, and one together
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05, "largest_body": 2000000, "largest_bodies": 3000000}
    Then the gateway's responses to bodies are as follows
      | bytes   | announced | held    | status | type              |
      | 1000    | yes       | 0       | 200    |                   |
      | 1000    | no        | 0       | 200    |                   |
      | 1900000 | yes       | 0       | 200    |                   |
      | 2100000 | yes       | 0       | 413    | request_too_large |
      | 2100000 | no        | 0       | 413    | request_too_large |
      | 9000000 | yes       | 0       | 413    | request_too_large |
      | 1900000 | yes       | 2000000 | 503    | overloaded_error  |
      | 1900000 | no        | 2000000 | 503    | overloaded_error  |
    And no call waits at the gateway

  Scenario: A response that comes before the end of the body is not lost if the rest of the body comes slowly
    Given a limit of 1 second that an idle connection of the gateway lasts
    And a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to bodies are as follows
      | path        | bytes  | announced | held | seconds | status | type            |
      | /v1/nothing | 500000 | yes       | 0    | 3       | 404    | not_found_error |
      | /v1/nothing | 500000 | no        | 0    | 3       | 404    | not_found_error |

  Scenario: The head of a call has a limit before its token is read
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    And the gateway has tokens for ann
    Then the gateway's responses to heads are as follows
      | before          | url   | headers | bytes   | trailers | pieces | statuses | type              |
      |                 | 0     | 3       | 20000   | 0        | 1      | 200      |                   |
      |                 | 0     | 3       | 20000   | 0        | 50     | 200      |                   |
      |                 | 0     | 4       | 20000   | 0        | 1      | 431      | request_too_large |
      |                 | 0     | 4       | 20000   | 0        | 50     | 431      | request_too_large |
      |                 | 0     | 1       | 1000000 | 0        | 1      | 431      | request_too_large |
      |                 | 0     | 190     | 30      | 0        | 1      | 200      |                   |
      |                 | 0     | 210     | 30      | 0        | 1      | 431      | request_too_large |
      |                 | 0     | 600000  | 10      | 0        | 1      | 431      | request_too_large |
      |                 | 8000  | 0       | 30      | 0        | 1      | 200      |                   |
      |                 | 9000  | 0       | 30      | 0        | 20     | 414      | request_too_large |
      | 3 calls         | 0     | 4       | 20000   | 0        | 50     | 200 200 200 431 | request_too_large |

  Scenario: Trailers and calls that do not wait for their response have limits too
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to heads are as follows
      | before          | url   | headers | bytes   | trailers | pieces | statuses | type              |
      |                 | 0     | 0       | 30      | 2        | 1      | 200      |                   |
      |                 | 0     | 0       | 20000   | 5        | 1      | 431      | request_too_large |
      |                 | 0     | 0       | 20000   | 5        | 50     | 431      | request_too_large |
      |                 | 0     | 0       | 1000000 | 2        | 20     | 431      | request_too_large |
      | 3 calls         | 0     | 0       | 20000   | 5        | 50     | 200 200 200 431 | request_too_large |
      | 9 calls at once | 0     | 1       | 30      | 0        | 1      | 200 200 200 200 200 200 200 200 200 200 | |
      | 5000 calls at once | 0  | 1       | 30      | 0        | 1      |          |                   |
    And no call waits at the gateway

  Scenario: A body is given up that comes too slowly
    Given a gateway over the sandbox
    When the gateway gets a byte of a body every 0.1 seconds, for at least 1 second
    Then the gateway's response is 408, and contains no key
    And no call waits at the gateway

  Scenario: A call that cannot be sent to the API is refused, and others are answered
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to callers are as follows
      | path                          | headers                              | status | words                                  |
      | /v1/messages                  | {"anthropic-beta": "café"}           | 400    | …not a word of 1 to 256 printable ASCII… |
      | /v1/messages                  | {"anthropic-version": "2023 06"}     | 400    | …not a word of 1 to 256 printable ASCII… |
      | /v1/messages                  | {"anthropic-user-profile-id": "é"}   | 400    | …not a word of 1 to 256 printable ASCII… |
      | /v1/messages/count_tokens     | {"anthropic-beta": "café"}           | 400    | …other than ASCII characters           |
      | /v1/messages                  | {"content-encoding": "gzip"}         | 400    | …'gzip'; send it uncompressed          |
      | /v1/messages                  | {"content-encoding": "identity"}     | 200    |                                        |
    And the gateway's responses to nested bodies are as follows
      | levels | bytes  | status |
      | 90     | 0      | 200    |
      | 110    | 0      | 400    |
      | 985    | 0      | 400    |
      | 985    | 300000 | 400    |
      | 100000 | 0      | 400    |
    And the gateway's responses to a field of a body are as follows
      | field  | value   | status | type              |
      | stream | true    | 200    | text/event-stream |
      | stream | null    | 200    | application/json  |
      | stream | "false" | 400    | application/json  |
      | stream | 1       | 400    | application/json  |
    And the ledger holds 4 requests

  Scenario: A gateway whose engine has stopped reports that it must be restarted
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then "/healthz" is 200 with "ok"
    When the gateway's engine meets an error
    Then "/healthz" is 503 with "the engine stopped…"
    And "/readyz" is 503 with "the engine stopped…"

  Scenario: A body that stops half-way is given up
    Given a gateway over the sandbox
    When the gateway gets half a body, and nothing more for 0.3 seconds
    Then the gateway's response is 408, and contains no key
    And no call waits at the gateway

  Scenario: A body that stops half-way after its response is given up
    Given a gateway over the sandbox
    When the gateway gets half a refused body, and nothing more for 0.3 seconds
    Then the gateway's response is 404, and contains no key

  Scenario: A head that stops half-way is given up
    Given a gateway over the sandbox
    When the gateway gets half a head, and nothing more for 0.3 seconds
    Then the gateway's response is 408, and contains no key

  Scenario Outline: A connection without a call is given up: <part>
    Given a limit of 1 second that an idle connection of the gateway lasts
    And a gateway over the sandbox
    When the gateway gets <part>, and nothing more for 60 seconds
    Then no call waits at the gateway

    Examples:
      | part         |
      | no byte      |
      | a line break |

  Scenario: A call that the API would refuse is refused before it is stored
    Given a gateway over the sandbox
    Then the gateway's responses to callers are as follows
      | path                                  | headers                                     | status | words                                        |
      | /v1/messages                          | {"claude-batch-mode": "fast"}               | 400    | …mode…                                       |
      | /v1/messages                          | {"claude-batch-deadline": "2020-01-01T00:00Z"} | 400 | …is in the past; give a later one…        |
      | /v1/messages                          | {"claude-batch-budget": "1"}                | 400    | …no header claude-batch-budget…              |
      | /v1/messages                          | {"claude-batch-budget-usd": "0.0000001"}    | 402    | …budget…                                     |
      | /v1/messages                          | {"claude-batch-new": "perhaps"}             | 400    | …neither true nor false…                     |
      | /v1/messages                          | {"idempotency-key": ""}                     | 400    | …1 to 255 printable characters…              |
      | /v1/messages                          | {"prefer": "respond-async, wait=soon"}      | 400    | …wait=soon…                                  |
      | /with/mode=fast/v1/messages           | {}                                          | 400    | …mode…                                       |
      | /with/fast/v1/messages                | {}                                          | 400    | …/with/NAME=VALUE…                           |
      | /with/foo=1/v1/messages/count_tokens  | {}                                          | 400    | …no header claude-batch-foo…                 |
      | /with/foo=1/v1/files                  | {}                                          | 400    | …no header claude-batch-foo…                 |
      | /with/mode=fast/healthz               | {}                                          | 400    | …mode…                                       |
      | /with/mode=fast/metrics               | {}                                          | 400    | …mode…                                       |
      | /with/mode=fast/claude-batch/v1/requests/request-1 | {}                             | 400    | …mode…                                       |
      | /with/deadline=soon/healthz           | {}                                          | 400    | …deadline…                                   |
      | /with/deadline=2020-01-01T00:00Z/healthz | {}                                       | 200    |                                              |
      | /with/deadline=2020-01-01T00:00Z/v1/messages | {}                                   | 400    | …is in the past; give a later one…           |
      | /with/mode=live/healthz               | {}                                          | 200    |                                              |
      | /with/mode=live,label=x/v1/messages   | {}                                          | 200    |                                              |
    And the ledger holds 1 requests

  Scenario: A body that cannot be used is refused with its fault
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    Then the gateway's responses to a field of a body are as follows
      | field      | value                                         | status | words                                                      |
      | betas      | ["x"]                                         | 400    | betas: Extra inputs are not permitted; send betas in the…  |
      | betas      | null                                          | 400    | betas: Extra inputs are not permitted…                     |
      | model      | 5                                             | 400    | `model` must be a text that is not empty, not 5            |
      | model      | []                                            | 400    | `model` must be a text that is not empty, not []           |
      | model      | ""                                            | 400    | `model` must be a text that is not empty, not ''           |
      | model      | null                                          | 400    | `model` is missing…                                        |
      | max_tokens | 0                                             | 400    | `max_tokens: 0` asks for no answer; give at least 1        |
      | messages   | [{"role": "user", "content": "a\ud800b"}]    | 400    | …has the lone surrogate \ud800, which is half of…         |
      | messages   | [{"role": "user", "content": "a\udc00b"}]    | 400    | …has the lone surrogate \udc00, which is half of…         |
      | messages   | [{"role": "user", "content": "\ud83d\ud83d\ude00"}] | 400 | …has the lone surrogate \ud83d…                         |
      | messages   | [{"role": "user", "content": "\ud83d\ude00"}] | 200 |                                                            |
      | messages   | [{"role": "user", "content": "\\ud83d"}]    | 200    |                                                            |
      | messages   | [{"role": "user", "content": "a"]             | 400    | the body is not a JSON object…                             |
    And the gateway's responses to callers are as follows
      | path         | headers               | status | words |
      | /v1/messages | {"anthropic-beta": "x"} | 200    |       |

  Scenario: The gateway answers on the IPv6 loopback
    Given a gateway over the sandbox with {"host": "::1", "hold": 30}
    When the gateway is called as follows
      | call | prompt |
      | A    | one    |
    Then the calls have ended with
      | call | status | answered |
      | A    | 200    | yes      |

  Scenario: An address that other machines reach needs tokens
    Given a command's API
    When a command runs: gateway --host 0.0.0.0 --port 0
    Then the command line exits with 2 and says
      """
      0.0.0.0 can be reached by other machines, and each call is paid for with your key: add --tokens FILE, 
      """
    And the gateway starts with settings as follows
      | settings            | error         |
      | {"host": "0.0.0.0"} | --tokens FILE |
      | {"ping": 0}         | must not be 0 |

  Scenario: A gateway on all addresses names the hosts by which it is called
    Given a command's API
    When a command runs: gateway --tokens no/tokens --new-token ann
    Then the command line exits with 2 and says
      """
      no/tokens: its folder does not exist; make it first
      """
    When a command runs: gateway --tokens tokens --host 0.0.0.0 --port 0
    Then the command line exits with 2 and says
      """
      --tokens tokens: there is no such file. Make it, with the first caller's token: claude-batch gateway --tokens tokens --new-token NAME
      """
    When a command runs: gateway --tokens tokens --new-token ann
    And a command's process is a gateway until it gets SIGTERM: gateway --tokens tokens --host 0.0.0.0 --port 0
    Then the command line says
      """
      warning: other machines are refused, because no host is allowed: add --allow-host NAME, with the name or address of this machine that they use
      set ANTHROPIC_BASE_URL=http://localhost:PORT in the programs that use Claude
      """
    When a command's process is a gateway until it gets SIGTERM: gateway --tokens tokens --host 0.0.0.0 --port 0 --allow-host gateway.test
    Then the command line says
      """
      set ANTHROPIC_BASE_URL=http://HOST:PORT in the programs that use Claude; HOST is localhost or gateway.test
      """
    And the command line does not say: other machines are refused

  Scenario: The gateway is not its own API
    Given a command's API
    And a command's environment has ANTHROPIC_BASE_URL = http://localhost:18788
    When a command runs: gateway --port 18788
    Then the command line exits with 2 and says
      """
      is that of the gateway itself; unset ANTHROPIC_BASE_URL where the gateway starts
      """

  Scenario: A batch of a caller's own does not stop a ledger that is said to be alone in its workspace
    Given a gateway over the sandbox with {"latency": 0, "hold": 30, "exclusive_workspace": true}
    And the gateway has tokens for ann
    Then the official SDK's calls of the gateway return as follows
      | call                    | arguments                                                                                                                                        | field      | value            |
      | messages.create         | {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}                                                 | role       | assistant        |
      | messages.batches.create | {"requests": [{"custom_id": "one", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}}]} | error.type | permission_error |
      | messages.create         | {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}                                                 | role       | assistant        |

  Scenario: Callers with tokens see no batches of the ledger, which hold the calls of all names
    Given a gateway over the sandbox with {"hold": 30}
    And the gateway has tokens for ann and bob
    When the gateway is called as follows
      | call | prompt | token | after |
      | A    | one    | ann   |       |
    Then what bob gets of the ledger's batches is as follows
      | method | path     | status | batches |
      | GET    |          | 200    | 0       |
      | GET    | /results | 404    |         |
      | GET    | /        | 404    |         |
      | POST   | /cancel  | 404    |         |
      | DELETE | /        | 404    |         |

  Scenario: HEAD does not take an answer
    Given a gateway over the sandbox with {"hold": 30, "latency": 0, "linger": 0.05}
    When the gateway is called as follows
      | call | prompt | after | method | path                                | headers                       |
      | A    | one    |       | POST   |                                     | {"prefer": "respond-async"}   |
      | B    |        | 1.5   | HEAD   | /claude-batch/v1/requests/request-1 |                               |
      | C    | one    | B     | POST   |                                     |                               |
    Then the ledger holds 1 requests

  Scenario: The command makes one token for each name
    Given a command's folder
    And a gateway over the sandbox
    And the gateway has tokens for ann
    And the file of tokens has no line break at its end
    When a command runs: gateway --tokens tokens --new-token carl
    Then the file of tokens names ann and carl
    When a command runs: gateway --tokens tokens --new-token ann
    Then the command line exits with 2 and says
      """
      has a token for ann already
      """
