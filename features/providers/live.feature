@every_python
Feature: An actor without batch_processing is answered live
  Through the Messages API, at once, at the full price; against a real HTTP server.

  Background:
    Given a live server, and a live actor of model "claude-haiku-4-5"

  Scenario: a prompt is answered
    When the live actor is asked "Say hello"
    Then the live answer has text, its model is "claude-haiku-4-5-20251001", and it came from no batch
    And the live server was called once, with the version "2026-10-21", and sent
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "messages": [{"role": "user", "content": "Say hello"}]}
      """

  Scenario: without a running event loop the sync twin answers
    When the live actor is asked "Say hello" synchronously
    Then the live answer has text, its model is "claude-haiku-4-5-20251001", and it came from no batch

  Scenario: a provider is shared by event loops and threads, and its sync twins answer inside a loop
    Then live calls are answered as follows
      | where                                         | answers                                                                              |
      | synchronously inside a running event loop     | ["answer to p0", "answer to p1", "answer to p2"]                                     |
      | in threads, each with an event loop of its own | ["answer to p0", "answer to p1", "answer to p2", "answer to p3", "answer to p4", "answer to p5"] |

  Scenario: messages and raw params are taken as everywhere
    Then a live call ends as follows
      | request                                                                                                   | ends with | calls | prompt | model            |
      | {"messages": [{"role": "user", "content": "a"}]}                                                          | an answer | 1     | a      | claude-haiku-4-5 |
      | {"params": {"model": "claude-opus-4-6", "max_tokens": 5, "messages": [{"role": "user", "content": "b"}]}} | an answer | 1     | b      | claude-opus-4-6  |

  Scenario: sampling parameters and betas travel in the headers that they need
    Then a live call ends as follows
      | options                                | ends with | calls | version    | beta |
      | {"temperature": 0.5, "betas": ["b-1"]} | an answer | 1     | 2023-06-01 | b-1  |
      | {}                                     | an answer | 1     | 2026-10-21 |      |

  Scenario: a provider's default options fill what the actor leaves open
    Given a live provider with {"default_options": {"max_tokens": 7, "temperature": 0.1}}
    When the live actor is asked "Say hello"
    Then the live server was called once, with the version "2023-06-01", and sent
      """
      {"model": "claude-haiku-4-5", "max_tokens": 7, "temperature": 0.1, "messages": [{"role": "user", "content": "Say hello"}]}
      """

  Scenario: a budget of the environment, which no live provider has, is reported
    Given a command's environment has CLAUDE_BATCH_BUDGET_USD = 0.01
    And a command's environment has CLAUDE_BATCH_DAILY_BUDGET_USD = 1
    And a program that logs
    And a live provider with {}
    When the live actor is asked "Say hello"
    Then the log has 1 line that says "CLAUDE_BATCH_BUDGET_USD and CLAUDE_BATCH_DAILY_BUDGET_USD: not applied to ClaudeProvider"

  Scenario Outline: many are answered, with position and key, failures beside successes: <how>
    Then many calls are made live as follows
      | prompts                                    | how   | answered | complete | errors                                                        | keys                                         |
      | [0, 1, 2, 3, {"prompt": "", "id": "x"}, 5] | <how> | 5        | yes      | ["request 'x': the prompt is empty"] | ["k0", "k1", "k2", "k3", "x", "k5"] |
      | [0, 1, ""]                                 | <how> | 2        | yes      | ["the prompt is empty"]                                       | ["k0", "k1", null]                           |
      | [0, null, 2, 7]                            | <how> | 3        | yes      | ["a request must be a text, an ActorRequest or a mapping, not None"] | ["k0", null, "k2", "k3"] |

    Examples:
      | how                                  |
      | in order                             |
      | as completed                         |
      | synchronously in order               |
      | synchronously as completed           |
      | from an async iterable in order      |
      | from an async iterable synchronously |

  Scenario: results come in the order of the requests, also one that fails at once
    Then many calls are made live as follows
      | prompts            | how                                  | answered | in order |
      | [0, 1, 2, 3, "", 5] | in order                             | 5        | yes      |
      | [0, 1, 2, 3, "", 5] | synchronously in order               | 5        | yes      |
      | [0, 1, 2, 3, "", 5] | from an async iterable in order      | 5        | yes      |
      | [0, 1, 2, 3, "", 5] | from an async iterable synchronously | 5        | yes      |

  Scenario: no more than concurrency requests are read ahead or under way
    Given a live provider with {"concurrency": 3}
    And the live server takes 20 ms to answer
    Then many calls are made live as follows
      | prompts | how                        | answered | most outstanding |
      | 30      | in order                   | 30       | 3                |
      | 30      | as completed               | 30       | 3                |
      | 30      | synchronously in order     | 30       | 3                |
      | 30      | synchronously as completed | 30       | 3                |
    And many calls are made live as follows
      | prompts | how                   | answered | most at the server |
      | 12      | in calls of their own | 12       | 3                  |

  Scenario Outline: as completed, a quick answer does not wait for a slow one: <how>
    Given the live server answers the first call with the fault {"type": "delay", "seconds": 1.0}
    Then many calls are made live as follows
      | prompts | how   | answered | first within 0.8 s | last after 1 s |
      | 2       | <how> | 2        | yes                | yes            |

    Examples:
      | how                        |
      | as completed               |
      | synchronously as completed |

  Scenario: an answer does not wait for a request that is slow to come, and ending the iteration ends it
    Then many calls are made live as follows
      | prompts                          | how                             | stop | answered | source left |
      | "one, and then none for an hour" | from an async iterable in order | 1    | 1        | yes         |

  Scenario: ending the iteration cancels what is under way and reads no more
    Given the live server takes 20 ms to answer
    Then many calls are made live as follows
      | prompts | how                    | stop | answered | few read |
      | 1000    | in order               | 1    | 1        | yes      |
      | 1000    | as completed           | 1    | 1        | yes      |
      | 1000    | synchronously in order | 1    | 1        | yes      |

  Scenario: one prompt where many are expected is refused, and a fault of the caller's own iterable reaches the caller
    Then many calls are made live as follows
      | prompts                    | how                             | answered | error                                       |
      | "prompt"                   | in order                        |          | requests must be a list or another iterable |
      | "prompt"                   | synchronously in order          |          | requests must be a list or another iterable |
      | "a broken iterable"        | in order                        |          | the caller's own                            |
      | "a broken iterable"        | as completed                    |          | the caller's own                            |
      | "a broken iterable"        | synchronously in order          |          | the caller's own                            |
      | "one, and then a time-out" | from an async iterable in order |          | the caller's own time-out                   |

  Scenario Outline: answers under way are yielded before the exception of the caller's own iterable: <how>
    Given the live server takes 100 ms to answer
    Then what a broken iterable yielded is answered <how>, and then its exception is raised

    Examples:
      | how                                  |
      | in order                             |
      | as completed                         |
      | synchronously in order               |
      | from an async iterable in order      |
      | from an async iterable synchronously |

  Scenario: A fault of the account raises AccountHaltedError with its reason, and is not retried
    Then a live call ends as follows
      | each call meets                                                                                    | ends with          | reason      | error_type            | says         | calls |
      | {"type": "error", "status": 401}                                                                   | AccountHaltedError | credentials | authentication_error  | …request-id… | 1     |
      | {"type": "error", "status": 402}                                                                   | AccountHaltedError | billing     | billing_error         | …request-id… | 1     |
      | {"type": "error", "status": 403}                                                                   | AccountHaltedError | permission  | permission_error      | …request-id… | 1     |
      | {"type": "error", "status": 429, "details": {"error_code": "enforced_spend_limit_reached"}}        | AccountHaltedError | spend_limit | rate_limit_error      | …request-id… | 1     |
      | {"type": "error", "status": 400, "message": "You have reached your specified API usage limits. x"} | AccountHaltedError | spend_limit | invalid_request_error | …request-id… | 1     |
      | {"type": "error", "status": 400, "message": "Your credit balance is too low to access"}            | AccountHaltedError | billing     | invalid_request_error | …request-id… | 1     |

  Scenario: after a halt nothing more is sent, and every request that is left says why
    Given a live provider with {"concurrency": 2}
    And the live server answers with the fault {"type": "error", "status": 402}
    When the live actor is asked for all of 50 prompts in order
    Then all 50 live results are halted for "billing", and the server was called at most 2 times

  Scenario: Every other failure is a LiveRequestError that says what happened
    Then a live call ends as follows
      | settings           | each call meets                                          | ends with        | status | error_type            | says                           | calls | names the call |
      | {"max_retries": 0} | {"type": "error", "status": 529}                         | LiveRequestError | 529    | overloaded_error      | …529 overloaded_error…         | 1     | yes            |
      | {"max_retries": 0} | {"type": "error", "status": 400, "message": "bad thing"} | LiveRequestError | 400    | invalid_request_error | …bad thing…                    | 1     | yes            |
      | {"max_retries": 0} | {"type": "error", "status": 500, "json": false}          | LiveRequestError | 500    |                       | …500…                          | 1     | no             |
      | {"max_retries": 0} | {"type": "proxy_413"}                                    | LiveRequestError | 413    |                       | …Too Large…                    | 1     | no             |
      | {"max_retries": 0} | {"type": "html_200"}                                     | LiveRequestError | 200    |                       | …something that is not a Message… | 1     | no             |
      | {"max_retries": 0} | {"type": "drop_before"}                                  | LiveRequestError |        |                       | …no answer from http://127…    | 1     | no             |
      | {"max_retries": 0} | {"type": "drop_after"}                                   | LiveRequestError |        |                       | …no answer from http://127…    | 1     | no             |
      | {"max_retries": 0} | {"type": "error", "status": 429, "retry_after": 60}      | LiveRequestError | 429    | rate_limit_error      | …429…                          | 1     | yes            |

  Scenario: a failure of one request among many ends that one alone
    Given a live provider with {"max_retries": 0, "concurrency": 1}
    And the live server answers the first call with the fault {"type": "error", "status": 529}
    When the live actor is asked for all of 3 prompts in order
    Then the first of 3 live results failed with status 529, and the others have text

  Scenario: A call that may have been billed is not made again
    Then a live call ends as follows
      | settings           | each call meets                                     | ends with        | may_be_billed | says                                                           | calls |
      | {"max_retries": 2} | {"type": "error", "status": 408, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 409, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 500, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 502, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 503, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 504, "processed": true} | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "error", "status": 429, "json": false}     | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "drop_after"}                              | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |
      | {"max_retries": 2} | {"type": "html_200", "processed": true}             | LiveRequestError | yes           | …may have been processed and billed, so it was not retried… | 1     |

  Scenario: With live_retry always it is made again
    Then a live call ends as follows
      | environment                           | settings                 | the first call meets                                | ends with | calls |
      | {"CLAUDE_BATCH_LIVE_RETRY": "safe"}   | {"live_retry": "always"} | {"type": "error", "status": 500, "processed": true} | an answer | 2     |
      | {"CLAUDE_BATCH_LIVE_RETRY": "always"} |                          | {"type": "drop_after"}                              | an answer | 2     |
      | {"CLAUDE_BATCH_LIVE_RETRY": "always"} |                          | {"type": "error", "status": 429, "json": false}     | an answer | 2     |

  Scenario: A call that was certainly not processed is repeated
    Then a live call ends as follows
      | the first call meets                                                                                                            | ends with | calls |
      | {"type": "error", "status": 429, "retry_after": 0.01}                                                                           | an answer | 2     |
      | {"type": "error", "status": 529, "retry_after": 0.01}                                                                           | an answer | 2     |
      | {"type": "error", "status": 400, "message": "The request timed out while trying to download the file. Please try again later."} | an answer | 2     |

  Scenario: of many calls only the one that may have been billed fails
    Given a live provider with {"concurrency": 1}
    And the live server answers the first call with the fault {"type": "error", "status": 500, "processed": true}
    When the live actor is asked for all of 3 prompts in order
    Then the first of 3 live results failed with status 500, and the others have text

  Scenario: A chat model has the provider's server and key, and LangChain's retries ask nothing again that may have been billed
    Then a live chat model is made as follows
      | settings                 | arguments                               | max retries | temperature | max tokens | key    |
      | {}                       | {"temperature": 0.5, "max_tokens": 3} | 0           | 0.5         | 3          | k-live |
      | {}                       | {"max_retries": 4}                      | 4           |             | 64000      | k-live |
      | {"live_retry": "always"} | {}                                      | 2           |             | 64000      | k-live |

  Scenario: A silent server, and one that cannot be reached, is one clear message
    Then a live call ends as follows
      | settings                                             | each call meets                | ends with        | status | says                                |
      | {"max_retries": 0, "timeout": "300ms"}               | {"type": "hang", "seconds": 5} | LiveRequestError |        | …ReadTimeout…                       |
      | {"max_retries": 0, "base_url": "http://127.0.0.1:9"} |                                | LiveRequestError |        | …no answer from http://127.0.0.1:9… |
    And a live call ends as follows
      | settings                                        | ends with               | says                                                |
      | {"max_retries": 0, "base_url": "http://x:port"} | ActorConfigurationError | the base URL cannot be used: Invalid port: 'port';… |
      | {"max_retries": 0, "base_url": "nonsense"}      | ActorConfigurationError | …an API's URL begins with http:// or https://…      |

  Scenario: A call may be silent for as long as its answer may take
    Then a live call may be silent as follows
      | model            | max_tokens | seconds |
      | claude-haiku-4-5 | 4096       | 600     |
      | claude-haiku-4-5 | 64000      | 1800    |
      | claude-opus-5-5  | 128000     | 3600    |

  Scenario: A request that the live API would refuse is refused before anything is sent; rules of batches do not hold
    Then a live call ends as follows
      | options               | ends with           | says                      | calls |
      | {"stream": true}      | InvalidRequestError | …`stream: true` is not sup… | 0     |
      | {"speed": "standard"} | an answer           |                           | 1     |

  Scenario: A key that is missing or cannot be one halts at once, and so do credentials that the SDK cannot load
    Then a live call ends as follows
      | settings | environment | ends with | reason | says | calls |
      | {"api_key": null} |  | AccountHaltedError | credentials | …no API key: set ANTHROPIC_API_KEY… | 0 |
      | {"api_key": null, "api_key_env": "NO_SUCH_KEY"} |  | AccountHaltedError | credentials | …the variable NO_SUCH_KEY is not set… | 0 |
      | {"api_key": "secret\nkey"} |  | AccountHaltedError | credentials | …such as a space, a line break… | 0 |
      | {"api_key": "secret key"} |  | AccountHaltedError | credentials | …such as a space, a line break… | 0 |
      | {"api_key": null} | {"ANTHROPIC_PROFILE": "nobodys", "ANTHROPIC_FEDERATION_RULE_ID": "r", "ANTHROPIC_ORGANIZATION_ID": "o"} | AccountHaltedError | credentials | …(profile 'nobodys')… | 0 |
      | {"api_key": null} | {"ANTHROPIC_IDENTITY_TOKEN_FILE": "/nowhere", "ANTHROPIC_FEDERATION_RULE_ID": "r", "ANTHROPIC_ORGANIZATION_ID": "o"} | AccountHaltedError | credentials | …Identity token file not found… | 0 |

  Scenario: The key may come from a variable of another name, and the server from CLAUDE_BATCH_BASE_URL
    Then a live call ends as follows
      | settings                                   | environment                             | ends with | calls |
      | {"api_key": null, "api_key_env": "MY_KEY"} | {"MY_KEY": "k-1"}                       | an answer | 1     |
      | {"base_url": null}                         | {"CLAUDE_BATCH_BASE_URL": "the server"} | an answer | 1     |

  Scenario: a closed provider says so, and may be closed again
    When the live provider is used and closed, in every way
    Then the live call failed as ActorConfigurationError with the words "the provider is closed; create a new one"

  Scenario Outline: closing ends the calls that wait, and tells them why
    Given the live server answers with the fault {"type": "hang", "seconds": 5}
    When a live call that waits <how> is ended by closing the provider
    Then the live call failed as EngineStoppedError with the words "the provider was closed while it waited"

    Examples:
      | how            |
      | asynchronously |
      | synchronously  |

  Scenario Outline: <event> ends the call alone, and the provider goes on
    Given the live server answers with the fault {"type": "hang", "seconds": 5}
    When a live call that waits <how> is ended by <event>
    Then the live call failed as <error> with the words ""
    When the API has no faults any more
    And the live actor is asked "again"
    Then the live answer's fields are
      | field | value             |
      | text  | "answer to again" |

    Examples:
      | event               | how            | error             |
      | cancelling it       | asynchronously | CancelledError    |
      | Ctrl-C              | synchronously  | KeyboardInterrupt |
      | Ctrl-C as it begins | synchronously  | KeyboardInterrupt |

  Scenario: a call that is cancelled before its provider is closed logs no error
    Given the live server answers with the fault {"type": "hang", "seconds": 5}
    When a live call that waits asynchronously is ended by cancelling it and closing the provider
    Then the live call failed as CancelledError with the words ""
    And the log has 0 line that says "never retrieved"

  Scenario: after a fork the child opens its own connections
    When the live actor is asked "Say hello"
    Then a forked child of the live provider is answered too

  Scenario Outline: calls keep to the limits that the API tells of, whoever makes them
    Given the API has the faults
      """
      {"rate_limits": {"requests": 600, "requests_left": 10}}
      """
    When 2 live providers with the same key are asked for all of 15 prompts each <how>
    Then all live results have text, and the live server has refused at most <refused> calls

    Examples:
      | how     | refused |
      | in turn | 0       |
      | at once | 8       |

  Scenario: a 429 is waited out by all, as long as it says, whatever max_retries is
    Given a live provider with {"concurrency": 4, "max_retries": 1}
    And the live server answers the first 4 calls with the fault {"type": "error", "status": 429, "retry_after": 0.3}
    When the live actor is asked for all of 8 prompts in order
    Then all live results have text, and the live server has refused at most 4 calls
    And no live call came within 0.25 seconds of the last refusal

  Scenario: A 429 that does not pass is given up when the patience for it ends
    Then a live call ends as follows
      | settings                   | each call meets                                      | ends with        | says                   | calls |
      | {"refusal_patience": "1s"} | {"type": "error", "status": 429, "retry_after": 1.2} | LiveRequestError | …429 rate_limit_error… | 2     |

  Scenario: an answer that trickles for ever ends when its time is over
    Given a server that sends a byte of its answer now and then
    When the live actor is asked "Say hello"
    Then the live call failed as LiveRequestError with the words "the answer took longer than 0.2 s"
