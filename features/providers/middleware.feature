Feature: Middleware changes requests and responses, and a fault in it fails one request alone

  Scenario Outline: Requests are changed in order, responses in the reverse: <how>
    Given an API
    And the middleware "first" and "second", which add their names
    And <who>
    When "Hello" is asked through middleware, <how>
    Then the API was asked "Hello first second"
    And the answer ends with "second first"

    Examples:
      | who                           | how                        |
      | a batch provider that has it      | awaited                    |
      | a batch provider that has it      | synchronously              |
      | a batch provider that has it      | many at once               |
      | a batch provider that has it      | many at once synchronously |
      | a batch provider that has it      | submitted                  |
      | a live provider that has it       | awaited                    |
      | a live provider that has it       | many at once               |

  Scenario Outline: A request at which middleware fails is a failed result among the others: <how>
    Given an API
    And middleware that fails at what says "secret"
    And <who>
    When the middleware's requests are asked, <how>
      | prompt   | key |
      | one      | a   |
      | secret 2 | b   |
      | three    | c   |
      | secret 4 | d   |
      | five     | e   |
    Then the results by place are "ok, failed, ok, failed, ok" with the keys "a, b, c, d, e"
    And the failures are MiddlewareErrors of before_request that name the middleware and the key
    And the API has been asked 3 requests

    Examples:
      | who                      | how           |
      | a batch provider that has it | ordered       |
      | a batch provider that has it | as they come  |
      | a batch provider that has it | synchronously |
      | a live provider that has it  | ordered       |

  Scenario: Where middleware refuses all there is no run
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When the middleware's requests are asked, ordered
      | prompt   | key |
      | secret 1 | a   |
    Then the results by place are "failed" with the keys "a"
    When the middleware's requests are asked, synchronously
      | prompt   | key |
      | secret 1 | a   |
    Then the results by place are "failed" with the keys "a"
    And the API has been asked 0 requests

  Scenario: A run of which middleware fails at one request is not stored
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When the prompts "one, secret" are submitted through middleware
    Then the middleware's error is a MiddlewareError of before_request
    And the ledger has no request

  Scenario: Middleware that fails at a response fails that result alone, and the answer is kept
    Given an API
    And middleware that fails at the response with the key "b"
    And a batch provider that has it
    When the middleware's requests are asked, ordered
      | prompt | key |
      | one    | a   |
      | two    | b   |
      | three  | c   |
    Then the results by place are "ok, failed, ok" with the keys "a, b, c"
    And the failures are MiddlewareErrors of after_response that name the middleware and the key
    When another process without middleware reads the same run
    Then all of its results are answers

  Scenario: A single call at which middleware fails raises
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When "secret" is asked through middleware, awaited
    Then the middleware's error is a MiddlewareError of before_request

  Scenario: The key stays the caller's, whatever middleware makes of the request
    Given an API
    And middleware that makes each request anew
    And a batch provider that has it
    When the middleware's requests are asked, ordered
      | prompt | key |
      | one    | a   |
    Then the results by place are "ok" with the keys "a"
    And the API was asked "made anew"

  Scenario Outline: What is none is told: <what>
    Given an API
    And middleware that <what>
    And a batch provider that has it
    When "Hello" is asked through middleware, awaited
    Then the middleware's error is a MiddlewareError of <stage>

    Examples:
      | what                               | stage          |
      | returns nothing from before_request | before_request |
      | returns nothing from after_response | after_response |

  Scenario: An object with neither method is refused
    When a provider is given the middleware 5
    Then the outcome is a TypeError about middleware
