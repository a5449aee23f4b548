Feature: Live calls of the ledger are made once, and survive the process

  Scenario Outline: a run of mode live is answered live, and durable as any other
    Given an API
    And a batch provider with {"mode": "live"}
    When a run of 12 prompts is submitted
    And the results are read <how>
    Then there are 12 results, each once
    And 0 answers came from batches and 12 live, each paid once
    And the API has seen 0 batches

    Examples:
      | how          |
      | in order     |
      | as they come |

  Scenario: single calls of mode live do not linger
    Given an API
    And a batch provider with {"mode": "live", "linger": "30s"}
    When 5 prompts are asked at once
    Then all 5 are answered
    And 5 calls were paid for live, none twice

  Scenario Outline: a run of mode auto goes live where it is small
    Given an API
    And a batch provider with {"mode": "auto", "auto_threshold": 5}
    When a run of <count> prompts is submitted
    And the results are read in order
    Then <batch> answers came from batches and <live> live, each paid once

    Examples:
      | count | batch | live |
      | 5     | 0     | 5    |
      | 6     | 6     | 0    |

  Scenario Outline: single calls of mode auto go live where few wait when their linger ends
    Given an API
    And a batch provider with {"mode": "auto", "auto_threshold": 5, "linger": "500ms"}
    When <count> prompts are asked at once
    Then all <count> are answered
    And <live> calls were paid for live, none twice

    Examples:
      | count | live |
      | 5     | 5    |
      | 6     | 0    |

  Scenario: Whether a lane goes live is a rule that can be read
    Then waiting requests go live as follows
      | waiting | runs                        | live |
      | 5       | calls auto 5                | yes  |
      | 6       | calls auto 5                | no   |
      | 5       | calls batch 5               | no   |
      | 5       | calls auto 5, calls auto 4  | no   |
      | 5       | calls auto 5, calls batch 5 | no   |
      | 2       | run auto 5 of 100           | no   |
      | 2       | run auto 5 of 5             | yes  |
      | 0       | no run                      | no   |

  Scenario Outline: what the end of a call means
    Given an API
    And the API answers live calls with <fault>
    And a batch provider with {"mode": "live", "max_attempts": 2}
    When "hello" is asked with the key "k"
    Then <end>
    And the API got <calls> live calls, and was paid <paid> times

    Examples:
      | fault | end | calls | paid |
      | the first {"type": "error", "status": 429, "retry_after": 0.1} | the call is answered live | 2 | 1 |
      | the first {"type": "error", "status": 529, "retry_after": 0.1} | the call is answered live | 2 | 1 |
      | the first {"type": "error", "status": 400, "message": "The request timed out while trying to download the file. Please try again later."} | the call is answered live | 2 | 1 |
      | each {"type": "error", "status": 400, "message": "The request timed out while trying to download the file. Please try again later."} | outcome 1 is a BatchRequestError that was errored with invalid_request_error | 2 | 0 |
      | each {"type": "error", "status": 400, "message": "bad thing"} | outcome 1 is a BatchRequestError that was errored with invalid_request_error | 1 | 0 |
      | each {"type": "error", "status": 402, "details": {"error_code": "linked_organization_spend_limit_reached"}} | outcome 1 is a BatchRequestError that was errored with billing_error | 1 | 0 |
      | each {"type": "error", "status": 403, "details": {"error_code": "user_profile_not_billable"}} | outcome 1 is a BatchRequestError that was errored with permission_error | 1 | 0 |
      | each {"type": "proxy_413"} | outcome 1 is a BatchRequestError that was errored with http_413 | 1 | 0 |
      | each {"type": "drop_after"} | the call may have been paid for | 1 | 1 |
      | each {"type": "html_200", "processed": true} | the call may have been paid for | 1 | 1 |
      | each {"type": "error", "status": 502, "json": false} | the call may have been paid for | 1 | 0 |
      | each {"type": "error", "status": 429, "json": false} | the call may have been paid for | 1 | 0 |

  Scenario Outline: live calls that the API does not answer count as an outage of a service: <words>
    Given an API
    And the API answers live calls with each <fault>
    And a batch provider with {"mode": "live"}
    When "hello" is asked with the key "k"
    Then the call may have been paid for
    And the provider notes an outage: <words>

    Examples:
      | fault                                          | words                                |
      | {"type": "error", "status": 502, "json": false} | 502                                  |
      | {"type": "drop_after"}                         | disconnected                         |
      | {"type": "html_200", "processed": true}        | something that is not a Message      |

  Scenario Outline: an answer that does not prove that nothing was processed is not asked again: <status>
    Given an API
    And the API answers live calls with each {"type": "error", "status": <status>, "processed": <processed>}
    And a batch provider with {"mode": "live"}
    When "hello" is asked with the key "k"
    Then the call may have been paid for
    And the API got 1 live calls, and was paid <paid> times

    Examples:
      | status | processed | paid |
      | 405    | false     | 0    |
      | 408    | true      | 1    |
      | 409    | true      | 1    |
      | 422    | false     | 0    |
      | 500    | false     | 0    |
      | 500    | true      | 1    |
      | 502    | true      | 1    |
      | 503    | true      | 1    |
      | 504    | true      | 1    |

  Scenario: with live_retry always a passing error is asked again, paid for or not
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live", "live_retry": "always"}
    When "hello" is asked with the key "k"
    Then the call is answered live
    And the API got 2 live calls, and was paid 2 times
    And in the ledger the counts of results are [2]

  Scenario: with live_retry always a passing error is final after max_attempts, and a lost answer is lost
    Given an API
    And the API answers live calls with each {"type": "error", "status": 500}
    And a batch provider with {"mode": "live", "live_retry": "always", "max_attempts": 2}
    When "hello" is asked with the key "k"
    Then outcome 1 is a BatchRequestError that was errored with api_error
    And the API got 2 live calls, and was paid 0 times
    Given the API answers live calls with each {"type": "drop_after"}
    When "hello" is asked with the key "other"
    Then the call may have been paid for

  Scenario: what the API said of a call that may have been paid for is kept, and told
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live"}
    When a run of 1 prompts is stored at once
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    And the error is a SubmissionUnknownError that says
      """
      with an error: api_error: Internal server error (request-id req_sandbox_
      Send it again with: claude-batch unknown run-
      """
    When the run's lost requests are asked again
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And the API got 2 live calls, and was paid 2 times

  Scenario: the setting belongs to its run, and outlives the process
    Given an API
    And the API answers live calls with the first {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live", "live_retry": "always", "drive": false}
    When a run of 1 prompts is stored at once
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And the API got 2 live calls, and was paid 2 times

  Scenario: a server that fails is asked by one call at a time, so that few are lost
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "messages", "times": 9, "action": {"type": "error", "status": 500}}]}
      """
    And a batch provider with {"mode": "live", "live_concurrency": 8}
    When a run of 40 prompts is stored at once
    And the results are read in order
    Then 31 results are answers and 9 are errors
    And the API got 40 live calls, and was paid 31 times

  Scenario: what never left is no loss, and a missing key is the account's fault
    Then a live call without an answer is judged as follows
      | never left | no credential | withheld | outcome  | disposition | outage |
      | yes        | no            | no       | not_sent | retry       | yes    |
      | yes        | no            | yes      | not_sent | retry       | no     |
      | yes        | yes           | no       | not_sent | account     | yes    |
      | no         | no            | no       | missing  | final       | yes    |

  Scenario: where another copy of the ledger sends meanwhile no call leaves
    Given an API
    And a batch provider with {"mode": "live"}
    When another copy of the ledger has sent as much, and a run of 3 prompts is stored at once
    Then the run's state becomes halted
    And the status shows 3 requests queued
    And the API got 0 live calls, and was paid 0 times

  Scenario: what may have been paid for is asked again only on explicit order
    Given an API
    And the API answers live calls with the first {"type": "drop_after"}
    And a batch provider with {"mode": "live"}
    When a run of 1 prompts is stored at once
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    And the API got 1 live calls, and was paid 1 times
    When the run's lost requests are asked again
    And the results are read in order
    Then there are 1 results in the order of the prompts
    And the API got 2 live calls, and was paid 2 times

  @file_ledger
  Scenario: an answer that is under way is stored before an error of the ledger ends the driver
    Given an API with {"live_latency": 1}
    When this program runs
      """
      import contextlib, os, sqlite3, time

      def states(sql):
          with contextlib.closing(sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"])) as ledger:
              ledger.execute(sql)
              ledger.commit()
              return [state for state, in ledger.execute("SELECT state FROM requests ORDER BY seq")]

      with cb.ClaudeBatchProvider(**settings, mode="live") as provider:
          provider.store(asker, ["one"])
          while states("SELECT 1") != ["packed"]:
              time.sleep(0.02)
          states(
              "CREATE TRIGGER full BEFORE UPDATE OF state ON requests WHEN NEW.state = 'packed' "
              "BEGIN SELECT RAISE(FAIL, 'disk is full'); END"
          )
          try:
              provider.store(asker, ["two"]).wait_sync()
          except cb.LedgerError as error:
              print("disk is full" in str(error))
          print(states("DROP TRIGGER full"))
      """
    Then the program has printed
      """
      True
      ['succeeded', 'queued']
      """

  Scenario: an account that has run dry halts live calls, and one call probes it
    Given an API
    And the API answers live calls with each {"type": "error", "status": 402}
    And a batch provider with {"mode": "live", "probe_interval": "200ms"}
    When a run of 5 prompts is stored at once
    Then the run's state becomes halted
    When the API has no faults any more
    And the run is finished at last
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And 5 calls were paid for live, none twice

  Scenario: an answer to a call that was sent before a halt does not lift it
    Given an API with {"live_latency": 1}
    And the API answers live calls with the first {"type": "error", "status": 402}
    And a batch provider with {"mode": "live", "live_concurrency": 3}
    When a run of 6 prompts is stored at once
    Then in the ledger the sorted states of all requests come to be ["queued", "queued", "queued", "queued", "succeeded", "succeeded"]
    And the run's state becomes halted
    And the API got 3 live calls, and was paid 2 times
    When the provider resumes
    And the results are read in order
    Then there are 6 results in the order of the prompts
    And 6 calls were paid for live, none twice

  Scenario: limits that the API tells of are kept to
    Given an API
    And the API has the faults
      """
      {"rate_limits": {"requests": 1200, "requests_left": 10}}
      """
    And a batch provider with {"mode": "live", "live_concurrency": 4}
    When a run of 30 prompts is submitted
    And the results are read in order
    Then there are 30 results in the order of the prompts
    And the API got 30 live calls, and was paid 30 times

  Scenario Outline: a process that dies with calls under way asks nothing twice
    Given an API
    When a process with {"mode": "live", "live_concurrency": 2} asks a run of 6 prompts, and dies at <point>
    And this process opens that run
    And the results are read in order
    Then no request was paid for twice, and <lost> of 6 are lost

    Examples:
      | point             | lost         |
      | after_live_claim  | some         |
      | after_live_answer | some         |
      | after_live_record | none or some |

  @file_ledger
  @file_ledger
  Scenario: calls that were under way when their process died are reported before any process drives
    Given an API
    When a process with {"mode": "live", "live_concurrency": 2} asks a run of 6 prompts, and dies at after_live_claim
    And a command runs: status RUN --json
    Then the command line's status as JSON has
      | field       | value |
      | waiting_for | "2 live calls may have been billed when the process ended; see `claude-batch unknown`; no process drives it; continue with `claude-batch resume`" |
    When a command runs: unknown RUN
    Then the command line prints
      """
      2 requests: its process ended during live calls
      """
    When a command runs: unknown RUN --resubmit
    Then the command line says
      """
      2 requests of RUN queued again
      """
    When a command runs: unknown RUN
    Then the command line prints
      """
      no requests are unknown
      """
    When this process opens that run
    And the results are read in order
    Then 6 results are answers and 0 are errors
    And the API's fields are
      | field                                | value |
      | billing_summary.paid_more_than_once | 0     |

  Scenario: a run that is cancelled while its calls wait keeps what was answered
    Given an API
    And the API has the faults
      """
      {"rate_limits": {"requests": 60, "requests_left": 2}}
      """
    And a batch provider with {"mode": "live", "live_concurrency": 1}
    When a run of 6 prompts is stored at once
    Then the status shows 2 requests succeeded
    When the run is cancelled
    And the results are read in order
    Then some of the 6 requests are answered and paid for once, and the others are canceled at no cost

  Scenario: a live run that has all the calls that it may have holds up no other one
    Given an API with {"live_latency": 2}
    And a batch provider with {"mode": "live", "live_concurrency": 1}
    When a run of 20 prompts is stored at once
    Given a batch provider with {"mode": "live"}
    When "hello" is asked with the key "k"
    Then all 1 are answered
    And the run's fields are
      | field           | value |
      | status.finished | false |

  Scenario: a live run with few calls at once goes on beside a later one with many
    Given an API with {"live_latency": 0.3}
    And a batch provider with {"mode": "live", "live_concurrency": 2}
    When a run of 24 prompts is stored at once
    Given a batch provider with {"mode": "live"}
    When 100 prompts are asked at once
    Then all 100 are answered
    And the run's fields are
      | field           | value |
      | status.finished | true  |

  Scenario: a model of a live run that must wait delays no other model of it
    Given a command's API
    And the API has the faults
      """
      {"rules": [{"route": "messages", "nth": [1], "action": {"type": "error", "status": 429, "retry_after": 60}}]}
      """
    And a command's file "asks.jsonl"
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}}
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}}
      {"params": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "three"}]}}
      {"params": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "four"}]}}
      """
    When a command runs: run --model claude-haiku-4-5 --mode live --live-concurrency 1 asks.jsonl -o out.jsonl --max-wait 6s
    Then the command line exits with 3
    And in the ledger the states of the requests are ["queued", "queued", "succeeded", "succeeded"]

  Scenario: a model with as many live calls as it may have delays no other model of its run
    Given a command's API
    And the API has the faults
      """
      {"rules": [{"route": "messages", "nth": [1], "action": {"type": "delay", "seconds": 9}}]}
      """
    And a command's file "asks.jsonl"
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}}
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}]}}
      {"params": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "three"}]}}
      {"params": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "four"}]}}
      """
    When a command runs: run --model claude-haiku-4-5 --mode live --live-concurrency 1 asks.jsonl -o out.jsonl --max-wait 6s
    Then the command line exits with 3
    And in the ledger the states of the requests are ["succeeded", "queued", "succeeded", "succeeded"]

  Scenario: a disk that is full for a while loses no live answer
    Given a command's API
    And a command's file "asks.jsonl" of 3 prompts
    When a command's process meets a full disk for 1 second at after_live_answer: run actor.yaml asks.jsonl --mode live -o out.jsonl
    Then the command line exits with 0
    And the API got 3 live calls, and was paid 3 times

  Scenario: a process that was stopped before its calls left does not send them once another one drives
    Given an API
    And a batch provider with {"mode": "live", "arm_window": "100ms"}
    When at the point after_live_claim another process takes over
    And a run of 2 prompts is stored at once
    Then in the ledger the states of the requests come to be ["lost", "lost"]
    When 1 seconds pass
    Then 0 calls were paid for live, none twice

  Scenario: a process that is slow to send its calls sends them while no other one drives
    Given an API
    And a batch provider with {"mode": "live", "arm_window": "100ms"}
    When at the point after_live_claim the disk has taken 0.3 seconds
    And a run of 2 prompts is stored at once
    And the results are read in order
    Then 0 answers came from batches and 2 live, each paid once

  Scenario: a key that is refused for a batch halts sending once the live calls in progress are answered
    Given an API with {"live_latency": 2}
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 401}}]}
      """
    And a batch provider with {"mode": "live"}
    When a run of 3 prompts is stored at once
    Then in the ledger the states of the requests come to be ["packed", "packed", "packed"]
    Given a batch provider
    When a run of 1 prompts is stored at once
    Then the run's state becomes halted
    And in the ledger the states of the requests come to be ["succeeded", "succeeded", "succeeded", "packed"]
    And 3 calls were paid for live, none twice

  Scenario: without a driving process live calls are made pass by pass
    Given an API
    And a batch provider with {"mode": "live", "drive": false}
    When a run of 4 prompts is stored at once
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then 0 answers came from batches and 4 live, each paid once

  Scenario: equal requests of a live run are asked once
    Given an API
    And a batch provider with {"mode": "live", "dedupe": true}
    When a run of these prompts is submitted
      | prompt |
      | same   |
      | same   |
      | other  |
    And the results are read in order
    Then 3 results are answers and 0 are errors
    And 2 calls were paid for live, none twice

  Scenario: a live run that the API turns away says why it waits, until a call is answered
    Given an API
    And the API answers the first 2 live calls with {"type": "error", "status": 529, "retry_after": 3}
    And a batch provider with {"mode": "live"}
    When a run of 2 prompts is stored at once
    Then the status says "the last live call was not answered: 529 overloaded_error: Overloaded"
    When the results are read in order
    Then there are 2 results in the order of the prompts
    And in the ledger the notes of the batches come to be [null]

  Scenario Outline: a live run that the API turns away until max_wait ends with the reason, and the pause: <seconds>
    Given an API
    And the API answers live calls with each {"type": "error", "status": 529, "retry_after": <seconds>}
    And a batch provider with {"mode": "live", "max_wait": 1}
    When a run of 2 prompts is stored at once
    And the run is waited for
    Then the error is a BatchTimeoutError that says
      """
      (the last live call was not answered: 529 overloaded_error: Overloaded
      ; live calls to this model pause for <pause>
      """

    Examples:
      | seconds | pause |
      | 3       | 3s    |
      | 60000   | 1h    |

  Scenario: a live call that the API turns away until max_wait ends with the reason
    Given an API
    And the API answers live calls with each {"type": "error", "status": 529, "retry_after": 3}
    And a batch provider with {"mode": "live", "max_wait": 1}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And the error is a BatchTimeoutError that says
      """
      (the last live call was not answered: 529 overloaded_error: Overloaded
      """

  Scenario: A lost call that its caller had cancelled is made again on order
    Given an API with {"live_latency": 4}
    And the API has the faults
      """
      {"rules": [{"route": "messages", "nth": [1], "action": {"type": "error", "status": 500, "processed": true}}]}
      """
    And a batch provider with {"mode": "live", "max_wait": 2, "on_timeout": "cancel"}
    When "hello" is asked with the key "greeting"
    Then every call fails with BatchTimeoutError
    And in the ledger the states of the requests come to be ["lost"]
    And "claude-batch unknown <its id> --resubmit" exits with 0 and says "1 request of"
    And in the ledger the states of the requests come to be ["succeeded"]
