Feature: A failure that a layer above asks again at once is answered without a request
  The layer above, such as LangChain's `with_retry`, cannot be seen from the SDK's client. Its retries
  would multiply the attempts of the batches.

  Background:
    Given an API for the batched client

  Scenario: LangChain's with_retry makes no attempts beyond max_attempts
    Given a batch provider with {"max_attempts": 2, "linger": 0.05}
    And a LangChain model
    And the API has the faults
      """
      {"requests": [{"contains": "by with_retry", "outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    When a LangChain model is asked in turn by with_retry
    Then the batched client fails with 529 overloaded_error
    And the API has seen 2 batches
    And the ledger holds 1 requests

  Scenario Outline: Each kind of failure is repeated: <prompt>
    Given a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "<fault>"}}]}
      """
    And the batched client with {"max_attempts": 1}
    When the batched client asks these in turn
      | params               | before | calls |
      | {"prompt": "<prompt>"} |        |       |
      | {"prompt": "<prompt>"} |        | 3     |
    Then the batched client's outcomes are
      | status   | type   | reused |
      | <status> | <type> |        |
      | <status> | <type> | true   |
      | <status> | <type> | true   |
      | <status> | <type> | true   |
    And every failure of the batched client forbids a retry and names its batch
    And the API has processed 1 requests, none twice

    Examples:
      | prompt                                    | fault         | status | type                  |
      | [[sandbox:errored:api_error]]             | delay         | 500    | api_error             |
      | [[sandbox:errored:invalid_request_error]] | delay         | 400    | invalid_request_error |
      | [[sandbox:expired]]                       | delay         | 504    | timeout_error         |
      | [[sandbox:canceled]]                      | delay         | 499    | request_canceled      |
      | a line that is missing                    | missing_lines | 500    | api_error             |

  Scenario: Another process gets the failure too
    Given the batched client with {"max_attempts": 1}
    When the batched client asks these in turn
      | params                                  | before         | calls |
      | {"prompt": "[[sandbox:errored]]"} |                | 3     |
      | {"prompt": "[[sandbox:errored]]"} | another client | 2     |
    Then the batched client's outcomes are
      | status | type      | reused |
      | 500    | api_error |        |
      | 500    | api_error |        |
      | 500    | api_error |        |
      | 500    | api_error | true   |
      | 500    | api_error | true   |
    And the ledger holds 3 requests

  Scenario: A call whose caller has left gets its failure too
    Given the batched client with {"max_attempts": 1}
    And the SDK's own time-out is 60 seconds
    When the batched client asks these in turn
      | params                                              | before    | calls |
      | {"prompt": "[[sandbox:errored]]", "timeout": 0.001} |           |       |
      | {"prompt": "[[sandbox:errored]]"}                   | 2 seconds |       |
      | {"prompt": "[[sandbox:errored]]"}                   |           |       |
    Then the batched client's outcomes are
      | status | type            | reused |
      |        | APITimeoutError |        |
      | 500    | api_error       | true   |
      | 500    | api_error       | true   |
    And the API has seen 1 batch

  Scenario Outline: A failure is asked again <when>
    Given the API has the faults
      """
      {"requests": [{"contains": "shaky", "once": true, "outcome": "errored"}]}
      """
    And the batched client with {"max_attempts": 1, "failure_ttl": <ttl>}
    When the batched client asks these in turn
      | params                        | before   | calls |
      | {"prompt": "shaky"}           |          |       |
      | {"prompt": "shaky", <params>} | <before> |       |
      | {"prompt": "shaky"}           |          |       |
    Then the batched client's outcomes are
      | status | type      | reused |
      | 500    | api_error |        |
      | 200    | message   |        |
      | 200    | message   |        |
    And the ledger holds 3 requests

    Examples:
      | when                                 | ttl   | before      | params                                                  |
      | after its time                       | 1     | 2.5 seconds | "max_tokens": 100                                       |
      | if the setting turns it off          | 0     |             | "max_tokens": 100                                       |
      | if the call's header asks for it     | "10m" |             | "extra_headers": {"claude-batch-failure-ttl": "0"}      |

  Scenario: A call's header may ask for a longer time than the client's setting
    Given the batched client with {"max_attempts": 1, "failure_ttl": 0}
    When the batched client asks these in turn
      | params                                                                                                | before | calls |
      | {"prompt": "[[sandbox:errored]]"}                                                                     |        |       |
      | {"prompt": "[[sandbox:errored]]", "extra_headers": {"claude-batch-failure-ttl": "10m"}} |        |       |
    Then the batched client's outcomes are
      | status | type      | reused |
      | 500    | api_error |        |
      | 500    | api_error | true   |
    And the ledger holds 1 requests

  Scenario: Calls that differ in a byte or a beta are not equal
    Given the batched client with {"max_attempts": 1}
    When the batched client asks these in turn
      | params                                                          | before | calls |
      | {"prompt": "[[sandbox:errored]]"}                         |        |       |
      | {"prompt": "[[sandbox:errored]]."}                        |        |       |
      | {"prompt": "[[sandbox:errored]]", "betas": ["a-2026-01-01"]} |     |       |
    Then the ledger holds 3 requests

  Scenario: A header that is no duration is refused
    Given the batched client
    When the batched client asks with {"extra_headers": {"claude-batch-failure-ttl": "soon"}}
    Then the batched client fails with 400 invalid_request_error
    And the batched client has sent nothing

  Scenario: An actor's calls go by the rule of a rerun, and are asked each time
    Given a batch provider with {"max_attempts": 1, "linger": 0.05}
    When the actor is asked in vain: "[[sandbox:errored]]"
    And the actor is asked in vain: "[[sandbox:errored]]"
    Then the ledger holds 2 requests

  Scenario: More calls may fail at once than one statement of SQLite takes
    Given the batched client
    When the batched client asks
    Then 300000 failed calls are recorded, and forgotten, in one transaction
