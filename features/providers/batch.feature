@every_python @long
Feature: ClaudeBatchProvider answers single calls from shared batches

  Scenario: 2,000 concurrent calls make one batch
    Given an API
    And a batch provider with {"linger": 3}
    When 2000 prompts are asked at once
    Then all 2000 are answered
    And the API has seen 1 batch
    And the API has processed 2000 requests, none twice

  Scenario Outline: Calls that keep arriving share a batch, up to max_linger: <max_linger>
    Given an API
    And a batch provider with {"linger": 1, "max_linger": <max_linger>}
    When 50 prompts are asked, one every 0.1 seconds
    Then all 50 are answered
    And the API <batches>

    Examples:
      | max_linger | batches                                                      |
      | 30         | has seen 1 batch                                             |
      | 1.5        | was called at least 2 times by POST /v1/messages/batches |

  Scenario: As many calls as fit into a batch are packed at once
    Given an API
    And a batch provider with {"linger": 600, "max_requests": 4}
    When 8 prompts are asked at once
    Then all 8 are answered
    And the API has seen 2 batches

  Scenario: Calls of several threads and event loops share a batch
    Given an API
    And a batch provider with {"linger": 1}
    When 20 prompts are asked by each of 4 threads with loops of their own
    Then all 80 are answered
    And the API has seen 1 batch

  Scenario: A synchronous call works inside a running event loop
    Given an API
    And a batch provider
    When "Hello" is asked in this way: synchronously inside a running event loop
    Then the API was asked "Hello"

  Scenario: Failures come back beside successes, in the API's own words
    Given an API
    And a batch provider with {"max_attempts": 1}
    When the prompts are asked at once
      | prompt                                          |
      | good                                            |
      | [[sandbox:errored:invalid_request_error]] bad   |
      | [[sandbox:expired]] late                        |
      | [[sandbox:canceled]] gone                       |
      | [[sandbox:errored:overloaded_error]] busy       |
    Then outcome 1 is an answer
    And outcome 2 is a BatchRequestError that was errored with invalid_request_error
    And outcome 3 is a BatchRequestError that was expired with None
    And outcome 4 is a BatchRequestError that was canceled with None
    And outcome 5 is a BatchRequestError that was errored with overloaded_error

  Scenario: The error of a single call names the call, which has no position for its caller
    Given an API
    And a batch provider
    When the actor is asked in vain: "[[sandbox:errored:invalid_request_error]] bad"
    Then the error is a BatchRequestError that says
      """
      the call in batch msgbatch_
      """

  Scenario: Passing failures are tried again in a next batch, others are not
    Given an API
    And a batch provider
    When the prompts are asked at once
      | prompt                                             |
      | [[sandbox:errored:overloaded_error:once]] busy     |
      | [[sandbox:expired:once]] late                      |
      | [[sandbox:errored:invalid_request_error:once]] bad |
    Then outcome 1 is an answer
    And outcome 2 is an answer
    And outcome 3 is a BatchRequestError that was errored with invalid_request_error
    And the API has seen 2 batches

  Scenario: max_attempts ends the tries
    Given an API
    And a batch provider with {"max_attempts": 2}
    When the prompts are asked at once
      | prompt                                    |
      | [[sandbox:errored:overloaded_error]] busy |
    Then outcome 1 is a BatchRequestError that was errored with overloaded_error
    And the API has seen 2 batches

  Scenario: A call with the key of an earlier one joins it, at no cost
    Given an API
    And a batch provider
    When "what?" is asked with the key "k1"
    And "what?" is asked with the key "k1"
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario Outline: <what> under the same key is an error
    Given an API
    And a batch provider
    When "what?" is asked with the key "k1" and {"betas": ["b-1", "a-1"]}
    And "what?" is asked with the key "k1" and {"betas": ["a-1", "b-1"]}
    Then all 1 are answered
    When "<prompt>" is asked with the key "k1" and <options>
    Then every call fails with KeyConflictError
    And the API has processed 1 requests, none twice

    Examples:
      | what                 | prompt          | options                                              |
      | Another prompt       | something else? | {"betas": ["a-1", "b-1"]}                            |
      | Another beta         | what?           | {"betas": ["a-1"]}                                   |
      | Another user profile | what?           | {"betas": ["a-1", "b-1"], "user_profile_id": "up_1"} |

  Scenario: A caller that leaves once its request is sent leaves it to be answered
    Given an API
    And a batch provider
    When "given up" is asked in the background
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the caller of "given up" leaves
    Then in the ledger the states of the requests come to be ["succeeded"]

  Scenario: max_wait ends the wait, and the request stays
    Given an API that takes 30 seconds for a batch
    And a batch provider with {"max_wait": 6}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And the error names the run and its batch

  Scenario: A wrong key ends waiting calls at once, and nothing is marked failed
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    When 3 prompts are asked at once
    Then every call fails with AccountHaltedError

  Scenario: A billing error on create halts sending
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then every call fails with AccountHaltedError
    And the error is a AccountHaltedError that says
      """
      billing
      Nothing was marked failed: every request of run-
      stays queued. Fix the cause, then run `claude-batch resume run-
      """

  Scenario: Low credit on single lines returns them to the queue and halts
    Given an API
    And the API has the faults
      """
      {"requests": [{"contains": "prompt", "outcome": "errored",
        "error": {"type": "invalid_request_error",
                  "message": "Your credit balance is too low to access the API."}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then every call fails with AccountHaltedError

  Scenario: A closed provider raises an error that names the cause
    Given an API
    And a batch provider
    When the provider is closed
    And "late" is asked with the key "k"
    Then every call fails with ActorConfigurationError

  Scenario: Two processes share a ledger, and one drives
    Given an API
    And another process that drives the ledger
    And a batch provider
    When 2 prompts are asked at once
    Then all 2 are answered
    And the API has processed 2 requests, none twice
    And the other process still drives

  Scenario: The key is written nowhere
    Given an API
    And a batch provider
    When 3 prompts are asked at once
    Then all 3 are answered
    And the key is nowhere in the ledger's files

  Scenario: A refused key is not tried again and again
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    When 3 prompts are asked at once
    Then every call fails with AccountHaltedError
    When 1 seconds pass
    Then the API's fields are
      | field | value |
      | log.2 |       |

  Scenario: A key that is revoked after its successor was opened fails nothing that waits for the successor
    Given an API
    When this program runs
      """
      import threading, time
      from claude_batch.lifecycle import api_sessions
      from claude_batch.sandbox import SandboxServer

      api_sessions.TAKEOVER = 60
      may_lift_halt = api_sessions.ApiSession.may_lift_halt

      def may_lift_late(session, row, now):
          # A caller that has read the halt looks at the driver when that has taken over.
          is_engine = threading.current_thread().name == "claude-batch-engine"
          until = time.monotonic() + 5
          while row.halted and not is_engine and time.monotonic() < until:
              if session.driver.is_leader:
                  break
              time.sleep(0.01)
          return may_lift_halt(session, row, now)

      api_sessions.ApiSession.may_lift_halt = may_lift_late
      refused = {"type": "error", "status": 401, "error": "authentication_error"}
      revoked = {"spared_keys": ["sk-new"], "rules": [{"route": "any", "action": refused}]}

      async def main(api):
          own = {**settings, "base_url": api.url, "poll_interval": 1}
          old = cb.ClaudeBatchProvider(api_key="sk-old", **own)
          new = cb.ClaudeBatchProvider(api_key="sk-new", **own)
          asked = cb.Actor(asker, new).respond
          print((await cb.Actor(asker, old).respond("one")).stop_reason)
          print((await asked("two")).stop_reason)
          await old.aclose()
          calls = [asyncio.create_task(asked("three"))]
          await asyncio.sleep(1)
          api.set_faults(revoked)
          calls.append(asyncio.create_task(asked("four")))
          run = await cb.Actor(asker, new).submit(["six"])
          print((await run.wait()).state)
          print([answer.stop_reason for answer in await asyncio.gather(*calls)])
          api.set_faults({"rules": [{"route": "any", "action": refused}]})
          try:
              await asked("five")
          except cb.AccountHaltedError as error:
              print(error.reason)
          await new.aclose()

      with SandboxServer(latency=2) as api:
          asyncio.run(main(api))
      """
    Then the program has printed
      """
      end_turn
      end_turn
      finished
      ['end_turn', 'end_turn']
      credentials
      """

  Scenario: A key that is accepted after all lifts the halt
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    Then the run's state becomes halted
    When the API has no faults any more
    And the provider resumes
    And the results are read in order
    Then there are 1 results in the order of the prompts
