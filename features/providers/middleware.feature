@every_python @long
Feature: Middleware changes requests and responses, and a fault in it fails one request alone

  Scenario Outline: Requests are changed in order, responses in the reverse: <how>
    Given an API
    And the middleware "first" and "second", which add their names
    And <who>
    When "Hello" is asked in this way: <how>
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
    When these requests are asked, <how>
      | prompt   | key |
      | one      | a   |
      | secret 2 | b   |
      | three    | c   |
      | secret 4 | d   |
      | five     | e   |
    Then the results by place are "ok, failed, ok, failed, ok" with the keys "a, b, c, d, e"
    And the failures are MiddlewareErrors of before_request that name the middleware and the key
    And the API has processed 3 requests in all

    Examples:
      | who                      | how           |
      | a batch provider that has it | in order      |
      | a batch provider that has it | as they come  |
      | a batch provider that has it | synchronously |
      | a live provider that has it  | in order      |

  Scenario: If middleware refuses all requests, there is no run
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When these requests are asked, in order
      | prompt   | key |
      | secret 1 | a   |
    Then the results by place are "failed" with the keys "a"
    When these requests are asked, synchronously
      | prompt   | key |
      | secret 1 | a   |
    Then the results by place are "failed" with the keys "a"
    And the API has processed 0 requests in all

  Scenario: A run of which middleware fails at one request is not stored
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When a run of these prompts is submitted
      | prompt |
      | one    |
      | secret |
    Then the middleware's error is a MiddlewareError of before_request
    And the ledger holds 0 requests

  Scenario: Middleware that fails at a response fails that result alone, and the answer is kept
    Given an API
    And middleware that fails at the response with the key "b"
    And a batch provider that has it
    When a run of these prompts is submitted
      | prompt | key |
      | one    | a   |
      | two    | b   |
      | three  | c   |
    And the results are read in order
    Then the results by place are "ok, failed, ok" with the keys "a, b, c"
    And the failures are MiddlewareErrors of after_response that name the middleware and the key
    When the provider is closed
    And another provider opens the run
    And the results are read in order
    Then 3 results are answers and 0 are errors

  Scenario: A single call at which middleware fails raises
    Given an API
    And middleware that fails at what says "secret"
    And a batch provider that has it
    When "secret" is asked in this way: awaited
    Then the middleware's error is a MiddlewareError of before_request

  Scenario: The key stays the caller's, whatever middleware makes of the request
    Given an API
    And middleware that makes each request anew
    And a batch provider that has it
    When these requests are asked, in order
      | prompt | key |
      | one    | a   |
    Then the results by place are "ok" with the keys "a"
    And the API was asked "made anew"

  Scenario Outline: Middleware that <what> fails that request
    Given an API
    And middleware that <what>
    And a batch provider that has it
    When "Hello" is asked in this way: awaited
    Then the middleware's error is a MiddlewareError of <stage>

    Examples:
      | what                                               | stage          |
      | returns nothing from before_request                | before_request |
      | returns nothing from after_response                | after_response |
      | returns nothing asynchronously from before_request | before_request |
      | raises asynchronously in before_request            | before_request |
      | raises a time-out asynchronously in after_response | after_response |

  Scenario Outline: Middleware that <what> fails its request like any other exception: <who>, <how>
    Given an API
    And middleware that <what>
    And <who>
    When "Hello" is asked in this way: <how>
    Then the middleware's error is a MiddlewareError of <stage>
    When "Hello" is asked in this way: <how>
    Then the middleware's error is a MiddlewareError of <stage>

    Examples:
      | what                                            | who                          | how                        | stage          |
      | exits in before_request                         | a batch provider that has it | synchronously              | before_request |
      | is interrupted in before_request                | a batch provider that has it | awaited                    | before_request |
      | raises what cannot be shown in before_request   | a batch provider that has it | many at once               | before_request |
      | exits in after_response                         | a batch provider that has it | many at once synchronously | after_response |
      | exits asynchronously in before_request          | a batch provider that has it | synchronously              | before_request |
      | exits asynchronously in after_response          | a batch provider that has it | synchronously              | after_response |
      | exits asynchronously in after_response          | a batch provider that has it | awaited                    | after_response |
      | is interrupted asynchronously in after_response | a batch provider that has it | many at once synchronously | after_response |
      | awaits what was cancelled in before_request     | a batch provider that has it | synchronously              | before_request |
      | awaits what was cancelled in after_response     | a batch provider that has it | awaited                    | after_response |
      | exits in before_request                         | a live provider that has it  | synchronously              | before_request |
      | is interrupted asynchronously in after_response | a live provider that has it  | synchronously              | after_response |
      | exits asynchronously in after_response          | a live provider that has it  | many at once               | after_response |
      | awaits what was cancelled in after_response     | a live provider that has it  | many at once               | after_response |

  Scenario: An exit on an event loop that callers share ends one caller's work alone
    Given an event loop that the process shares, with work that never ends
    When other work on it exits
    Then the caller of that work gets its exit, and the event loop goes on
    When the event loop itself fails
    Then the work that never ends fails, and later work runs on another event loop

  Scenario Outline: Middleware that blocks holds up its own request alone: <who>, <how>
    Given an API
    And middleware that blocks until the caller's loop has gone on
    And <who>
    Then 4 requests that are asked <how> hold up no loop, and middleware has its context

    Examples:
      | who                          | how           |
      | a batch provider that has it | one by one    |
      | a batch provider that has it | many at once  |
      | a live provider that has it  | one by one    |
      | a live provider that has it  | many at once  |

  Scenario Outline: Asynchronous middleware is awaited, in the order of all: <who>, <how>
    Given an API
    And the middleware "first" and "second", which add their names, the second asynchronously
    And <who>
    When "Hello" is asked in this way: <how>
    Then the API was asked "Hello first second"
    And the answer ends with "second first"

    Examples:
      | who                          | how                        |
      | a batch provider that has it | awaited                    |
      | a batch provider that has it | synchronously              |
      | a batch provider that has it | many at once               |
      | a batch provider that has it | many at once synchronously |
      | a live provider that has it  | awaited                    |
      | a live provider that has it  | synchronously              |
      | a live provider that has it  | many at once               |
      | a live provider that has it  | many at once synchronously |

  Scenario Outline: An answer that middleware does not give back in time is kept, and not paid for again: <kind>, <how>
    Given an API
    And a <kind> middleware which never returns from after_response
    And a batch provider that has it, with a time-out of 0.3 seconds
    When "Hello" is asked in this way: <how>
    Then the middleware's error is a MiddlewareError of after_response
    And it says that the answer was paid for and is kept
    When the middleware returns again, and "Hello" is asked once more, <how>
    Then the API has processed 1 requests in all

    Examples:
      | kind         | how                        |
      | plain        | awaited                    |
      | plain        | synchronously              |
      | plain        | many at once               |
      | plain        | many at once synchronously |
      | asynchronous | awaited                    |
      | asynchronous | synchronously              |

  Scenario: A live answer that middleware does not give back in time is lost, which the error says
    Given an API
    And a plain middleware which never returns from after_response
    And a live provider that has it, with a time-out of 0.3 seconds
    When "Hello" is asked in this way: awaited
    Then the middleware's error is a MiddlewareError of after_response
    And it says that the answer was paid for and is lost

  Scenario: An answer at which middleware fails is not paid for again
    Given an API
    And middleware that fails once at a response
    And a batch provider that has it
    When "Hello" is asked in this way: awaited
    Then the middleware's error is a MiddlewareError of after_response
    When "Hello" is asked in this way: awaited
    Then the API has processed 1 requests in all
    When "Hello" is asked in this way: awaited
    Then the API has processed 2 requests in all

  Scenario: A caller that leaves while middleware runs leaves the answer to the same call
    Given an API
    And a plain middleware which never returns from after_response
    And a batch provider that has it
    When "Hello" is asked in the background
    Then in the ledger the states of the requests come to be ["succeeded"]
    When the caller of "Hello" leaves
    And the middleware returns again, and "Hello" is asked once more, awaited
    Then the API has processed 1 requests in all

  Scenario: A request of which the API said no has reached its caller, middleware or not
    Given an API
    And the middleware "first" and "second", which add their names
    And a batch provider that has it
    When "[[sandbox:errored:invalid_request_error]]" is asked in this way: synchronously
    And "[[sandbox:errored:invalid_request_error]]" is asked in this way: synchronously
    Then the error is a BatchRequestError
    And the ledger holds 2 requests

  Scenario: Many calls share few threads, and those that never return hold up nobody
    Given an API
    And 2 threads for middleware
    And middleware that counts its threads, and never returns for "Hang"
    And a batch provider that has it, with a time-out of 0.3 seconds
    When the prompts are asked at once
      | prompt |
      | Hang 1 |
      | Hang 2 |
      | Hang 3 |
      | Go 1   |
      | Go 2   |
      | Go 3   |
      | Go 4   |
      | Go 5   |
      | Go 6   |
      | Go 7   |
      | Go 8   |
    Then 8 of them are answered, on at most 2 threads, and the others do not return

  Scenario: Middleware that asks another actor needs no thread that it holds itself
    Given an API
    And 1 threads for middleware
    And middleware that asks another actor that has middleware too
    And a batch provider that has it
    When "Hello" is asked in this way: synchronously
    Then the answer ends with "asked other"

  Scenario: After a fork the child has threads and a loop of its own
    Given an API
    Then a process that asks through middleware and forks is answered, and its child too

  Scenario: Without middleware there is no thread for it
    Given an API
    Then a process that asks without middleware has no thread for it

  Scenario: A context that a middleware sets comes back with each result, with and without a ledger
    Given an API
    When this program runs
      """
      class Sets(cb.Middleware):
          def before_request(self, actor, request):
              return cb.ActorRequest(request.prompt, context={"old": request.context})

      for kind in (cb.ClaudeBatchProvider, cb.ClaudeProvider):
          own = settings if kind is cb.ClaudeBatchProvider else {}
          stored = []
          with kind(middleware=[Sets()], post_process=stored.append, **own) as provider:
              actor = cb.Actor(asker, provider)
              prompts = ["one", "[[sandbox:errored:invalid_request_error]]"]
              requests = [cb.ActorRequest(prompt, context=7) for prompt in prompts]
              for result in actor.respond_all_sync(requests):
                  print(result.context, result.ok and result.response.context)
          print([result.context for result in stored])
      """
    Then the program has printed
      """
      {'old': 7} {'old': 7}
      {'old': 7} False
      [{'old': 7}, {'old': 7}]
      {'old': 7} {'old': 7}
      {'old': 7} False
      [{'old': 7}, {'old': 7}]
      """
