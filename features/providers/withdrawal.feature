Feature: A call whose caller leaves before it is sent is withdrawn, and costs nothing

  Scenario Outline: A queued call is withdrawn when its caller leaves: <how>
    Given an API
    And <provider>
    When "what is a knot?" is asked, and its caller leaves while it is queued: <how>
    Then in the ledger the states of the requests come to be ["canceled"]
    When these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 1 requests in all

    Examples:
      | how                       | provider                                             |
      | cancelled                 | a batch provider with {"linger": 2}                  |
      | timed out by its caller   | a batch provider with {"linger": 2}                  |
      | closed                    | a batch provider with {"linger": 2}                  |
      | interrupted without loop  | a batch provider with {"linger": 2}                  |
      | cancelled over a client   | a batch provider with {"linger": 2}                  |
      | ended by any exception    | a batch provider with {"linger": 2}                  |

  Scenario Outline: A call that is interrupted <where> is not sent, and holds up no other call
    Given an API
    And a batch provider with {"linger": 1}
    When these prompts are asked: what is a hitch?
    And "what is a knot?" is asked on a thread that is interrupted <where>
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 2 requests in all

    Examples:
      | where                            |
      | when it was queued               |
      | before the engine hears of it    |

  Scenario: A call that is interrupted as it begins to wait does not wait for itself
    Given an API
    And a batch provider with {"linger": 1}
    When these prompts are asked: what is a hitch?
    And "what is a knot?" is asked on a thread that is interrupted as it locks what it waits by

  Scenario: A call of a live provider that is interrupted as it begins to wait holds up no other call
    Given an API
    And a live provider whose post_process keeps results
    When these prompts are asked: what is a hitch?
    And "what is a knot?" is asked on a thread that is interrupted as it locks what it waits by
    And these prompts are asked: what is a bend?
    Then all 1 are answered

  Scenario: The same call, made again after it was withdrawn, is a new request
    Given an API
    And a batch provider with {"linger": 2}
    When "what is a knot?" is asked, and its caller leaves while it is queued: cancelled
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests in all
    And the ledger holds 2 requests

  Scenario: A call that is cancelled before it is stored is not stored
    Given an API
    And a batch provider
    When "what is a knot?" is asked and cancelled at once without a key, beside "what is a bend?"
    Then all 1 are answered
    And the ledger holds 1 requests

  Scenario Outline: A call that is to be kept is sent although its caller has left: <how>
    Given an API
    And a batch provider with {"linger": 2}
    When "what is a knot?" is asked, and its caller leaves while it is queued: <how>
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 2 requests, none twice

    Examples:
      | how                     |
      | cancelled, with keep    |
      | cancelled, with a key   |

  Scenario: A kept call is taken over by the same call
    Given an API
    And a batch provider with {"linger": 2}
    When "what is a knot?" is asked, and its caller leaves while it is queued: cancelled, with keep
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests in all
    And the ledger holds 1 requests

  Scenario Outline: A call is answered after the run of the calls before it was cancelled: <call>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider
    When "what is a knot?" is asked in the background <how>
    Then in the ledger the states of the requests come to be ["packed"]
    When a command runs: cancel RUN
    Then the command line exits with 0
    When the calls in the background have ended
    Then every call fails with BatchRequestError
    When the API has no faults any more
    And "<next>" is asked in the background <how>
    And the calls in the background have ended
    Then in the ledger the states of the requests come to be <states>
    And the API has processed 1 requests in all

    Examples:
      | call             | how              | next            | states                    |
      | another          | by respond       | what is a bend? | ["canceled", "succeeded"] |
      | the same         | by respond       | what is a knot? | ["canceled", "succeeded"] |
      | the same, by key | with the key "k" | what is a knot? | ["succeeded"]             |

  Scenario: A call that is packed in a batch which was not sent is withdrawn from it
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider
    When "what is a knot?" is asked in the background
    And "what is a bend?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed", "packed"]
    When the caller of "what is a knot?" leaves
    Then in the ledger the states of the requests come to be ["canceled", "packed"]
    When the API has no faults any more
    And the calls in the background have ended
    Then all 1 are answered
    And in the ledger the sizes of the batches are [1]
    And the API has processed 1 requests in all

  Scenario: A batch of which all callers leave before it is sent is not sent
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider
    When "what is a knot?" is asked in the background
    And "what is a hitch?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed", "packed"]
    When the caller of "what is a knot?" leaves
    And the caller of "what is a hitch?" leaves
    Then in the ledger the states of the requests come to be ["canceled", "canceled"]
    And in the ledger the states of the batches are ["rejected"]
    When the API has no faults any more
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 1 requests in all
    And the API was called 1 times by POST /v1/messages/batches

  Scenario: The reservation of a withdrawn call is released
    # Enough for one of the calls, and not for two.
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"actor_budget_usd": 0.015}
    When "what is a knot?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed"]
    When "what is a bend?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed", "queued"]
    When the caller of "what is a knot?" leaves
    Then in the ledger the states of the requests come to be ["canceled", "packed"]
    When the API has no faults any more
    And the calls in the background have ended
    Then all 1 are answered
    And the budgets account for the API's bill
    And the API has processed 1 requests in all

  Scenario: A provider that is closed directly after a call was cancelled has withdrawn it
    Given an API
    And a batch provider with {"linger": 5}
    When "what is a knot?" is asked in the background
    Then in the ledger the states of the requests come to be ["queued"]
    When the caller of "what is a knot?" leaves
    And the provider is closed
    Then in the ledger the states of the requests are ["canceled"]

  Scenario: A call that another process would send is withdrawn
    Given an API
    And a batch provider with {"drive": false}
    When "what is a knot?" is asked, and its caller leaves while it is queued: cancelled
    And a batch provider is opened
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 1 requests in all

  Scenario: A live call that has not left yet is withdrawn
    Given an API with {"live_latency": 1}
    And a batch provider with {"mode": "live", "live_concurrency": 1}
    When "what is a knot?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed"]
    When "what is a bend?" is asked in the background
    Then in the ledger the states of the requests come to be ["packed", "queued"]
    When the caller of "what is a bend?" leaves
    And the calls in the background have ended
    Then all 1 are answered
    And in the ledger the states of the requests come to be ["succeeded", "canceled"]
    And the API has processed 1 requests in all

  Scenario: A conversation between two turns goes on, since its first turn has been paid for
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When "Search [[sandbox:pause:1]]" is asked in the background
    Then in the ledger the states of the batches come to be ["in_progress"]
    # Nothing is sent while the list cannot be read.
    When the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    Then in the ledger the states of the batches come to be ["collected", "packed"]
    When the caller of "Search [[sandbox:pause:1]]" leaves
    Then in the ledger the processes that wait for calls come to be [null]
    And in the ledger the states of the requests are ["packed"]
    When the API has no faults any more
    And these prompts are asked: Search [[sandbox:pause:1]]
    Then all 1 are answered
    And the API has processed 2 requests, none twice

  Scenario: Many calls that are cancelled at once are withdrawn together, and block nobody
    Given an API
    And a batch provider with {"linger": 600}
    When the callers of 1000 queued calls leave at once
    Then they were withdrawn in at most 10 transactions, and their event loop was not blocked
    And in the ledger the calls that wait are []
    And the API was called 0 times by POST /v1/messages/batches
  Scenario: Calls that time out together are cancelled together, and hold up nothing else
    Given an API
    And a batch provider with {"linger": 600, "max_wait": "4s", "on_timeout": "cancel"}
    When the callers of 400 queued calls time out at once
    Then they were withdrawn in at most 40 transactions, and their event loop was not blocked

  Scenario: A call that times out cancels no request for which another call waits
    Given an API that takes 6 seconds for a batch
    And a batch provider
    When "hello" is asked in the background with the key "greeting"
    Then in the ledger the states of the batches come to be ["in_progress"]
    Given a batch provider with {"max_wait": 1, "on_timeout": "cancel"}
    When "hello" is asked with the key "greeting"
    Then every call fails with BatchTimeoutError
    And the error is a BatchTimeoutError that says
      """
      another call waits for it, so it was not cancelled
      """
    When the calls in the background have ended
    Then all 1 are answered

  Scenario: A call that times out in a live call says so
    Given an API with {"live_latency": 6}
    And a batch provider with {"mode": "live", "max_wait": 2}
    When "hello" is asked with the key "greeting"
    Then every call fails with BatchTimeoutError
    And the error is a BatchTimeoutError that says
      """
      in a live call: it stays in the ledger
      """
