Feature: Functions of the user are called where they belong, and a fault in them loses nothing

  Scenario Outline: post_process receives each result before its caller: <provider>, <how>
    Given an API
    And <provider> whose post_process keeps results
    When the prompts "one, two, [[sandbox:errored]] three" are asked, <how>
    Then post_process has had 2 answers and 1 failures, each before its caller

    Examples:
      | provider         | how                |
      | a batch provider | one by one         |
      | a batch provider | one by one, synchronously |
      | a batch provider | together           |
      | a batch provider | together, synchronously |
      | a live provider  | one by one         |
      | a live provider  | one by one, synchronously |
      | a live provider  | together           |
      | a live provider  | together, synchronously |

  Scenario Outline: A post_process that <fault> changes no result: <provider>
    Given an API
    And <provider> whose post_process <fault>
    When the prompts "one, two" are asked, <how>
    Then 2 results are answers and 0 are errors
    And the log says "<words>"

    Examples:
      | provider         | fault               | how                     | words                                 |
      | a batch provider | exits               | together, synchronously | post_process failed for the result of |
      | a batch provider | exits on the loop   | together, synchronously | post_process failed for the result of |
      | a live provider  | exits on the loop   | together, synchronously | post_process failed for the result of |
      | a batch provider | raises              | together                | post_process failed for the result of |
      | a batch provider | hangs               | together                | post_process did not return within 0.2 s |
      | a batch provider | hangs on the loop   | together                | post_process did not return within 0.2 s |
      | a live provider  | raises              | together                | post_process failed for the result of |
      | a live provider  | hangs               | together                | post_process did not return within 0.2 s |

  Scenario Outline: An answer without the format that was asked for is one failure for post_process: <provider>, <how>
    Given an API
    And <provider> whose post_process keeps results
    When an answer in a format that it does not have is asked with the context "c", <how>
    Then post_process has had 0 answers and 1 failures, each before its caller
    And result 1 failed with OutputValidationError
    And the result's fields are
      | field   | value |
      | context | "c"   |

    Examples:
      | provider         | how                         |
      | a batch provider | awaited                     |
      | a batch provider | synchronously               |
      | a batch provider | awaited, for the call       |
      | a batch provider | synchronously, for the call |
      | a batch provider | together, for the call      |
      | a batch provider | together, synchronously     |
      | a live provider  | awaited                     |
      | a live provider  | synchronously, for the call |
      | a live provider  | together, for the call      |

  Scenario: post_process receives the positions of the input, although middleware refuses requests
    Given an API
    When this program runs
      """
      class Refuses(cb.Middleware):
          def before_request(self, actor, request):
              assert "refused" not in request.prompt
              return request

      stored = {}

      def store(result):
          stored.setdefault(result.position, result)

      async def ask(actor, prompts):
          return [result async for result in actor.respond_all(prompts, ordered=False)]

      fails = "[[sandbox:errored:invalid_request_error]]"
      prompts = ["refused 0", "one", "refused 2", fails, "four"]
      with cb.ClaudeBatchProvider(
          middleware=[Refuses()], post_process=store, **settings
      ) as provider:
          actor = cb.Actor(asker, provider)
          asyncio.run(ask(actor, prompts))
          for result in actor.respond_all_sync(prompts):
              same = stored[result.position]
              print(result.position, result.ok, str(result.error) == str(same.error))
      """
    Then the program has printed
      """
      0 False True
      1 True True
      2 False True
      3 False True
      4 True True
      """

  Scenario: An object that cannot be a post_process is refused
    Then providers are refused as follows
      | settings                      | error                                             |
      | {"post_process": 7}           | post_process: 7 is not callable                   |
      | {"post_process_timeout": "0"} | post_process_timeout: it must be more than 0      |
      | {"classify": "retry"}         | classify: 'retry' is not callable                 |
      | {"pace": 5}                   | pace: 5 is not callable                           |

  Scenario Outline: classify decides what an error in a batch's results means: <what>
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "two", "outcome": "errored", "once": true, "error": {"type": "<error>"}}]}
      """
    And a batch provider whose classify answers "<answer>", with {}
    When a run of these prompts is submitted
      | prompt |
      | one    |
      | two    |
    And the results are read in order
    Then <good> results are answers and <bad> are errors
    And classify was asked about <asked> errors
    And the API has processed <processed> requests, none paid twice

    Examples:
      | what                     | error                 | answer | good | bad | asked | processed |
      | a final error is retried | invalid_request_error | retry  | 2    | 0   | 1     | 3         |
      | a passing error is final | overloaded_error      | final  | 1    | 1   | 1     | 2         |
      | the default is kept      | overloaded_error      | none   | 2    | 0   | 1     | 3         |

  Scenario Outline: An error of the account halts sending, and fails nothing: <error>, <answer>, <mode>
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "two", "outcome": "errored", "once": true, "error": {"type": "<error>"}}]}
      """
    And a batch provider whose classify answers "<answer>", with {"mode": "<mode>"}
    When a run of these prompts is submitted
      | prompt |
      | one    |
      | two    |
    Then the run's state becomes halted
    And classify was asked about <asked> errors
    When the provider resumes
    And the results are read in order
    Then 2 results are answers and 0 are errors

    Examples:
      | error                 | answer  | mode  | asked |
      | invalid_request_error | account | batch | 1     |
      | billing_error         | final   | batch | 0     |
      | invalid_request_error | account | live  | 1     |

  Scenario Outline: A classify that <fault> leaves the decision to the default: <provider>
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "two", "outcome": "errored", "once": true, "error": {"type": "overloaded_error"}}],
       "rules": [{"route": "messages", "nth": [2], "action": {"type": "error", "status": 400, "message": "no"}}]}
      """
    And a <provider> provider whose classify <fault>, with {}
    When the prompts "one, two, three" are asked, together
    Then <good> results are answers and <bad> are errors
    And the log says "<words>"

    Examples:
      | provider | fault                  | good | bad | words                            |
      | batch    | raises                 | 3    | 0   | classify failed                  |
      | batch    | exits                  | 3    | 0   | classify failed                  |
      | batch    | hangs                  | 3    | 0   | classify did not return within   |
      | batch    | answers "maybe"        | 3    | 0   | which is neither retry nor final |
      | batch    | answers with nonsense  | 3    | 0   | the default is used              |
      | live     | raises                 | 2    | 1   | classify failed                  |
      | live     | hangs                  | 2    | 1   | classify did not return within   |

  Scenario Outline: No classify can have a call made again that may have been billed: <what>
    Given an API
    And the API answers live calls with each <fault>
    And a batch provider whose classify answers "retry", with {"mode": "live"}
    When "hello" is asked with the key "k"
    Then the call may have been paid for
    And the API got 1 live calls, and was paid <paid> times
    And classify was asked about 0 errors

    Examples:
      | what           | fault                                               | paid |
      | an error 500   | {"type": "error", "status": 500, "processed": true} | 1    |
      | a broken line  | {"type": "drop_after"}                              | 1    |
      | a gateway's    | {"type": "error", "status": 429, "json": false}     | 0    |

  Scenario: No classify can have a batch sent again that may have been accepted
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 500, "processed": true}}]}
      """
    And a batch provider whose classify answers "retry", with {"settling": 1}
    When a run of 2 prompts is stored at once
    And the results are read in order
    Then 2 results are answers and 0 are errors
    And classify was asked about 0 errors
    And the API has processed 2 requests, none paid twice

  Scenario Outline: classify decides about live calls for which nothing was billed: <answer>
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 400, "message": "bad thing"}
    And a <provider> provider whose classify answers "<answer>", with <settings>
    When the prompts "one" are asked, together
    Then <good> results are answers and <bad> are errors
    And classify was asked about 1 errors

    Examples:
      | provider | answer | settings         | good | bad |
      | batch    | retry  | {"mode": "live"} | 1    | 0   |
      | batch    | final  | {"mode": "live"} | 0    | 1   |
      | live     | retry  | {}               | 1    | 0   |
      | live     | final  | {}               | 0    | 1   |
      | live     | account | {}              | 0    | 1   |

  Scenario Outline: retry_on has further types of errors retried, in batches: <what>
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "two", "outcome": "errored", "once": <once>, "error": {"type": "<error>"}}]}
      """
    And a batch provider with {"retry_on": <retry_on>, "max_attempts": 2}
    When a run of these prompts is submitted
      | prompt |
      | one    |
      | two    |
    And the results are read in order
    Then <good> results are answers and <bad> are errors
    And the API has processed <processed> requests, none paid twice

    Examples:
      | what                   | error                 | once  | retry_on                                    | good | bad | processed |
      | a named type           | not_found_error       | true  | ["invalid_request_error","not_found_error"] | 2    | 0   | 3         |
      | a status               | invalid_request_error | true  | [400]                                       | 2    | 0   | 3         |
      | up to max_attempts     | invalid_request_error | false | "400"                                       | 1    | 1   | 3         |
      | another type           | invalid_request_error | true  | ["not_found_error"]                         | 1    | 1   | 2         |

  Scenario Outline: retry_on has live calls made again for which nothing was billed: <provider>, <retry_on>
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 400, "message": "bad thing"}
    And a <provider> provider whose classify answers "none", with <settings>
    When the prompts "one" are asked, together
    Then <good> results are answers and <bad> are errors

    Examples:
      | provider | settings                                                 | retry_on | good | bad |
      | batch    | {"mode": "live", "retry_on": "invalid_request_error"}    | 400      | 1    | 0   |
      | batch    | {"mode": "live", "retry_on": "not_found_error"}          | 404      | 0    | 1   |
      | live     | {"retry_on": [400]}                                      | 400      | 1    | 0   |
      | live     | {"retry_on": [404]}                                      | 404      | 0    | 1   |

  Scenario: No retry_on can have a call made again that may have been billed
    Given an API
    And the API answers live calls with each {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live", "retry_on": ["api_error", "invalid_request_error"]}
    When "hello" is asked with the key "k"
    Then the call may have been paid for
    And the API got 1 live calls, and was paid 1 times

  Scenario: An error of the account halts sending, whatever retry_on names
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "two", "outcome": "errored", "once": true, "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API"}}]}
      """
    And a batch provider with {"retry_on": [400]}
    When a run of 3 prompts is submitted
    And a run of these prompts is submitted
      | prompt |
      | two    |
    Then the run's state becomes halted

  Scenario Outline: pace decides how long live calls pause: <does>, <provider>
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 429, "retry_after": <asks>}
    And a <provider> provider whose pace <does>, with <settings>
    When the prompts "one" are asked, together
    Then 1 results are answers and 0 are errors
    And the second live call came after <least> to <most> seconds

    Examples:
      | provider | does           | asks | settings         | least | most |
      | batch    | answers 0.2    | 30   | {"mode": "live"} | 0.2   | 5    |
      | live     | answers 0.2    | 30   | {}               | 0.2   | 5    |
      | live     | answers 1.5    | 0.1  | {}               | 1.5   | 5    |
      | live     | raises         | 0.5  | {}               | 0.5   | 5    |
      | live     | hangs          | 0.5  | {}               | 0.5   | 5    |
      | live     | answers "soon" | 0.5  | {}               | 0.5   | 5    |
      | live     | answers -1     | 0.5  | {}               | 0.5   | 5    |

  Scenario: The pause that pace has decided is the one that is reported
    Given an API
    And the API answers live calls with each {"type": "error", "status": 429, "retry_after": 900}
    And a batch provider whose pace answers 5, with {"mode": "live", "max_wait": 1}
    When a run of 1 prompts is stored at once
    And the run is waited for
    Then the error is a BatchTimeoutError that says
      """
      ; live calls to this model pause for 5s
      """

  Scenario: Providers of one ledger share their functions
    Given an API
    And a batch provider whose classify answers "retry", with {}
    When 1 prompts are asked at once
    Given a batch provider whose classify answers "final", with {}
    When 1 prompts are asked at once
    Then every call fails with ActorConfigurationError
    And the error is a ActorConfigurationError that says
      """
      classify
      """
    Given a batch provider
    When 1 prompts are asked at once
    Then all 1 are answered
