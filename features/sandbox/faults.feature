Feature: The sandbox goes wrong on demand

  Scenario Outline: A plan that cannot be understood is refused, and names the place
    Given a sandbox
    When the sandbox is given the fault plan
      """
      <plan>
      """
    Then the sandbox answers 400 invalid_request_error saying "<message>"

    Examples:
      | plan                                                                                        | message                             |
      | {"rules"                                                                                    | not valid JSON                      |
      | {"rulez": []}                                                                               | unknown field `rulez`               |
      | {"rules": [{"route": "create"}]}                                                            | missing required field `action`     |
      | {"rules": [{"route": "make", "action": {"type": "delay"}}]}                                 | the routes are create, list         |
      | {"rules": [{"route": "create", "action": {"type": "explode"}}]}                             | the actions are delay, error        |
      | {"rules": [{"route": "create", "action": {"type": "delay", "minutes": 1}}]}                 | unknown field `minutes`             |
      | {"rules": [{"route": "create", "when": 1, "action": {"type": "delay"}}]}                    | unknown field `when`                |
      | {"rules": [{"route": "create", "action": {"type": "delay", "seconds": -1}}]}                | rules[0]: seconds must not be negative |
      | {"rules": [{"route": "create", "action": {"type": "delay", "delay": -1}}]}                  | rules[0]: delay must not be negative |
      | {"rules": [{"route": "create", "action": {"type": "cut_inside_line"}}]}                     | cut_inside_line is only for the route results |
      | {"rules": [{"route": "create", "action": {"type": "error", "status": 200}}]}                | status must be from 400 to 599      |
      | {"rules": [{"route": "create", "action": {"type": "redirect", "location": "/", "status": 200}}]} | status must be from 300 to 399 |
      | {"rules": [{"route": "create", "nth": 0, "action": {"type": "delay"}}]}                     | nth counts from 1                   |
      | {"rules": [{"route": "create", "nth": [1, 0], "action": {"type": "delay"}}]}                | nth counts from 1                   |
      | {"rules": [{"route": "create", "every": 0, "action": {"type": "delay"}}]}                   | every must be 1 or more             |
      | {"rules": [{"route": "create", "probability": 1.5, "action": {"type": "delay"}}]}           | probability must be from 0 to 1     |
      | {"rules": [{"route": "create", "times": -1, "action": {"type": "delay"}}]}                  | times must not be negative          |
      | {"requests": [{"outcome": "lost"}]}                                                         | the outcomes are errored, expired   |
      | {"requests": [{"outcome": "expired", "error": {}}]}                                         | error is only for the outcome errored |
      | {"requests": [{"outcome": "errored", "error": {"type": "bad_luck"}}]}                       | no error type 'bad_luck'            |
      | {"rate_limits": {"requests": 1e-300}}                                                       | rate_limits must be from 0.01 to    |
      | {"rate_limits": {"requests": 1e300}}                                                        | rate_limits must be from 0.01 to    |
      | {"rate_limits": {"requests": 1, "requests_left": -1e300}}                                   | rate_limits: requests_left must not be negative |

  Scenario: A plan is shown, counted and cleared while the sandbox runs
    Given a sandbox
    When the sandbox is given the fault plan
      """
      {"seed": 7, "rules": [{"route": "list", "every": 2, "action": {"type": "error", "status": 500}}]}
      """
    Then the sandbox's answer has the fields
      | field                | value   |
      | seed                 | 7       |
      | rules.0.route        | "list"  |
      | rules.0.action.type  | "error" |
    When the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox answers 500 api_error saying "Internal server error"
    And the sandbox's rules have fired
      | seen | fired |
      | 2    | 1     |
    When the sandbox is given the fault plan
      """
      {}
      """
    And the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox answers 200

  Scenario: The selectors of a rule must all agree
    Given a sandbox with the fault plan
      """
      {"rules": [
        {"route": "list", "nth": 2, "action": {"type": "error", "status": 500}},
        {"route": "any", "nth": [3, 4, 5], "times": 2, "action": {"type": "error", "status": 529}},
        {"route": "list", "probability": 0, "action": {"type": "error", "status": 504}},
        {"route": "models", "probability": 1, "action": {"type": "error", "status": 402}}]}
      """
    When the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches/none"
    And the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/models"
    Then the sandbox's log has the calls
      | route    | status | fault |
      | list     | 200    | None  |
      | list     | 500    | error |
      | list     | 529    | error |
      | retrieve | 529    | error |
      | list     | 200    | None  |
      | models   | 402    | error |
    And the sandbox's rules have fired
      | seen | fired |
      | 4    | 1     |
      | 6    | 2     |
      | 4    | 0     |
      | 1    | 1     |

  Scenario: A rule that left the decision to an earlier one has not fired
    Given a sandbox with the fault plan
      """
      {"rules": [
        {"route": "list", "nth": 1, "action": {"type": "error", "status": 500}},
        {"route": "any", "times": 1, "action": {"type": "error", "status": 529}}],
       "requests": [
        {"contains": "x", "nth": 1, "outcome": "errored"},
        {"times": 1, "outcome": "expired"}]}
      """
    When the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    And the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox's log has the calls
      | route | status | fault |
      | list  | 500    | error |
      | list  | 529    | error |
      | list  | 200    | None  |
    And the sandbox's rules have fired
      | seen | fired |
      | 3    | 1     |
      | 3    | 1     |
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt |
      | a         | x      |
      | b         | x      |
      | c         | x      |
    Then the sandbox's results end as
      | custom_id | ending    |
      | a         | api_error |
      | b         | expired   |
      | c         | succeeded |

  Scenario Outline: A plan that is set or removed leaves the requests that were due before it as they were
    Given a sandbox with the fault plan
      """
      {"requests": [{"outcome": "expired"}]}
      """
    And the sandbox has a batch of 1 requests
    And the sandbox's batches have had their time
    When the sandbox is called with <method> "/sandbox/faults"
      """
      {}
      """
    Then the sandbox's results end as
      | custom_id | ending  |
      | r0        | expired |

    Examples:
      | method |
      | POST   |
      | DELETE |

  Scenario: A key can be spared
    Given a sandbox with the fault plan
      """
      {"spared_keys": ["sk-in-good-health"],
       "rules": [{"route": "list", "nth": 1, "action": {"type": "error", "status": 500}}]}
      """
    When the sandbox is called with GET "/v1/messages/batches"
      | header    | value             |
      | x-api-key | sk-in-good-health |
    Then the sandbox answers 200
    When the sandbox is called with GET "/sandbox/faults"
    Then the sandbox's answer has the fields
      | field         | value    |
      | spared_keys.0 | "…alth" |
    When the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox answers 500

  Scenario: Chance is the same for the same seed
    Given a sandbox
    Then the sandbox draws chances of one half as follows
      | seed | statuses                                        |
      | 1    | 500 200 500 500 500 500 500 500 500 500 200 200 |
      | 1    | 500 200 500 500 500 500 500 500 500 500 200 200 |
      | 2    | 500 500 200 200 500 500 500 500 500 200 200 500 |

  Scenario Outline: An error of the API, before anything was processed
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "error", "status": <status>, "retry_after": 1.5}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox answers <status> <kind> saying "<message>"
    And the sandbox's header "retry-after" is "1.5"
    And the sandbox's error tells the request id of its header
    And the sandbox shows 0 batches

    Examples:
      | status | kind                  | message      |
      | 400    | invalid_request_error | invalid      |
      | 401    | authentication_error  | invalid      |
      | 402    | billing_error         | billing      |
      | 403    | permission_error      | permission   |
      | 404    | not_found_error       | Not found    |
      | 409    | conflict_error        | conflicts    |
      | 413    | request_too_large     | maximum size |
      | 429    | rate_limit_error      | rate limit   |
      | 500    | api_error             | Internal     |
      | 502    | api_error             | Internal     |
      | 504    | timeout_error         | timed out    |
      | 529    | overloaded_error      | Overloaded   |

  Scenario: An error after the call was processed hides that it was billed
    Given a sandbox with the fault
      """
      {"route": "messages", "action": {"type": "error", "status": 503, "processed": true}}
      """
    When the sandbox is sent a live prompt "Hello"
    Then the sandbox answers 503 api_error saying "Internal"
    And the sandbox's bill sums up as
      | what | count |
      | paid | 1     |

  Scenario: An error after a batch was made hides that it is there
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "error", "status": 500, "processed": true}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox answers 500 api_error saying "Internal"
    And the sandbox shows 1 batches

  Scenario: An error in the words of the plan
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "error", "status": 429, "error": "rate_limit_error",
       "message": "Spend limit", "details": {"error_code": "enforced_spend_limit_reached"}}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox answers 429 rate_limit_error saying "Spend limit"
    And the sandbox's answer has the fields
      | field                    | value                          |
      | error.details.error_code | "enforced_spend_limit_reached" |
    And the sandbox's header "retry-after" is "(none)"
    And the official SDK raises EnforcedSpendLimitReachedError for a batch in the sandbox

  Scenario Outline: An error that is not JSON comes from a proxy
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "error", "status": 502, "json": false, "message": <message>}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox answers 502
    And the sandbox's answer contains "<text>"
    And the sandbox's header "request-id" is "(none)"

    Examples:
      | message       | text        |
      | "bad gateway" | bad gateway |
      | null          | error 502   |

  Scenario Outline: A 413 from a proxy, late or early
    Given a sandbox with the fault
      """
      {"route": "create", "action": <action>}
      """
    When the sandbox is sent a batch of 2000 requests
    Then the sandbox answers 413
    And the sandbox's answer is a page of a proxy
    And the sandbox shows 0 batches

    Examples:
      | action                                       |
      | {"type": "proxy_413"}                        |
      | {"type": "early_413"}                        |
      | {"type": "early_413", "after_bytes": 100000} |

  Scenario: An early 413 that closes at once looks like a broken upload
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "early_413", "drain": false}}
      """
    When the sandbox is sent a body of 4000000 bytes in pieces
    Then the sandbox answers 413 or drops the connection
    And the sandbox shows 0 batches

  Scenario Outline: A 200 that is not JSON, processed or not
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "html_200", "processed": <processed>}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox answers 200
    And the sandbox's answer is a page of a proxy
    And the sandbox shows <batches> batches

    Examples:
      | processed | batches |
      | false     | 0       |
      | true      | 1       |

  Scenario: A redirect elsewhere
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "redirect", "location": "http://127.0.0.1:9/elsewhere"}}
      """
    When the sandbox is called with POST "/v1/messages/batches"
      """
      {"requests": []}
      """
    Then the sandbox answers 307
    And the sandbox's header "location" is "http://127.0.0.1:9/elsewhere"

  Scenario Outline: A connection is dropped before or after the call was processed
    Given a sandbox with the fault
      """
      {"route": "create", "action": <action>}
      """
    When the sandbox is sent a batch of 2000 requests
    Then the sandbox drops the connection
    And the sandbox shows <batches> batches

    Examples:
      | action                                         | batches |
      | {"type": "drop_before"}                        | 0       |
      | {"type": "drop_before", "after_bytes": 0}      | 0       |
      | {"type": "drop_before", "after_bytes": 100000} | 0       |
      | {"type": "drop_after"}                         | 1       |
      | {"type": "hang", "seconds": 0}                 | 0       |
      | {"type": "hang", "seconds": 0.05, "processed": true} | 1 |

  Scenario Outline: A batch whose answer was lost is listed late
    Given a sandbox with the fault
      """
      {"route": "create", "action": <action>}
      """
    When the sandbox is sent a batch of 3 requests
    Then the sandbox shows 0 batches
    When the sandbox's clock moves on by 61 seconds
    Then the sandbox shows 1 batches

    Examples:
      | action                                                                  |
      | {"type": "drop_after", "listed_after": 60}                              |
      | {"type": "html_200", "processed": true, "listed_after": 60}             |
      | {"type": "hang", "seconds": 0, "processed": true, "listed_after": 60}   |

  Scenario: A call is processed when its connection is long gone
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "drop_after", "processed_after": 0.3}}
      """
    When the sandbox is sent a batch of 3 requests
    Then the sandbox drops the connection
    And the sandbox shows 0 batches
    And the sandbox's log soon has 2 calls
    And the sandbox shows 1 batches

  Scenario: A call that is refused after its connection was closed leaves nothing
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "drop_after", "processed_after": 0.1}}
      """
    When the sandbox is sent the batch body
      """
      {"requests": []}
      """
    Then the sandbox drops the connection
    And the sandbox's log soon has 1 calls
    And the sandbox shows 0 batches

  Scenario: A call that would have been refused is refused, whatever fault follows
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "drop_after"}}
      """
    When the sandbox is sent the batch body
      """
      {"requests": []}
      """
    Then the sandbox answers 400 invalid_request_error saying "at least 1 item"
    And the sandbox's rules have fired
      | seen | fired |
      | 1    | 0     |

  Scenario: The SDK tells a dropped connection as its own error
    Given a sandbox with the fault
      """
      {"route": "create", "action": {"type": "drop_after"}}
      """
    Then the official SDK raises APIConnectionError for a batch in the sandbox
    And the sandbox shows 1 batches

  Scenario: A hanging call ends in a dropped connection
    Given a sandbox with the fault
      """
      {"route": "list", "action": {"type": "hang", "seconds": 0.2}}
      """
    When the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox drops the connection
    And the sandbox took 0.2 seconds or more

  Scenario: A hanging call ends when its client gives up
    Given a sandbox with the fault
      """
      {"route": "list", "action": {"type": "hang"}}
      """
    When a client of the sandbox sends
      """
      GET /v1/messages/batches HTTP/1.1
      host: x
      """
    And that client gives up after 0.2 seconds without an answer
    Then the sandbox's log soon has 1 calls

  Scenario Outline: A call is delayed
    Given a sandbox with the fault
      """
      {"route": "list", "action": <action>}
      """
    When the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox answers 200
    And the sandbox took 0.1 seconds or more

    Examples:
      | action                                |
      | {"type": "delay", "seconds": 0.1}     |
      | {"type": "unknown_fields", "delay": 0.1} |

  Scenario: Unknown fields stand in every object, but not in a tool's input
    Given a sandbox with the fault
      """
      {"route": "any", "action": {"type": "unknown_fields"}}
      """
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 900, "tools": [{"name": "look", "input_schema": {"properties": {"n": {"type": "integer"}}}}],
       "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "Look"}]}
      """
    Then the sandbox's answer has the fields
      | field                                 | value     |
      | sandbox_unknown_field.values          | [1, null] |
      | usage.sandbox_unknown_field.values    | [1, null] |
      | content.0.sandbox_unknown_field.values | [1, null] |
      | content.0.input                       | {"n": 1}  |
    And the sandbox streams events as follows
      | params | text                           | events         |
      | {}     | …"delta":{…sandbox_unknown_field… | … message_stop |
    And the official SDK lives through a batch in the sandbox

  Scenario: An answer with unknown fields has its own headers
    Given a sandbox with the fault plan
      """
      {"rules": [{"route": "any", "action": {"type": "unknown_fields"}}], "rate_limits": {"requests": 1}}
      """
    When the sandbox is sent a batch of 1 requests
    Then the sandbox's headers are as follows
      | call                                     | header         | value |
      | GET /v1/messages/batches/{batch}         | retry-after    | 10    |
      | GET /v1/messages/batches/{batch}/results | x-should-retry | false |
    When the sandbox is sent a live prompt "Hello"
    And the sandbox is sent a live prompt "Hello"
    Then the sandbox's header "retry-after" is "5….…"

  Scenario Outline: A results stream is cut inside a line
    Given a sandbox with the fault
      """
      {"route": "results", "action": {"type": "cut_inside_line", "after_lines": <after>}}
      """
    And the sandbox has a batch of <count> requests
    And the sandbox's batches have had their time
    Then the sandbox's result lines count as
      | what       | count   |
      | lines      | <lines> |
      | succeeded  | <lines> |
      | unfinished | 1       |
    And the sandbox drops the connection

    Examples:
      | after | count | lines |
      | 0     | 5     | 0     |
      | 3     | 5     | 3     |
      | 9     | 5     | 4     |
      | 900   | 1000  | 900   |

  Scenario Outline: A results stream ends early between two lines, without an error
    Given a sandbox with the fault
      """
      {"route": "results", "action": {"type": "cut_between_lines", "after_lines": <after>, "framing": "<framing>"}}
      """
    And the sandbox has a batch of 5 requests
    And the sandbox's batches have had their time
    Then the sandbox's result lines count as
      | what       | count   |
      | lines      | <lines> |
      | succeeded  | <lines> |
      | unfinished | 0       |

    Examples:
      | after | framing | lines |
      | 0     | chunked | 0     |
      | 3     | chunked | 3     |
      | 9     | chunked | 5     |
      | 3     | close   | 3     |

  Scenario Outline: Lines are doubled, missing, contradicted, unreadable or foreign
    Given a sandbox with the fault
      """
      {"route": "results", "action": <action>}
      """
    And the sandbox has a batch of the prompts
      | custom_id | prompt               |
      | a         | Hello                |
      | b         | Hello                |
      | c         | Hello                |
      | d         | [[sandbox:expired]]  |
    And the sandbox's batches have had their time
    Then the sandbox's result lines count as
      | what                | count      |
      | lines               | <lines>    |
      | succeeded           | <succeeded> |
      | expired             | <expired>  |
      | errored             | <errored>  |
      | not JSON            | <garbage>  |
      | foreign             | <foreign>  |
      | with unknown fields | <unknown>  |

    Examples:
      | action                                                    | lines | succeeded | expired | errored | garbage | foreign | unknown |
      | {"type": "doubled_lines", "count": 4}                     | 8     | 6         | 2       | 0       | 0       | 0       | 0       |
      | {"type": "missing_lines", "count": 9}                     | 0     | 0         | 0       | 0       | 0       | 0       | 0       |
      | {"type": "missing_lines", "after_lines": 4}               | 4     | 3         | 1       | 0       | 0       | 0       | 0       |
      | {"type": "contradicting_lines", "count": 4}               | 8     | 4         | 1       | 3       | 0       | 0       | 0       |
      | {"type": "garbage_line", "count": 2}                      | 4     | 3         | 1       | 0       | 2       | 0       | 0       |
      | {"type": "garbage_line", "count": 4, "replace": true}     | 0     | 0         | 0       | 0       | 4       | 0       | 0       |
      | {"type": "foreign_lines", "count": 2}                     | 6     | 3         | 3       | 0       | 0       | 2       | 0       |
      | {"type": "unknown_fields"}                                | 4     | 3         | 1       | 0       | 0       | 0       | 4       |
      | {"type": "delay", "seconds": 0}                           | 4     | 3         | 1       | 0       | 0       | 0       | 0       |

  Scenario: A contradicting line can come first
    Given a sandbox with the fault
      """
      {"route": "results", "action": {"type": "contradicting_lines", "first": true}}
      """
    And the sandbox has a batch of 3 requests
    And the sandbox's batches have had their time
    Then the sandbox's answers are as follows
      | call                                     | field         | value     |
      | GET /v1/messages/batches/{batch}/results | 0.result.type | errored   |
      | GET /v1/messages/batches/{batch}/results | 1.result.type | succeeded |

  Scenario: Dropping needs the sandbox's own server
    Given a sandbox
    Then the sandbox under another server says that it cannot drop a connection
