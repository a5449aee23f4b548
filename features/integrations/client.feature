@every_python
Feature: Code on the SDK's client is batched without a change

  Background:
    Given an API for the batched client

  Scenario: A message comes back as the API sent it, and tells its batch
    Given the batched client
    Then a raw answer is the message of its result line, byte for byte, with the headers
      | header                | value       |
      | claude-batch-batch-id | BATCH       |
      | claude-batch-attempt  | 1           |
      | claude-batch-cost-usd | 0.000039500 |
      | request-id            | batch:BATCH |

  Scenario Outline: A raw response tells how long the call took: <client>
    Given an API for the batched client that takes 0.5 seconds
    And <client>
    When <client> asks for a raw response
    Then the raw response took between 0.5 and 30 seconds

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A live answer has the request id that the API gave its call
    Given the batched client with {"mode": "live"}
    When the batched client asks for a raw response
    Then the raw's fields are
      | field                    | value           |
      | headers.claude-batch-via | "live"          |
      | headers.request-id       | "req_sandbox_…" |

  Scenario: Several clients of a process, asynchronous and not, share one batch
    When three batched clients of one process ask 5 prompts each at once
    Then the batched client has 15 messages
    And the API has seen 1 batch
    And the API has processed 15 requests, none twice

  Scenario: The synchronous client works without a running event loop
    Given the synchronous batched client
    When the synchronous batched client asks
    Then the batched client has 1 messages

  Scenario: The synchronous client works inside a running event loop
    Given the synchronous batched client
    When the synchronous batched client asks inside a running event loop
    Then the batched client has 1 messages

  Scenario: A large max_tokens neither needs a stream nor runs into a time-out of the SDK's
    Given the batched client
    When the batched client asks with {"max_tokens": 64000}
    Then the batched client has 1 messages
    And the sdk's fields are
      | field   | value |
      | timeout | null  |

  Scenario: The SDK's tool runner goes on from turn to turn
    Given an API for the batched client whose model uses tools
    And the batched client
    When the SDK's tool runner asks with the tool "population"
    Then the tool runner's answer has "The tools gave: "
    And the API has seen 2 batches

  Scenario: Betas and the user profile travel as headers of the batch
    Given the batched client
    When the batched client asks with {"betas": ["b-2026-01-01", "a-2026-01-01"], "user_profile_id": "up_1"}
    Then the batched client has 1 messages
    And the batched client's batches were created with
      | anthropic-version | anthropic-beta            | anthropic-user-profile-id |
      | 2026-10-21        | a-2026-01-01,b-2026-01-01 | up_1                      |

  Scenario: Sampling parameters go under the version that takes them, and the rest does not
    Given the batched client
    When the batched client asks these at once
      | prompt | params                               |
      | warm   | {"extra_body": {"temperature": 0.5}} |
      | plain  | {}                                   |
    Then the batched client has 2 messages
    And the batched client's batches were created with
      | anthropic-version | anthropic-beta | anthropic-user-profile-id |
      | 2023-06-01        |                |                           |
      | 2026-10-21        |                |                           |

  Scenario Outline: An Idempotency-Key joins the request of that key: <client>
    Given <client>
    When the batched client asks these in turn
      | params                                                        | calls | before |
      | {"extra_headers": {"Idempotency-Key": "k1"}}                  | 2     |        |
      | {"extra_headers": {"Idempotency-Key": "k1"}}                  | 1     |        |
      | {"extra_headers": {"Idempotency-Key": "k1"}, "prompt": "two"} | 1     |        |
      | {"extra_headers": {"Idempotency-Key": ""}}                    | 1     |        |
      | {"extra_headers": {"Idempotency-Key": "k2"}, "prompt": "two"} | 1     |        |
    Then the batched client's outcomes are
      | status | type                  |
      | 200    | message               |
      | 200    | message               |
      | 200    | message               |
      | 409    | conflict_error        |
      | 400    | invalid_request_error |
      | 200    | message               |
    And the API has processed 2 requests, none twice

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A version that the caller sets is kept
    Given the batched client
    When the batched client asks with {"extra_headers": {"anthropic-version": "2023-01-01"}}
    Then the batched client's batches were created with
      | anthropic-version | anthropic-beta | anthropic-user-profile-id |
      | 2023-01-01        |                |                           |

  Scenario: A temperature that the model does not take is refused before anything is sent
    Given the batched client
    When the batched client asks with {"model": "claude-opus-5-5", "extra_body": {"temperature": 0.5}}
    Then the batched client fails with 400 invalid_request_error
    And the batched client has sent nothing

  Scenario: A provider's default that the model does not take is dropped
    Given the batched client with {"default_options": {"temperature": 0.5}}
    When the batched client asks with {"model": "claude-opus-5-5"}
    Then the batched client has 1 messages

  Scenario: A provider's default user profile and betas travel as headers too
    Given the batched client with {"default_options": {"user_profile_id": "up_2", "betas": ["a-2026-01-01"]}}
    When the batched client asks
    Then the batched client has 1 messages
    And the batched client's batches were created with
      | anthropic-version | anthropic-beta | anthropic-user-profile-id |
      | 2026-10-21        | a-2026-01-01   | up_2                      |

  Scenario: Every other endpoint is the real API's
    Then other calls of a batched client return as follows
      | client       | call                  | arguments                                                                         | field        | value           |
      | asynchronous | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "hello"}]} | input_tokens | 9               |
      | asynchronous | models.list           | {}                                                                                | data.0.id    | claude-opus-5-5 |
      | asynchronous | messages.batches.list | {}                                                                                | data         | []              |
      | synchronous  | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "hello"}]} | input_tokens | 9               |
    And the API was called 4 times by POST /v1/messages/count_tokens
    And the API was called 2 times by GET /v1/models
    And the API has processed 0 requests, none twice

  Scenario: Other endpoints keep the SDK's retries
    Given the API has the faults
      """
      {"rules": [{"route": "count_tokens", "nth": [1, 2],
                  "action": {"type": "error", "status": 529, "retry_after": 0.01}}]}
      """
    Then other calls of a batched client return as follows
      | client       | call                  | arguments                                                                         | field        | value |
      | asynchronous | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "hello"}]} | input_tokens | 9     |
    And the API was called 4 times by POST /v1/messages/count_tokens

  Scenario: Other endpoints keep the SDK's time-out
    Given the API has the faults
      """
      {"rules": [{"route": "count_tokens", "action": {"type": "hang", "seconds": 20}}]}
      """
    And the batched client
    And the SDK's own time-out is 0.3 seconds
    When the batched client counts tokens
    Then the batched client fails with APITimeoutError

  Scenario: Other endpoints honour a time-out that the caller sets
    Given the API has the faults
      """
      {"rules": [{"route": "count_tokens", "action": {"type": "hang", "seconds": 20}}]}
      """
    And the batched client
    When a copy of the batched client with {"timeout": 0.3, "max_retries": 0} counts tokens
    Then the batched client fails with APITimeoutError

  Scenario: A redirect of the real API is not followed
    Given the API has the faults
      """
      {"rules": [{"route": "count_tokens",
                  "action": {"type": "redirect", "location": "http://127.0.0.1:9/elsewhere"}}]}
      """
    And the batched client
    When the batched client counts tokens
    Then the batched client's outcomes are
      | status |
      | 307    |

  Scenario: A call that is cancelled once it is sent ends at once and leaves its request in the ledger
    Given the batched client
    When 1 waiting calls of the batched client share a batch, and one is cancelled
    Then the caller sees its own cancellation, and the request is answered in the ledger

  Scenario: A synchronous call that is interrupted once it is sent leaves its request in the ledger
    Given the synchronous batched client
    When a waiting call of the synchronous batched client is interrupted
    Then the caller sees its own cancellation, and the request is answered in the ledger

  Scenario: A call whose event loop ends once it is sent leaves its request in the ledger
    Given the batched client
    When the event loop of a waiting call of the batched client ends
    Then the caller sees its own cancellation, and the request is answered in the ledger
    When the batched client asks
    Then the batched client has 1 messages

  Scenario Outline: A time-out that the caller sets is honoured, and the SDK's retries ask nothing anew
    Given <client>
    When <client> asks 1 times at once, with a time-out of 0.1 seconds and 1 retries, answers taking 30 seconds
    Then the batched client fails with APITimeoutError
    And the ledger holds 1 requests

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A retry after a time-out gets the answer that came meanwhile
    Given the batched client
    When the batched client asks 1 times at once, with a time-out of 0.3 seconds and 4 retries, answers taking 1 seconds
    Then the batched client has 1 messages
    And the API has processed 1 requests, none twice

  Scenario: Equal calls that time out together are each retried into their own request
    Given the batched client
    When the batched client asks 2 times at once, with a time-out of 0.3 seconds and 6 retries, answers taking 0.8 seconds
    Then the batched client has 2 messages
    And the ledger holds 2 requests

  Scenario: A call that timed out is continued by any equal call
    Given the batched client
    When three prompts of the batched client time out, and are asked again
    Then the ledger holds 3 requests

  Scenario: A call that timed out before it was stored is continued too
    Given the batched client
    And the ledger takes 1 second to open
    When three prompts of the batched client time out, and are asked again
    Then the ledger holds 3 requests

  Scenario: A sent call that is dropped is cancelled at the API, and an equal call is a new request
    Given an API for the batched client that takes 30 seconds
    And the batched client with {"on_disconnect": "drop"}
    When 1 waiting calls of the batched client share a batch, and one is cancelled
    Then the API receives a cancellation of the batch
    When the batched client asks 1 times at once, with a time-out of 0.3 seconds and 3 retries, answers taking 30 seconds
    Then the batched client fails with 499 request_canceled
    And the ledger holds 2 requests

  Scenario: A dropped call does not cancel the batch of others
    Given an API for the batched client that takes 1 seconds
    And the batched client with {"on_disconnect": "drop"}
    When 3 waiting calls of the batched client share a batch, and one is cancelled
    Then the batched client has 2 messages
    And the API was called 0 times by POST /v1/messages/batches/*/cancel

  Scenario: A client that is closed on another event loop than it was used on closes its provider
    Given the batched client
    When the batched client counts tokens, and is closed on another event loop
    Then the batched client's provider is closed

  Scenario: Closing the client closes the provider that it made
    Given the batched client
    When the batched client asks
    And the batched client is closed
    Then the batched client's provider is closed

  Scenario Outline: A provider that was given stays open, and its settings hold
    Given a batch provider
    And <client> with {"provider": true}
    When <client> asks
    And the batched client is closed
    Then the batched client has 1 messages
    When the actor is asked: "still there?"
    Then the answer's text has "still there?"

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario Outline: A call that another account would pay for is not sent at this one's expense
    Given the batched client
    When a copy of the batched client with <change> asks
    Then the batched client fails with 400 invalid_request_error
    And the batched client has sent nothing

    Examples:
      | change                                                          |
      | {"api_key": "sk-another"}                                       |
      | {"base_url": "http://127.0.0.1:9"}                              |
      | {"default_headers": {"anthropic-workspace-id": "wrkspc_other"}} |

  Scenario: A copy of the client with other options is batched too
    Given the batched client
    When a copy of the batched client with {"max_retries": 5} asks
    Then the batched client has 1 messages

  Scenario Outline: An SDK client that other code makes is batched, with its own key and base URL
    Given an SDK client of one's own over <door>
    When the batched client asks with {"max_tokens": 64000}
    Then the batched client has 1 messages
    And the API has seen 1 batch
    When a copy of the batched client with {"max_retries": 5} asks
    Then the batched client has 1 messages
    When a copy of the batched client with {"api_key": "sk-another"} asks
    Then the batched client fails with 400 invalid_request_error
    And the ledger holds 2 requests
    When the batched client is closed
    Then the batched client's provider is closed

    Examples:
      | door             |
      | http_client      |
      | http_client_sync |

  Scenario Outline: Settings of http_client are not replaced by an SDK client's own
    Given an SDK client of one's own over http_client with <settings>
    When the batched client asks
    Then the batched client fails with 400 invalid_request_error
    And the batched client has sent nothing

    Examples:
      | settings                           |
      | {"api_key": "sk-another"}          |
      | {"base_url": "http://127.0.0.1:9"} |

  Scenario: Invalid settings are reported before anything is sent
    Given a batch provider
    Then batched clients are made as follows
      | client       | settings                            | error             |
      | asynchronous | {"provider": true, "linger": 1}     | either a provider |
      | asynchronous | {"linger": "soon"}                  | linger            |
      | asynchronous | {"api_key_env": "NO_SUCH_VARIABLE"} | NO_SUCH_VARIABLE  |
      | asynchronous | {"profile": "missing"}              | the credentials   |
      | synchronous  | {"profile": "missing"}              | the credentials   |
      | synchronous  | {"api_key": "sk-key\n"}             | no key has        |
      | synchronous  | {"api_key": "sk-k\u200bey"}         | no key has        |
      | asynchronous | {"api_key": 7}                      | a text, not int   |

  Scenario: A base URL may have a path
    Given the batched client with {"base_url": "http://127.0.0.1:9/behind/a/path/"}
    And the batched client's provider fails with a bug
    When the batched client asks
    Then the bug was met once

  Scenario: Credentials of a profile pay for the batch
    Given a command's folder
    And a command's environment has ANTHROPIC_CONFIG_DIR = .
    And a command's environment has ANTHROPIC_PROFILE = work
    And a command's environment lacks ANTHROPIC_API_KEY
    And the profile "work" with the token "sk-of-a-profile" and the workspace "wrkspc_1"
    And the batched client
    When the batched client asks
    Then the batched client has 1 messages
    And the API has seen 1 batch
