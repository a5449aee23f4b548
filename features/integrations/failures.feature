Feature: Failures are the API's own answers, and are not asked again

  Background:
    Given an API for the batched client

  Scenario: Each outcome has the status and the type that the API gives it
    Given the batched client with {"max_attempts": 1}
    When the batched client asks these at once
      | prompt                                     | params |
      | [[sandbox:errored:invalid_request_error]]  | {}     |
      | [[sandbox:errored:permission_error]]       | {}     |
      | [[sandbox:errored:not_found_error]]        | {}     |
      | [[sandbox:errored:request_too_large]]      | {}     |
      | [[sandbox:errored:rate_limit_error]]       | {}     |
      | [[sandbox:errored:api_error]]              | {}     |
      | [[sandbox:errored:timeout_error]]          | {}     |
      | [[sandbox:errored:overloaded_error]]       | {}     |
      | [[sandbox:expired]]                        | {}     |
      | [[sandbox:canceled]]                       | {}     |
      | good                                       | {}     |
    Then the batched client's outcomes are
      | status | type                  |
      | 400    | invalid_request_error |
      | 403    | permission_error      |
      | 404    | not_found_error       |
      | 413    | request_too_large     |
      | 429    | rate_limit_error      |
      | 500    | api_error             |
      | 504    | timeout_error         |
      | 529    | overloaded_error      |
      | 504    | timeout_error         |
      | 499    | request_canceled      |
      | 200    | message               |
    And every failure of the batched client forbids a retry and names its batch
    And the API has processed 11 requests, none twice

  Scenario: A canceled request has a status that no retry layer repeats
    Clients like the SDK, and layers over HTTP, repeat 408, 409, 425, 429, and all from 500 on.
    Given the batched client
    When the batched client asks with {"prompt": "[[sandbox:canceled]]"}
    Then the batched client fails with 499 request_canceled
    And the failure's fields are
      | field   | value                                       |
      | message | "…was canceled at the API…repeat the call…" |
    And the API has processed 1 requests, none twice
    And the SDK repeats a call by its status alone as follows
      | status | repeated |
      | 499    | no       |
      | 504    | yes      |
      | 429    | yes      |

  Scenario: A batch that another program cancels at the API is reported so, and not sent again
    Given an API for the batched client that takes 30 seconds
    And the batched client
    And somebody else cancels the first batch at the API, as soon as it is there
    When the batched client asks
    Then the batched client fails with 499 request_canceled
    And the failure's fields are
      | field              | value                                                                                                                                                                                                                                                                                                               |
      | body.error.message | "…was canceled at the API, not by claude-batch: its batch was canceled in the Console or by another program. It did not run, and nothing was billed for it. To send it again, repeat the call. For 10m, an equal call gets this failure without a request, unless it has the header `claude-batch-failure-ttl: 0`…" |
    When the batched client asks
    Then the batched client fails with 499 request_canceled
    And the ledger holds 1 requests
    And the API has seen 1 batch

  Scenario: An error of the API's comes back with its own body and request id
    Given the API has the faults
      """
      {"requests": [{"contains": "odd", "outcome": "errored",
        "error": {"type": "invalid_request_error", "message": "Unable to download the file. Please verify the URL and try again.", "details": {"a": 1}}}]}
      """
    And the batched client
    When the batched client asks with {"prompt": "odd"}
    Then the batched client fails with 400 invalid_request_error
    And the failure's fields are
      | field           | value                                                                                                                                  |
      | request_id      | "workerreq_…"                                                                                                                          |
      | body.request_id | "workerreq_…"                                                                                                                          |
      | body.type       | "error"                                                                                                                                |
      | body.error      | {"type": "invalid_request_error", "message": "Unable to download the file. Please verify the URL and try again.", "details": {"a": 1}} |

  Scenario: An error type that nobody knows yet counts as the server's fault
    Then failures that the API reports for a request are answered as follows
      | failure                                                                         | status | body                                                                            |
      | {"type": "error", "error": {"type": "tomorrow_error", "message": "never seen"}} | 500    | {"type": "error", "error": {"type": "tomorrow_error", "message": "never seen"}} |

  Scenario: max_wait ends the wait with a 504, and the request stays
    Given the batched client with {"max_wait": 0.4, "linger": 5}
    When the batched client asks
    Then the batched client fails with 504 timeout_error
    And the ledger holds 1 requests

  Scenario: max_wait names the batch that is under way
    Given an API for the batched client that takes 30 seconds
    And the batched client with {"max_wait": 4}
    When the batched client asks
    Then the batched client fails with 504 timeout_error
    And every failure of the batched client forbids a retry and names its batch

  Scenario Outline: A halted account answers at once, by its reason
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", <error>}}]}
      """
    And the batched client
    When the batched client asks
    Then the batched client fails with <status> <type>
    And the failure's fields are
      | field                     | value      |
      | body.error.details.reason | "<reason>" |
    And the ledger holds 1 requests

    Examples:
      | error                                                               | status | type                  | reason      |
      | "status": 401                                                       | 401    | authentication_error  | credentials |
      | "status": 402                                                       | 402    | billing_error         | billing     |
      | "status": 403                                                       | 403    | permission_error      | permission  |
      | "status": 400, "message": "Your credit balance is too low to go on" | 402    | billing_error         | billing     |
      | "status": 400, "message": "You have reached your specified API usage limits." | 429 | rate_limit_error | spend_limit |

  Scenario: A halt that claude-batch itself caused has its reason too
    Given the batched client with {"exclusive_workspace": true}
    When the batched client asks
    Then the batched client has 1 messages
    When somebody else makes 1 batches of 1 requests
    And 2.5 seconds pass
    And the batched client asks with {"max_tokens": 200}
    Then the batched client fails with 403 permission_error
    And the failure's fields are
      | field                     | value                                                                |
      | body.error.details.reason | "unexplained"                                                        |
      | body.error.message        | "…the workspace is set as exclusive…then run `claude-batch resume`…" |
    And the ledger holds 2 requests

  Scenario: Each reason of a halt has a status and a type
    Then calls that end by a halt are answered as follows
      | reason        | status | type                  |
      | credentials   | 401    | authentication_error  |
      | billing       | 402    | billing_error         |
      | permission    | 403    | permission_error      |
      | spend_limit   | 429    | rate_limit_error      |
      | refused       | 400    | invalid_request_error |
      | unexplained   | 403    | permission_error      |
      | ledger_behind | 403    | permission_error      |
      | other_key     | 403    | permission_error      |

  Scenario: A call that the SDK repeats after a halt is not stored a second time
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 401}}]}
      """
    And the batched client
    When the batched client asks these in turn
      | params                                              | before | calls |
      | {}                                                  |        |       |
      | {"extra_headers": {"x-stainless-retry-count": "1"}} |        |       |
    Then the batched client fails with 401 authentication_error
    And the ledger holds 1 requests

  Scenario: A request whose line is missing is an error of the API's kind
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines"}}]}
      """
    And the batched client
    When the batched client asks
    Then the batched client fails with 500 api_error
    And every failure of the batched client forbids a retry and names its batch

  Scenario: A body that is no request is refused as the API would
    Given the batched client
    Then other bodies than requests are posted to the batched client as follows
      | body             | form | status | type                  |
      | no JSON at all   | no   | 400    | invalid_request_error |
      | [1, 2]           | no   | 400    | invalid_request_error |
      | {"messages": []} | no   | 400    | invalid_request_error |
      | a part of a form | yes  | 400    | invalid_request_error |
    And the batched client has sent nothing

  Scenario Outline: A fault of ours is a 500, since the SDK would ask again after an exception
    Given <client>
    And the batched client's provider fails with a bug
    When <client> asks
    Then the batched client fails with 500 api_error
    And the bug was met once

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A client whose provider was closed says so
    Given the batched client
    When the provider is closed
    And the batched client asks
    Then the batched client fails with 500 api_error
