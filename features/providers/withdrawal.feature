Feature: A call whose caller leaves before it is sent is withdrawn, and costs nothing

  Scenario Outline: A queued call is withdrawn when its caller leaves: <how>
    Given an API
    And <provider>
    When "what is a knot?" is asked, and its caller leaves while it is queued: <how>
    Then its request comes to be canceled
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
    When "what is a knot?" is asked and cancelled at once, beside "what is a bend?"
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

  Scenario: A call that is packed in a batch which was not sent is withdrawn from it
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider
    When two calls are packed in a batch that cannot be sent, and the caller of one leaves
    Then its request comes to be canceled
    When the API has no faults any more
    Then the other one is answered, in a batch of 1
    And the API has processed 1 requests in all

  Scenario: A batch of which all callers leave before it is sent is not sent
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider
    When two calls are packed in a batch that cannot be sent, and both callers leave
    And the API has no faults any more
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 1 requests in all
    And the API was called 1 times by POST /v1/messages/batches

  Scenario: What was reserved of a budget for a withdrawn call is free again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"actor_budget_usd": 1}
    When a call is packed within the budget, its caller leaves, and another call has no other room
    And the API has no faults any more
    Then the other call is answered within the budget

  Scenario: What was sent is not withdrawn, and the same call takes it over
    Given an API that takes 1 seconds for a batch
    And a batch provider
    When "what is a knot?" is asked, and its caller leaves once it is sent
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario: A provider that is closed directly after a call was cancelled has withdrawn it
    Given an API
    And a batch provider with {"linger": 5}
    When "what is a knot?" is asked, cancelled, and the provider closed in the same moment
    Then its request comes to be canceled

  Scenario: A call that another process would send is withdrawn
    Given an API
    And a batch provider with {"drive": false}
    When "what is a knot?" is asked, and its caller leaves while it is queued: cancelled
    And another provider drives the ledger, and asks "what is a bend?"
    Then all 1 are answered
    And the API has processed 1 requests in all

  Scenario: A live call that has not left yet is withdrawn
    Given an API with {"live_latency": 1}
    And a batch provider with {"mode": "live", "live_concurrency": 1}
    When two calls are made live one after the other, and the caller of the second leaves
    Then the first is answered, and the second is canceled
    And the API has processed 1 requests in all

  Scenario: A conversation between two turns goes on, since its first turn has been paid for
    Given an API
    And a batch provider
    When "Search [[sandbox:pause:1]]" has had its first turn, and its caller leaves before the second one is sent
    Then in the ledger the states of the requests are ["packed"]
    When the API has no faults any more
    And these prompts are asked: Search [[sandbox:pause:1]]
    Then all 1 are answered
    And the API has processed 2 requests, none twice

  Scenario: Thousands that are cancelled at once are withdrawn together, and block nobody
    Given an API
    And a batch provider with {"linger": 600}
    When 3000 calls are cancelled at once while they are queued
    Then all of them are canceled, in few transactions
    And the loop of their callers went on meanwhile
    And the API was called 0 times by POST /v1/messages/batches
