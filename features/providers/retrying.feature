Feature: What failed in a run is asked again on order, and nothing else

  Background:
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "prompt 0"
      "[[sandbox:errored:invalid_request_error:once]] prompt 1"
      "[[sandbox:expired:once]] prompt 2"
      "prompt 3"
      "[[sandbox:canceled:once]] prompt 4"
      """
    And a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1

  Scenario: New attempts join the run in order, and what succeeded is not asked again
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the output "out.jsonl" has the states succeeded, invalid_request_error, expired, succeeded, canceled
    When a command runs: retry RUN
    Then the command line exits with 0 and says
      """
      RUN: 3 requests are sent again
      RUN finished: 5 succeeded of 5
      """
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded, succeeded
    And the output "out.jsonl" has the attempts 1, 2, 2, 1, 2
    And the API was asked for 5 and then 3 requests, and paid once for each of 5
    When a command runs: retry RUN
    Then the command line exits with 0 and says
      """
      RUN has no failed request to retry; nothing was changed
      """
    And the API was asked for 5 and then 3 requests, and paid once for each of 5
    When a command runs: run actor.yaml asks.jsonl -o again.jsonl
    Then the output "again.jsonl" has the attempts 1, 2, 2, 1, 2
    And the API was asked for 5 and then 3 requests, and paid once for each of 5

  Scenario Outline: Only what is named is asked again: <only>
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry RUN <only>
    Then the command line exits with <code>
    And the output "out.jsonl" has the states <states>

    Examples:
      | only                                    | code | states                                                            |
      | --only expired                          | 1    | succeeded, invalid_request_error, succeeded, succeeded, canceled  |
      | --only errored                          | 1    | succeeded, succeeded, expired, succeeded, canceled                |
      | --only canceled                         | 1    | succeeded, invalid_request_error, expired, succeeded, succeeded   |
      | --only type=invalid_request_error       | 1    | succeeded, succeeded, expired, succeeded, canceled                |
      | --only type=api_error                   | 1    | succeeded, invalid_request_error, expired, succeeded, canceled    |
      | --only type=api_error --only expired    | 1    | succeeded, invalid_request_error, succeeded, succeeded, canceled  |
      | --only errored --only expired --only canceled | 0 | succeeded, succeeded, succeeded, succeeded, succeeded           |

  Scenario: A word that means nothing changes nothing
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry RUN --only lost
    Then the command line exits with 2 and says
      """
      --only: 'lost' is unknown; use expired, errored, canceled, malformed, missing, or type=…
      """
    When a command runs: retry RUN --only type=
    Then the command line exits with 2
    When a command runs: retry RUN --base-url http://127.0.0.1:9
    Then the command line exits with 2 and says
      """
      RUN was sent to
      Nothing was changed
      """
    And the API was asked for 5 requests, and paid once for each of 2

  Scenario: Each has all its attempts once more, and may fail again
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 2
    And a command's file "one.jsonl"
      """
      "[[sandbox:errored:overloaded_error]] in vain"
      """
    When a command runs: run actor.yaml one.jsonl -o out.jsonl
    Then the output "out.jsonl" has the attempts 2
    When a command runs: retry RUN
    Then the command line exits with 1
    And the output "out.jsonl" has the attempts 4
    And in the ledger the sizes of the batches are [1, 1, 1, 1]

  Scenario: Requests that a retry has queued outlive the process that ordered it
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's process dies at before_pack: retry RUN
    And a command runs: status RUN
    Then the command line prints
      """
      RUN parked: 3 queued, 2 succeeded of 5
      out.jsonl (not written yet)
      """
    When a command runs: resume
    Then the command line exits with 0
    And the output "out.jsonl" has the attempts 1, 2, 2, 1, 2
    And the API was asked for 5 and then 3 requests, and paid once for each of 5

  Scenario: A retry that is killed once its batch is created is finished by the next command
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's process dies at after_record: retry RUN
    And a command runs: resume RUN
    Then the command line exits with 0
    And the output "out.jsonl" has the attempts 1, 2, 2, 1, 2
    And the API was asked for 5 and then 3 requests, and paid once for each of 5

  Scenario: A request that was cancelled with its run is asked again only on explicit order
    Given a command's API with {"latency": 3600, "cancel_latency": 3600}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: cancel RUN
    And a command runs: retry RUN --only canceled
    Then the command line exits with 2 and says
      """
      RUN is being cancelled, and its requests have not ended
      """
    When the API's clock goes 1 hours on
    And a command runs: resume RUN
    Then the output "out.jsonl" has the states canceled, canceled, canceled
    When a command runs: retry RUN
    Then the command line exits with 1 and says
      """
      3 requests were cancelled with the run and not sent again; --only canceled sends them
      RUN has no other request to retry; nothing was changed
      """
    When a command runs while the API's clock goes on by an hour at a time: retry RUN --only canceled
    Then the command line exits with 0
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded
    And the API was asked for 3 and then 3 requests, and paid once for each of 3

  Scenario: An answer that is no success counts as failed everywhere, and retry says why it leaves it out
    Given a command's file "asks.jsonl"
      """
      "[[sandbox:refused]] prompt 0"
      "prompt 1"
      "[[sandbox:errored:overloaded_error:once]] prompt 2"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
        1 overloaded_error
        1 refused
      """
    When a command runs: status RUN --json
    Then the command line's status as JSON has
      | field                              | value |
      | progress.failures.refused          | 1     |
      | progress.failures.overloaded_error | 1     |
    When a command runs: retry RUN --only "expired, type=overloaded_error"
    Then the command line exits with 1 and says
      """
      RUN: 1 request is sent again
      """
    When a command runs: retry RUN --only expired,canceled
    Then the command line exits with 1 and says
      """
      RUN has no expired or canceled request to retry; nothing was changed
      1 request was refused and billed; only `--new` sends it again
      """

  Scenario: A run that is not finished and has no failed request is not said to be done
    Given a command's API with {"latency": 3600}
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --ledger other.db
    And a command runs: retry RUN --ledger other.db
    Then the command line exits with 3 and says
      """
      RUN has no failed request to retry; nothing was changed
      RUN is not finished: 5 requests have no result yet
      continue with: claude-batch resume RUN --ledger other.db
      """

  Scenario: A retry whose output cannot be written sends nothing
    Given a command's folder named "gone"
    When a command runs: run actor.yaml asks.jsonl -o gone/out.jsonl
    And a command's folder named "gone" is removed
    And a command runs: retry RUN
    Then the command line exits with 2 and says
      """
      out.jsonl: cannot be written: No such file or directory. Nothing was sent
      """
    And the API was asked for 5 requests, and paid once for each of 2

  Scenario Outline: An output that was changed since is not replaced, and one that was moved is written anew: <verb>
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Given a command's file "out.jsonl"
      """
      corrected by hand
      """
    When a command runs: results RUN -o elsewhere.jsonl
    And a command runs: <verb> RUN
    Then the command line exits with 2 and says
      """
      out.jsonl: was changed after RUN had written it, and would be replaced. Give it another name, then repeat the command. Nothing was sent
      """
    And the API was asked for 5 requests, and paid once for each of 2
    And a command in a shell ends with a code and says
      | command                                             | code | says  |
      | mv out.jsonl mine.jsonl; claude-batch <verb> RUN     | <code> | wrote |
    And the output "out.jsonl" has the states <states>

    Examples:
      | verb   | code | states                                                       |
      | retry  | 0    | succeeded, succeeded, succeeded, succeeded, succeeded        |
      | resume | 1    | succeeded, invalid_request_error, expired, succeeded, canceled |

  Scenario Outline: An older file that was put in the place of the output is not replaced: <how>
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then a command in a shell ends with a code and says
      | command                                        | code | says |
      | touch -d 2020-01-01 mine; <how> mine out.jsonl | 0    |      |
    When a command runs: retry RUN
    Then the command line exits with 2 and says
      """
      out.jsonl: was moved there, or got another mode, owner or link, after RUN had written it, and would be replaced. Give it another name, then repeat the command. Nothing was sent
      """
    And the API was asked for 5 requests, and paid once for each of 2

    Examples:
      | how   |
      | cp -p |
      | mv -f |

  Scenario Outline: An output whose process died before it had noted that it was written is written anew: <command>
    When a command runs: run actor.yaml asks.jsonl -o <output>
    And a command's process dies at after_rename_before_delivered: retry RUN
    And a command runs: <command>
    Then the command line exits with 0
    When a command runs: advance
    Then the command line exits with 0 and says
      """
      nothing is due
      """
    And a command in a shell ends with a code and says
      | command                                    | code | says |
      | test "$(grep -c prompt <output>)" = 5      | 0    |      |

    Examples:
      | output    | command    |
      | out.jsonl | resume     |
      | out.csv   | advance    |
      | out.jsonl | resume RUN |

  Scenario: A retry after such a death can be parked, and resumed
    Given a command's file "asks.jsonl"
      """
      "[[sandbox:errored:invalid_request_error]] prompt 0"
      "prompt 1"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's process dies at after_rename_before_delivered: retry RUN
    And a command runs: retry RUN --max-wait 0.001
    Then the command line exits with 3
    When a command runs: resume RUN
    Then the command line exits with 1
    And the output "out.jsonl" has the attempts 3, 1

  Scenario: An output that has the results so far is replaced by the same run
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry RUN --max-wait 0.001
    And a command runs: results RUN -o out.jsonl
    Then the command line exits with 3
    And a command in a shell ends with a code and says
      | command                                         | code | says  |
      | claude-batch resume RUN --poll-interval 0.1     | 0    | wrote |
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded, succeeded

  Scenario Outline: An output that was changed while a retry was parked is not replaced: <command>
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry RUN --max-wait 0.001
    Then the command line exits with 3
    Given a command's file "out.jsonl"
      """
      corrected by hand
      """
    When a command runs: <command>
    Then the command line exits with 2 and says
      """
      out.jsonl: was changed after RUN had written it, and would be replaced. Give it another name, then repeat the command
      """
    And a command in a shell ends with a code and says
      | command                                                                         | code | says      |
      | grep -q hand out.jsonl && mv out.jsonl mine.jsonl && claude-batch resume RUN --poll-interval 0.1 | 0 | wrote |
    And the output "out.jsonl" has the states succeeded, succeeded, succeeded, succeeded, succeeded

    Examples:
      | command    |
      | resume     |
      | resume RUN |

  Scenario: A lost request is not asked again, because it may have been paid for
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the run's first request is lost
    And a command runs: retry RUN
    Then the output "out.jsonl" has the attempts 1, 2, 2, 1, 2
    And the output "out.jsonl" has the states missing_result, succeeded, succeeded, succeeded, succeeded
    And the API was asked for 5 and then 3 requests, and paid once for each of 5

  Scenario Outline: A failure that may hide a success is lost, and not asked again: <line>
    Given the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "contradicting_lines", "replace": true, <line>}}]}
      """
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry RUN
    Then the command line exits with 1
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And in the ledger the sorted states of all requests are ["lost", "succeeded", "succeeded"]
    And the API was asked for 3 requests, and paid once for each of 3

    Examples:
      | line                                                      |
      | "outcome": "canceled"                                     |
      | "outcome": "expired"                                      |
      | "outcome": "errored", "error": "invalid_request_error"    |

  Scenario: An answer to another sending is returned, and not paid for again
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And an answer of another sending of the run's second request has come late
    And a command runs: retry RUN --only errored
    Then the command line exits with 1 and says
      """
      found answers for 1 request
      """
    And the output "out.jsonl" has the states succeeded, succeeded, expired, succeeded, canceled
    And the API was asked for 5 requests, and paid once for each of 2

  Scenario: From Python, the run that was waited for is waited for once more
    When the run is asked from Python, and its failures are retried
    Then there are 5 results in the order of the prompts
    And the API was asked for 5 and then 3 requests, and paid once for each of 5

  Scenario: Single calls are not retried: whoever wants an answer calls again
    Given a batch provider
    When "[[sandbox:errored:invalid_request_error]] no" is asked with the key "k"
    And a command runs: status
    And a command runs: retry RUN
    Then the command line exits with 2 and says
      """
      contains single calls
      """
    When a command runs: resume RUN
    Then the command line exits with 1 and says
      """
      see them with: claude-batch status RUN
      """
    And the command line does not say: retry

  Scenario: A single call without a result proposes the command that sends it again
    Given the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "after_lines": 0, "count": 1}}]}
      """
    And a batch provider with {"missing_after": 0.5}
    When "no result" is asked with the key "k"
    Then every call fails with MissingResultError
    And the error is a MissingResultError that says
      """
      if its result is still missing after that: claude-batch unknown run-
      --resubmit
      """
    When the provider is closed
    And a command runs: status
    And a command runs: results RUN --refetch
    Then the command line exits with 1 and says
      """
      To send these requests again, which may be paid for twice: claude-batch unknown RUN --resubmit
      """
    When a command runs: unknown RUN --resubmit
    Then the command line exits with 0 and says
      """
      1 request of RUN queued again
      """
