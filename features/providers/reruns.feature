@long
Feature: A rerun asks again what failed for a passing reason, and says what is old

  Background:
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "prompt 1"
      "[[sandbox:errored:overloaded_error:once]] prompt 2"
      "[[sandbox:expired:once]] prompt 3"
      "[[sandbox:canceled:once]] prompt 4"
      "[[sandbox:errored:invalid_request_error]] prompt 5"
      """
    And a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1

  Scenario: The same command again asks what failed for a passing reason, and nothing else
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the output "out.jsonl" has the states succeeded, overloaded_error, expired, canceled, invalid_request_error
    And the command line does not say: from the ledger
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      RUN: 1 answer from the ledger (answered 20
       UTC), 3 failed requests are sent again (1 canceled, 1 expired, 1 overloaded_error), 1 failed request is not sent again (1 invalid_request_error)
      RUN finished: 1 errored, 4 succeeded of 5
      """
    And the command line does not say: is stored
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded, invalid_request_error
    And the output "out.jsonl" has the attempts 1, 2, 2, 2, 1
    And the API was asked for 5 and then 3 requests, and paid once for each of 4
    When a command runs: run actor.yaml asks.jsonl -o again.jsonl
    Then the command line exits with 1 and says
      """
      RUN has the same requests and is finished: 4 answers from the ledger (answered 20
       UTC), 1 failed request is not sent again (1 invalid_request_error); the answers are given again at no cost. To make a new run: --new (new=True)
      """
    And the files "out.jsonl" and "again.jsonl" are the same
    And the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: submit asks it again too, and resume does not
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: resume RUN
    Then the command line exits with 1
    And the API was asked for 5 requests, and paid once for each of 1
    When a command runs: submit actor.yaml asks.jsonl
    Then the command line exits with 0 and says
      """
      3 failed requests are sent again
      """
    When a command runs: resume RUN
    Then the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: Each rerun gives it all its attempts once more, and --new asks everything
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 2
    And a command's file "one.jsonl"
      """
      "[[sandbox:errored:overloaded_error]] in vain"
      """
    When a command runs: run actor.yaml one.jsonl -o out.jsonl
    And a command runs: run actor.yaml one.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      RUN: 0 answers from the ledger, 1 failed request is sent again (1 overloaded_error)
      """
    And the output "out.jsonl" has the attempts 4
    When a command runs: run actor.yaml one.jsonl -o out.jsonl --new
    Then the output "out.jsonl" has the attempts 2
    And the command line does not say: from the ledger

  Scenario: A rerun does not send a request again that may have been paid for, and says so
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the run's first request is lost
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      1 request may have been paid for and is not sent again (decide with: `claude-batch unknown RUN --resubmit`)
      """
    And the output "out.jsonl" has the states missing_result, succeeded, succeeded, succeeded, invalid_request_error
    And the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: A rerun of an unfinished run goes on with it, and names its unknown sendings
    Given the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 3600}}]}
      """
    And a command's environment has CLAUDE_BATCH_SETTLING = 1h
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5s
    Then the command line exits with 3 and says
      """
      RUN has the same requests and is unfinished, so it is continued: 0 answers from the ledger, 5 requests are open
      5 requests may have been paid for and are not sent again (decide with: `claude-batch unknown RUN --resubmit`)
      """
    And the API was asked for 5 requests, and paid once for each of 1

  Scenario: Requests that a rerun has queued outlive the process that asked for it
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a process reruns the requests of "asks.jsonl", and is killed when "after_stored" is reached
    And a command runs: status RUN
    Then the command line prints
      """
      RUN parked: 1 errored, 3 queued, 1 succeeded of 5
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the output "out.jsonl" has the attempts 1, 2, 2, 2, 1
    And the command line says
      """
      RUN has the same requests and is unfinished, so it is continued: 1 answer from the ledger
      """
    And the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: A process that dies before a rerun is written has changed nothing
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a process reruns the requests of "asks.jsonl", and is killed when "before_stored" is reached
    And a command runs: status RUN
    Then the command line prints
      """
      RUN finished: 1 canceled, 2 errored, 1 expired, 1 succeeded of 5
      """

  Scenario: Two processes that rerun at once ask once
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And two processes rerun at once: run actor.yaml asks.jsonl
    Then the output "one.jsonl" has the states succeeded, succeeded, succeeded, succeeded, invalid_request_error
    And the output "two.jsonl" has the states succeeded, succeeded, succeeded, succeeded, invalid_request_error
    And the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: A command whose run is asked again while it writes waits for it
    When at the point before_delivery a process reruns the requests of "asks.jsonl", and is killed when "after_stored" is reached
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded, invalid_request_error
    And the API was asked for 5 and then 3 requests, and paid once for each of 4

  Scenario: A cancelled run is taken up once its cancellation has ended, and keeps what it had
    Given a command's API with {"latency": 7200, "cancel_latency": 3600}
    And a command's file "asks.jsonl" of 4 prompts
    And a command's environment has CLAUDE_BATCH_MAX_REQUESTS = 2
    When a command runs: submit actor.yaml asks.jsonl
    And the API's clock goes 1 hours on
    And a command runs: cancel RUN
    And a command runs while the API's clock goes on by an hour at a time: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      RUN was cancelled, and 4 requests have not ended yet; when its batches have ended, the requests that did not run are sent again
      RUN: 2 answers from the ledger
      2 failed requests are sent again (2 canceled)
      """
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded
    And the API has been paid 4 times, never twice for the same

  Scenario: A cancellation that does not end in time leaves the run as it is
    Given a command's API with {"latency": 3600, "cancel_latency": 3600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: cancel RUN
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-wait 0.5s
    Then the command line exits with 3 and says
      """
      RUN was cancelled, and 2 requests have not ended
      """
    And the command line does not say: asked again (2 canceled)
    And the API was called 1 times by POST /v1/messages/batches

  Scenario: A run that was answered is given, though one that was asked anew was cancelled later
    Given a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: submit actor.yaml asks.jsonl --new
    And a command runs: cancel RUN
    And a command runs: run actor.yaml asks.jsonl -o again.jsonl
    Then the command line exits with 0 and says
      """
      has the same requests and is finished: 2 answers from the ledger
      """
    And the files "out.jsonl" and "again.jsonl" are the same

  Scenario: A rerun sends requests again that failed live
    Given a command's environment has CLAUDE_BATCH_MODE = live
    And a command's environment has CLAUDE_BATCH_LIVE_RETRY = always
    And a command's file "asks.jsonl"
      """
      "prompt 1"
      "[[sandbox:errored:api_error:once]] prompt 2"
      "[[sandbox:errored:invalid_request_error]] prompt 3"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the output "out.jsonl" has the states succeeded, api_error, invalid_request_error
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      RUN: 1 answer from the ledger
      1 failed request is sent again (1 api_error), 1 failed request is not sent again (1 invalid_request_error)
      """
    And the output "out.jsonl" has the states succeeded, succeeded, invalid_request_error

  Scenario Outline: From Python, <way> says what is old, and new=True asks everything
    When the requests of "asks.jsonl" are asked by <way>
    Then the results 2, 3, 4, 5 have failed, and none is reused
    When the requests of "asks.jsonl" are asked by <way>
    Then people are warned
      """
      : 1 answer from the ledger (answered 20
      3 failed requests are sent again (1 canceled, 1 expired, 1 overloaded_error)
      """
    And the result 5 has failed, and the results 1, 5 are reused
    When the requests of "asks.jsonl" are asked by <way>
    Then the result 5 has failed, and the results 1, 2, 3, 4, 5 are reused
    When the requests of "asks.jsonl" are asked anew by <way>
    Then the result 5 has failed, and none is reused

    Examples:
      | way                        |
      | respond_all, as they come  |
      | respond_all_sync           |
      | submit                     |
      | a block of Actor.run       |
      | a plain block of Actor.run |

  Scenario: A finished run without failures is logged, but not as a warning
    Given a command's file "asks.jsonl" of 2 prompts
    When the requests of "asks.jsonl" are asked by respond_all
    And the requests of "asks.jsonl" are asked by respond_all
    Then people are told
      """
      has the same requests and is finished: 2 answers from the ledger (answered 20
      the answers are given again at no cost. To make a new run: --new (new=True)
      """

  Scenario: A run that is opened by its id reuses nothing
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the run is opened from Python, and its failures but one are retried
    Then the result 5 has failed, and none is reused

  Scenario: The block has the run: its id, its progress, and new attempts
    When a block of Actor.run asks "asks.jsonl", and what failed is retried in it
    Then the result 5 has failed, and none is reused
    And the run's fields are
      | field         | value     |
      | status.label  | "a block" |
      | progress.done | 1.0       |
    And leaving a block by an exception cancels nothing

  Scenario Outline: An actor that is answered live keeps no runs, and asks anew anyway: <way>
    Given a live actor
    And a command's file "asks.jsonl"
      """
      "prompt 1"
      "[[sandbox:errored:invalid_request_error]] prompt 2"
      """
    When the requests of "asks.jsonl" are asked anew by <way>
    Then the result 2 has failed, and none is reused
    When the requests of "asks.jsonl" are asked by a plain block of Actor.run
    Then the error is a ActorConfigurationError that says
      """
      keeps no runs
      """

    Examples:
      | way              |
      | respond_all      |
      | respond_all_sync |

  Scenario: A call with a key that failed for a passing reason is asked again
    Given a program that logs
    And a batch provider with {"max_attempts": 1}
    When "prompt [[sandbox:errored:overloaded_error:once]]" is asked with the key "k"
    Then outcome 1 is a BatchRequestError that was errored with overloaded_error
    When "prompt [[sandbox:errored:overloaded_error:once]]" is asked with the key "k"
    Then outcome 1 is an answer
    And the API has processed 2 requests in all
    And the log has 1 line that says "1 call that failed before is sent again (1 overloaded_error)"
    When the prompt [[sandbox:errored:overloaded_error:once]] is asked by itself with the key "k"
    Then the answer's fields are
      | field  | value |
      | reused | true  |
    And the API has processed 2 requests in all

  Scenario: A call with a key that failed for good keeps its failure
    Given a batch provider with {"max_attempts": 1}
    When "[[sandbox:errored:invalid_request_error]] prompt" is asked with the key "k"
    And "[[sandbox:errored:invalid_request_error]] prompt" is asked with the key "k"
    Then outcome 1 is a BatchRequestError that was errored with invalid_request_error
    And the API has processed 1 requests in all

  Scenario: A call with a key that was withdrawn with its run is asked again
    Given a batch provider with {"linger": 2}
    When "prompt" is asked in the background with the key "k"
    Then in the ledger the states of the requests come to be ["queued"]
    When the ledger's last run is cancelled
    And the calls in the background have ended
    Then outcome 1 is a BatchRequestError that was canceled with None
    When "prompt" is asked with the key "k"
    Then outcome 1 is an answer
    And the API has processed 1 requests in all

  Scenario: While calls of its cancelled run have not ended, a call with a key keeps its failure
    Given a command's API with {"latency": 3600, "cancel_latency": 3600}
    And a batch provider with {"max_attempts": 1}
    When "[[sandbox:errored:overloaded_error]] prompt" is asked in the background with the key "k"
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the API's clock goes 1 hours on
    Then in the ledger the states of the requests come to be ["errored"]
    When "another" is asked in the background
    Then in the ledger the states of the batches come to be ["collected", "in_progress"]
    When the ledger's last run is cancelled
    And "[[sandbox:errored:overloaded_error]] prompt" is asked with the key "k"
    Then outcome 1 is a BatchRequestError that was errored with overloaded_error
    And the API has processed 1 requests in all

  Scenario: A call without a key that failed after its process had died is asked again
    When a process asks "[[sandbox:errored:overloaded_error:once]] lost" and is killed when "after_calls_stored" is reached
    And a batch provider is opened
    And the provider resumes
    Then in the ledger the states of the requests come to be ["errored"]
    When these prompts are asked: [[sandbox:errored:overloaded_error:once]] lost
    Then outcome 1 is an answer
    And the ledger holds 1 requests
    And the API has processed 2 requests in all

  Scenario: Observers are notified of requests that are sent again
    Given an observer that remembers
    And a batch provider that is observed with {"max_attempts": 1}
    When "[[sandbox:errored:overloaded_error:once]] prompt" is asked with the key "k"
    And "[[sandbox:errored:overloaded_error:once]] prompt" is asked with the key "k"
    Then the event RequestsRetried has requests 1
    And the event RequestsRetried has reason "order"

  Scenario: The same requests with another run key are another run, and with the same key the same one
    Then runs of one prompt are found as follows
      | run key | run |
      |         | 1   |
      | monday  | 2   |
      | tuesday | 3   |
      | monday  | 2   |
      |         | 1   |
