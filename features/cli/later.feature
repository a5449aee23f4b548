Feature: Later commands show, wait for, cancel and deliver a run

  Scenario: submit prints the run's id and ends; resume waits and writes the output of then
    Given a command's API with {"latency": 0.8}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --label nightly
    Then the command line exits with 0 and says
      """
      sent. Wait for the answers with: claude-batch resume RUN
      """
    And the command line prints nothing but the run's id
    When a command runs: status
    Then the command line prints
      """
      RUN
      nightly
      3 packed of 3
      out.jsonl (not written yet)
      """
    When a command runs: status RUN
    Then the command line prints
      """
      RUN parked: 3 packed of 3
      label: nightly
      1 batch at the API
      in_progress
      """
    When a command runs: status RUN --json
    Then the command line exits with 0
    And the command line's status as JSON has
      | field         | value     |
      | state         | "parked"  |
      | label         | "nightly" |
      | total         | 3         |
      | counts.packed | 3         |
      | delivered     | null      |
    When a command runs: results RUN
    Then the command line exits with 3 and says
      """
      RUN is not finished: 1 batch at the API
      """
    When a command runs: resume RUN
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    When a command runs: status --json
    Then the command line's status as JSON has
      | field            | value      |
      | state            | "finished" |
      | counts.succeeded | 3          |
    When a command runs: resume
    Then the command line exits with 0 and says
      """
      there is no unfinished run
      """
    When a command runs: submit actor.yaml asks.jsonl
    Then the command line exits with 0 and says
      """
      RUN has the same requests and is finished
      """
    And the command line has caused 1 batches of 3 requests
    When a command runs: submit actor.yaml asks.jsonl -o second.jsonl
    Then the command line exits with 0 and says
      """
      RUN has the same requests and is finished: 3 answers from the ledger
      every request has ended. The next `advance` will write
      second.jsonl. Write it now: claude-batch resume RUN
      """
    When a command runs: advance
    Then the command line exits with 0
    And the command line has written 3 answers in order to "second.jsonl"
    When a command runs: submit actor.yaml asks.jsonl --results-dir kept
    And a command runs: resume
    Then the file "kept/summary.json" of JSON has
      | field | value |
      | total | 3     |
    And the command line has caused 1 batches of 3 requests

  Scenario: An output named without its folder is found from any folder
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's folder named "elsewhere"
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command changes to the folder "elsewhere"
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 1 answers in order to "../out.jsonl"

  @both_backends
  Scenario: A run may be named by a beginning of its id that no other run has
    Given a command's API
    And the next runs get the ids run-3a00000000 run-2d00000000 run-2c00000000 run-2b00000000 run-2a00000000
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: results run-3
    Then the command line exits with 0
    And the command line has written 1 answers in order to "standard output"
    When a command runs: run actor.yaml asks.jsonl --new
    And a command runs: submit actor.yaml asks.jsonl --new
    And a command runs: cancel run-2
    Then the command line exits with 2 and says
      """
      error: several runs begin with 'run-2': run-2c00000000, run-2d00000000. Give more characters of the id
      """
    When a command runs: cancel run-2c
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl --new
    And a command runs: run actor.yaml asks.jsonl --new
    And a command runs: status run-2
    Then the command line exits with 2 and says
      """
      several runs begin with 'run-2': run-2a00000000, run-2b00000000, run-2c00000000, …. Give more characters of the id
      """

  Scenario Outline: A RUN that names no run is an error and changes nothing: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: <words>
    Then the command line exits with 2 and says
      """
      <message>
      """
    When a command runs: resume
    Then the command line exits with 0

    Examples:
      | words                             | message                    |
      | status run-nosuchrun              | has no run 'run-nosuchrun' |
      | cancel run-                       | has no run 'run-'          |
      | cancel r                          | has no run 'r'             |
      | cancel ""                         | is empty; give a value     |
      | results ""                        | is empty; give a value     |
      | show run- 1                       | has no run 'run-'          |
      | unknown run- --give-up            | has no run 'run-'          |
      | ledger prune run-zzz              | has no run 'run-zzz'; `claude-batch status` lists what it has |
      | ledger prune ""                   | is empty; give a value     |

  Scenario: The folder for results is made only for a run that exists
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: results run-nosuchrun --results-dir out
    Then the command line exits with 2 and says
      """
      has no run 'run-nosuchrun'
      """
    And the command line has left no "out"
    When a command runs: results RUN --results-dir asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl: cannot write to this folder:
      """

  Scenario Outline: A value that names no run is refused in Python: <value>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    Then open_run(<value>) raises RunNotFoundError: <message>

    Examples:
      | value  | message                                   |
      | ""     | has no run ''                             |
      | "run-" | has no run 'run-'                         |
      | 3      | 3 is not the id of a run, which is a str  |

  Scenario: results needs no key, and its exit code tells of failures
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 1
    When a command runs without a key: results RUN -o -
    Then the command line exits with 1
    And the command line has written to "standard output"
      | id | ok | says                   |
      | 1  | no | invalid_request_error: |

  Scenario: cancel withdraws a run at the API, resume collects what is left of it
    Given a command's API with {"latency": 60, "cancel_latency": 0.5}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: cancel RUN
    Then the command line exits with 0 and says
      """
      RUN is cancelled; the results so far are kept
      RUN ends soon. Wait for it with: claude-batch resume RUN
      """
    When a command runs: resume RUN
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id | ok | says      |
      | 1  | no | canceled: |
      | 2  | no | canceled: |
    When a command runs: cancel RUN
    Then the command line exits with 0 and says
      """
      RUN is finished; there is nothing to cancel
      """

  Scenario: cancel sends nothing of other runs, and leaves no request in a batch that waits
    Given a command's API with {"latency": 60, "cancel_latency": 60}
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "more.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: submit actor.yaml more.jsonl
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: cancel run-1a
    Then the command line exits with 0 and says
      """
      run-1a00000000 is cancelled; the results so far are kept
      RUN ends soon
      """
    And in the ledger the states of the batches are ["canceling", "packed"]
    When a command runs: cancel run-1b
    Then the command line exits with 0
    And the command line does not say: ends soon
    And in the ledger the states of the requests are ["packed", "packed", "canceled"]

  Scenario: status tells of a sending that is unknown, and of a run that is being cancelled
    Given a command's API with {"latency": 3600, "cancel_latency": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: status RUN
    Then the command line exits with 0
    And the command line prints
      """
      RUN unknown: 2 packed of 2
      """
    When a command runs: status --json
    Then the command line's status as JSON has
      | field | value     |
      | state | "unknown" |
    When a command runs: submit actor.yaml asks.jsonl --new
    And a command runs: cancel RUN
    And a command runs: status RUN
    Then the command line exits with 0
    And the command line prints
      """
      RUN cancelling: 2 packed of 2
      """

  Scenario: cancel of a run that was never sent needs no answer of the API
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --base-url http://127.0.0.1:1
    And a command runs: cancel RUN
    Then the command line exits with 0
    And the command line does not say: ends soon

  Scenario: A cancel that has not reached the API is stored and reported
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    Then the command line exits with 0
    When a command runs without a key: cancel RUN
    Then the command line exits with 2 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: no API key
      """
    When a command runs: cancel RUN --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: the run was sent to http://127.0.0.1:
      but this command uses http://127.0.0.1:1. Send it with: claude-batch cancel RUN --base-url http://127.0.0.1:
      """
    When the API has the faults
      """
      {"rules": [{"route": "list", "action": {"type": "drop_before"}}]}
      """
    And a command runs: cancel RUN
    Then the command line exits with 3 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: http://127.0.0.1:
      cannot be reached
      Send it with: claude-batch cancel RUN
      """
    And in the ledger the states of the batches are ["in_progress"]
    When the API has the faults
      """
      {"rules": [{"route": "cancel", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: cancel RUN
    Then the command line exits with 3 and says
      """
      the cancel request has not reached the API yet: 529 overloaded_error: Overloaded
      Send it with: claude-batch cancel RUN
      """
    When the API has no faults any more
    And a command runs: resume RUN
    Then the command line exits with 1

  Scenario: A cancel with a key that the API refuses exits as every command with such a key
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a command runs: cancel RUN
    Then the command line exits with 4 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: sending is halted (credentials):
      Correct the cause, then send it with: claude-batch cancel RUN
      """

  Scenario: A cancel with the key of another workspace is stored, and says that the batches run on
    Given a command's API with {"latency": 60, "workspaces": {"sk-other": "wrkspc_other"}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --ledger other.db
    And a command's key is changed to "sk-other"
    And a command runs: cancel RUN --ledger other.db
    Then the command line exits with 4 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: RUN waits in the workspace of another key (wrkspc_01SandboxDefault)
      Send it with that key: claude-batch cancel RUN --ledger other.db
      """
    And the command line does not say: RUN is cancelled
    When a command's key is changed to "sk-sandbox"
    And a command runs: resume RUN --ledger other.db
    Then the command line exits with 1

  Scenario: A cancel of a sending with an unknown outcome is not said to have reached the API
    Given a command's API with {"latency": 3600, "listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: cancel RUN
    Then the command line exits with 3 and says
      """
      RUN is marked as cancelled, but the cancel request has not reached the API yet: it is unknown whether the API accepted 2 requests; see `claude-batch unknown RUN`
      """

  Scenario: Lost requests of a cancelled run are sent again on order, once nothing of it is open
    Given a command's API with {"listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: cancel RUN
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 2 and says
      """
      RUN was cancelled, and its batches have not ended. Nothing was sent again. Requests with an unknown outcome end with: claude-batch unknown RUN --give-up
      """
    When a command runs: unknown RUN --give-up --json
    Then the command line exits with 0 and says
      """
      2 requests of RUN ended without an answer
      Send them again with: claude-batch unknown RUN --resubmit
      """
    And the command line's status as JSON has
      | field    | value |
      | requests | 2     |
      | lost     | true  |
    When a command runs: unknown RUN --resubmit
    Then the command line exits with 0 and says
      """
      2 requests of RUN queued again
      """
    When a command runs: resume RUN
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"

  Scenario: Answers that come after requests were given up are delivered, also to their doubles
    Given a command's API with {"latency": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of the bytes b'{"id": "ask-1", "prompt": "same"}\n{"id": "ask-2", "prompt": "same"}\n{"id": "ask-3", "prompt": "other"}\n'
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --dedupe
    And a command runs: unknown RUN --give-up
    And a command runs: resume RUN
    Then the command line exits with 1
    And the command line has noted that the run is delivered
    When the sandbox's batches have had their time
    And a command waits 0.2 seconds
    And a command runs: advance
    Then the file "out.jsonl" has 3 answers
    And the command line has caused 1 batches of 2 requests

  Scenario: A run that is retried after its output was read is not marked as delivered
    Given a command's API with {"latency": 0.5}
    And the API has the faults
      """
      {"requests": [{"contains": "prompt 2", "outcome": "errored", "once": true,
                     "error": {"type": "invalid_request_error", "message": "no"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And at the point after_rename_before_delivered a command runs: retry RUN --max-wait 100ms
    And a command runs: resume RUN
    Then the command line says
      """
      RUN was retried while it was written, so that new answers may be missing from what was written; continue with: claude-batch resume RUN
      """
    And the command line has noted that the run is not delivered
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"

  Scenario: A retry that the deadline would end unsent is refused
    Given a command's API with {"listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "create", "action": {"type": "error", "status": 529, "retry_after": 600}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl --max-requests 1 --deadline 5s --deadline-margin 1s --fallback none --max-wait 6s
    And a command runs: retry RUN
    Then the command line exits with 2 and says
      """
      RUN has reached the margin before its deadline, and sends nothing with `fallback: none` before its open requests have ended. Nothing was sent again. Wait for them with: `claude-batch resume RUN`
      """

  Scenario: Requests that were given up are sent again by the command that each report names
    Given a command's API with {"listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: unknown RUN --give-up
    And a command runs: resume RUN
    Then the command line exits with 1 and says
      """
      2 requests have no result and may have been paid for; send them again with: `claude-batch unknown RUN --resubmit`
      """
    When a command runs: retry RUN
    Then the command line exits with 1 and says
      """
      RUN has no failed request to retry; nothing was changed
      2 requests have no result and may have been paid for; send them again with: `claude-batch unknown RUN --resubmit`
      """
    And the command line does not say: --only missing
    When a command runs: status RUN
    Then the command line prints
      """
      send them again with: `claude-batch unknown RUN --resubmit`
      """

  Scenario: Lost requests whose results can be fetched are fetched before the others are sent again
    Given a command's API with {"listed_after": 3600}
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}},
                 {"route": "results", "action": {"type": "missing_lines", "after_lines": 0, "count": 1}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --max-requests 1
    And a command runs: unknown RUN --give-up
    And a command runs: resume RUN
    Then the command line exits with 1 and says
      """
      1 request has no result and may have been paid for; fetch the results again, free of charge, with: `claude-batch results RUN --refetch -o OUT`
      1 request has no result and may have been paid for; after the fetch, send them again with: `claude-batch unknown RUN --resubmit`; before it, the command sends all 2 lost requests
      """
    When a command runs: unknown RUN
    Then the command line prints
      """
      1 result can be fetched first, free of charge, with: claude-batch results RUN --refetch -o OUT
      they ended as lost; send them again with --resubmit
      """
    When the API has no faults any more
    And a command runs: results RUN --refetch -o out.jsonl
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 0 and says
      """
      1 request of RUN queued again
      """

  Scenario: A sending is unknown no more once its requests are sent again on order
    Given a command's API with {"listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: unknown RUN --resubmit
    And a command runs: status RUN
    Then the command line prints
      """
      RUN parked: 2 queued of 2
      decided: its requests were sent again or given up
      """
    When a command runs: unknown RUN
    Then the command line prints
      """
      no requests are unknown
      """

  Scenario: Unknown requests that the deadline would end unsent are not sent again before they are given up
    Given a command's API with {"listed_after": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --deadline 3s --deadline-margin 1s --fallback none
    And a command waits 3.0 seconds
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 2 and says
      """
      RUN has reached the margin before its deadline, and sends nothing with `fallback: none`. Nothing was sent again. Requests with an unknown outcome end with: claude-batch unknown RUN --give-up
      """
    When a command runs: unknown RUN --give-up
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 0 and says
      """
      2 requests of RUN queued again
      """
    When a command runs: resume RUN
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"

  Scenario: Lost requests that cannot be sent again yet wait for the open ones, and nothing is proposed that changes nothing
    Given a command's API with {"latency": 3600, "listed_after": 3600}
    And the next runs get the ids run-1a00000000
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --max-requests 1 --deadline 3s --deadline-margin 1s --fallback none
    And a command runs: unknown RUN --give-up
    And a command waits 3.0 seconds
    And a command runs: unknown RUN --resubmit
    Then the command line exits with 2 and says
      """
      RUN has reached the margin before its deadline, and sends nothing with `fallback: none`. Nothing was sent again. Its lost requests can be sent again once its open ones have ended. Wait for these with: claude-batch resume RUN
      """
    And the command line does not say: --give-up
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Send again" of /runs/run-1a00000000 is sent with {"sure": "yes"}
    Then the page that follows says "Nothing was sent again. Its lost requests can be sent again once its open ones have ended."

  Scenario: A command that a message proposes names the ledger that was typed
    Given a command's API with {"latency": 0.3}
    And a command's file "asks.jsonl" of 2 prompts
    And a command's folder named "gone"
    When a command runs: submit actor.yaml asks.jsonl -o gone/out.jsonl --ledger my.db
    And a command runs: status RUN --ledger my.db
    Then the command line prints
      """
      resume --ledger my.db`
      """
    When a command runs: results RUN --ledger my.db
    Then the command line exits with 3 and says
      """
      no process drives it; continue with `claude-batch resume --ledger my.db`
      """
    When a command runs: run actor.yaml asks.jsonl --new --ledger my.db --budget 0.000001
    Then the command line exits with 3 and says
      """
      raise it with `claude-batch budget RUN USD --ledger my.db`
      """
    When a command runs: submit actor.yaml asks.jsonl --new --ledger my.db --base-url http://127.0.0.1:1
    And a command runs: resume RUN --ledger my.db
    Then the command line exits with 3 and says
      """
      continue with: claude-batch resume RUN --ledger my.db --base-url http://127.0.0.1:1
      """
    When a command runs: retry RUN --ledger my.db
    Then the command line exits with 2 and says
      """
      Repeat it with: claude-batch retry RUN --ledger my.db --base-url http://127.0.0.1:1
      """

  Scenario: A command that reads a ledger names it in the command that it proposes
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: cost run-1a --ledger my.db
    Then the command line exits with 2 and says
      """
      there is no ledger at my.db yet; `claude-batch run --ledger my.db` creates it
      """
    When a command runs: doctor --ledger my.db
    Then the command line prints
      """
      yet; `claude-batch run --ledger my.db` creates it
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --ledger my.db --base-url http://127.0.0.1:1
    And a command runs: cancel RUN --ledger my.db
    And a command runs: status RUN --ledger my.db
    Then the command line prints
      """
      out.jsonl (not written yet; write it with `claude-batch resume RUN --ledger my.db`)
      """

  Scenario: A command in an error of an output names the ledger that was typed, too
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "[[sandbox:canceled]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger my.db
    And a command runs: export RUN -o so-far.jsonl --ledger my.db
    Then the command line has written to "out.jsonl"
      | id | ok | says                           |
      | 1  | no | --only canceled --ledger my.db |
    And the command line has written to "so-far.jsonl"
      | id | ok | says                           |
      | 1  | no | --only canceled --ledger my.db |

  Scenario: While another process drives the ledger, cancel leaves the request to that one
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs, while another process waits for the run: cancel RUN
    Then the command line exits with 0 and says
      """
      another process drives this ledger; it sends the cancel request
      RUN is cancelled; the results so far are kept
      """

  Scenario: cancel says which live calls of another process are still answered, and billed
    Given a command's API with {"latency": 60, "live_latency": 30}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl --deadline 4s --deadline-margin 3s
    And a command runs in the background: resume RUN
    Then in the ledger the states of the batches come to be ["collected", "live"]
    When a command runs: cancel RUN
    Then the command line exits with 0 and says
      """
      RUN is cancelled; the results so far are kept
      2 live calls are in progress, and billed when answered
      RUN ends soon. Wait for it with: claude-batch resume RUN
      """
    And the command line does not say: it sends the cancel request

  Scenario: advance has nothing to do where no ledger exists yet
    Given a command's API
    When a command runs: advance
    Then the command line exits with 0 and says
      """
      ledger.db yet: nothing is due
      """
    And the command line has said one line
    And the command line has left no "ledger.db"

  Scenario: advance says in one line that nothing is due
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: advance
    Then the command line exits with 0 and says
      """
      nothing is due
      """
    And the command line has said one line

  Scenario: advance says in one line that a run is in progress
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: advance
    Then the command line exits with 3 and says
      """
      RUN is in progress: 2 packed of 2
      """
    And the command line has said one line

  Scenario: advance does one pass, and delivers what is complete
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "bad.jsonl"
      """
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command repeats every advance until it exits with 0
    Then the command line has written 2 answers in order to "out.jsonl"
    When a command runs: submit actor.yaml bad.jsonl -o bad-out.jsonl
    And a command repeats every advance until it exits with 1
    Then the command line has written to "bad-out.jsonl"
      | id | ok | says                   |
      | 1  | no | invalid_request_error: |

  Scenario Outline: A run that another process has just delivered is not written again: <verb>, <event>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.5 seconds
    And at the point after_collected <event>
    And a command runs: <verb>
    Then the command line exits with 0 and says
      """
      <says>
      """
    And the command line does not say: wrote

    Examples:
      | verb    | event                                           | says                              |
      | advance | a command runs: results RUN -o out.jsonl        | RUN is finished: 2 succeeded of 2 |
      | advance | another process delivers the run, and prunes it | nothing is due                    |
      | resume  | a command runs: results RUN -o out.jsonl        | RUN finished: 2 succeeded of 2    |

  Scenario: advance prints no answers of a run without an output that ends meanwhile, such as single calls
    Given a command's API with {"latency": 3600}
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "more.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: submit actor.yaml more.jsonl
    And the API's clock goes 2 hours on
    And at the point before_delivery a command runs: cancel run-1b00000000
    And a command repeats every advance until it exits with 1
    Then the command line says
      """
      /out.jsonl
      run-1b00000000 is finished: 3 canceled of 3
      """
    And the command line prints nothing but errors
    And in the ledger the undelivered runs are ["run-1b00000000"]

  Scenario: resume checks the output of a run before it sends anything, and does without it for the others
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's folder named "gone"
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o gone/out.jsonl
    And a command's folder named "gone" is removed
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: resume RUN
    Then the command line exits with 2 and says
      """
      out.jsonl: cannot be written: No such file or directory. Nothing was sent
      """
    And in the ledger the sizes of the batches at the API are []
    When a command runs: resume
    Then the command line exits with 2 and says
      """
      warning: RUN goes on, but /
      error: /
      The results are kept. Write them with: claude-batch results RUN -o OUT
      """
    And in the ledger the sizes of the batches at the API are [2]

  Scenario: resume without a run waits for all that are unfinished, oldest first
    Given a command's API with {"latency": 0.5}
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "more.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o one.jsonl
    And a command runs: submit actor.yaml more.jsonl -o two.jsonl
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 1 answers in order to "one.jsonl"
    And the command line has written 2 answers in order to "two.jsonl"

  Scenario: resume of several runs without an output file says which lines are whose
    Given a command's API with {"latency": 3600}
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "more.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: submit actor.yaml more.jsonl
    And a command runs while the API's clock goes on by an hour at a time: resume
    Then the command line exits with 0 and says
      """
      run-1a00000000: line 1 of standard output
      run-1b00000000: lines 2 to 3 of standard output
      """
    And the command line has written to "standard output"
      | id | ok  | says     |
      | 1  | yes | prompt 1 |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |
    When a command runs: submit actor.yaml more.jsonl --new
    And a command runs while the API's clock goes on by an hour at a time: resume
    Then the command line exits with 0
    And the command line does not say: of standard output

  Scenario Outline: An earlier run does not replace the output that a later one has written: <verb>
    Given a command's API with {"latency": 0.5}
    And the next runs get the ids run-1a00000000 run-1b00000000 run-1c00000000
    And a command's file "typo.jsonl"
      """
      "propmt 1"
      "propmt 2"
      """
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml typo.jsonl -o out.jsonl --ledger my.db
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger my.db --max-wait 0.1s
    Then the command line exits with 3 and says
      """
      run-1a00000000 was to write to out.jsonl too; only this run writes to it now. 2 requests have no result yet, and may still be sent and paid for, unless you run: claude-batch cancel run-1a00000000 --ledger my.db. Its answers: claude-batch results run-1a00000000 --ledger my.db -o OUT
      """
    When a command repeats every <verb> --ledger my.db until it exits with 0
    Then the command line has written 2 answers in order to "out.jsonl"
    When a command runs: results run-1a --ledger my.db -o typo-out.jsonl
    Then the command line exits with 0
    And the command line has written to "typo-out.jsonl"
      | id | ok  | says     |
      | 1  | yes | propmt 1 |
      | 2  | yes | propmt 2 |
    # Asked for again, it is the later one.
    When a command runs: run actor.yaml typo.jsonl -o out.jsonl --ledger my.db
    Then the command line exits with 0
    And the command line does not say: was to write
    And the command line has written to "out.jsonl"
      | id | ok  | says     |
      | 1  | yes | propmt 1 |
      | 2  | yes | propmt 2 |

    Examples:
      | verb    |
      | advance |
      | resume  |

  Scenario: Two names of one file, such as a link, are one output
    Given a command's API with {"latency": 7200}
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "typo.jsonl" of 1 prompts
    And a command's file "asks.jsonl" of 2 prompts
    And a command's link "link.jsonl" to "out.jsonl"
    When a command runs: submit actor.yaml typo.jsonl -o link.jsonl
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      run-1a00000000 was to write to out.jsonl too; only this run writes to it now
      """
    When the API's clock goes 3 hours on
    And a command runs: resume
    Then the command line exits with 0 and says
      """
      run-1a00000000 is not written, because a later run writes to the same place
      """
    And the command line has written 2 answers in order to "out.jsonl"

  Scenario: A command that waits does not replace the output that another command asked for meanwhile
    Given a command's API
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "typo.jsonl"
      """
      "propmt 1"
      """
    And a command's file "asks.jsonl" of 1 prompts
    When at the point before_delivery a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: run actor.yaml typo.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      out.jsonl: now belongs to run-1b00000000, a later run that writes to it. The results are kept. Write them with: claude-batch results run-1a00000000 -o OUT
      """
    And the command line has written 1 answers in order to "out.jsonl"

  @both_backends
  Scenario Outline: Places that a command names while another one waits are written, too: run <words>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When at the point before_delivery a command runs: submit actor.yaml asks.jsonl -o later.jsonl --results-dir kept
    And a command runs: run actor.yaml asks.jsonl <words>
    Then the command line exits with 0
    And the command line has written 2 answers in order to "<place>"
    When a command runs: ledger prune RUN
    Then the command line exits with 2 and says
      """
      its output is not written yet; write it with `claude-batch resume`
      """
    When a command runs: advance
    Then the command line exits with 0
    And the command line has written 2 answers in order to "later.jsonl"
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    When a command runs: ledger prune RUN
    Then the command line exits with 0

    Examples:
      | words        | place           |
      | -o out.jsonl | out.jsonl       |
      |              | standard output |

  Scenario: A folder that is named after the output was written leaves nothing to write
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl --results-dir kept
    Then the command line exits with 0
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    When a command runs: ledger prune RUN
    Then the command line exits with 0

  Scenario: A run that has lost its output to a later one is written to no other
    Given a command's API with {"latency": 3600}
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "typo.jsonl"
      """
      "propmt 1"
      "propmt 2"
      """
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml typo.jsonl -o out.jsonl
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API's clock goes 2 hours on
    And a command runs: resume
    Then the command line exits with 0 and says
      """
      run-1a00000000 is not written, because a later run writes to the same place. Its answers: claude-batch results run-1a00000000 -o OUT
      """
    And the command line prints nothing but errors
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario: An earlier run does not replace the files of a folder that a later one was asked to fill
    Given a command's API with {"latency": 3600}
    And the next runs get the ids run-1a00000000 run-1b00000000 run-1c00000000
    And a command's file "typo.jsonl"
      """
      "propmt 1"
      "propmt 2"
      """
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml typo.jsonl --results-dir kept
    And a command runs: submit actor.yaml asks.jsonl --results-dir kept
    Then the command line exits with 0 and says
      """
      run-1a00000000 was to write to kept too; only this run writes to it now. 2 requests have no result yet
      """
    When the API's clock goes 2 hours on
    And a command runs: resume
    Then the command line exits with 0 and says
      """
      run-1a00000000 is not written, because a later run writes to the same place. Its answers: claude-batch results run-1a00000000 -o OUT
      """
    And the command line prints nothing but errors
    And the folder "kept" has the files 000001.json, raw/results.jsonl, summary.json
    When a command runs: run actor.yaml typo.jsonl --results-dir kept
    Then the command line exits with 0
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json

  Scenario: A retry does not replace the output that a later run has written
    Given a command's API
    And the next runs get the ids run-1a00000000 run-1b00000000
    And a command's file "failing.jsonl"
      """
      "one [[sandbox:errored:overloaded_error]]"
      """
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml failing.jsonl -o out.jsonl --max-attempts 1
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: retry run-1a00000000
    Then the command line exits with 1 and says
      """
      run-1a00000000 is not written, because a later run writes to the same place. Its answers: claude-batch results run-1a00000000 -o OUT
      """
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario: Runs whose output is no file all keep it
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl -o /dev/null
    And a command runs: submit actor.yaml asks.jsonl -o /dev/null --new
    Then the command line exits with 0
    And the command line does not say: was to write
    And in the ledger the outputs of the runs are ["/dev/null", "/dev/null"]

  Scenario Outline: A later command polls as it says, also batches that are at the API: <words>
    Given a command's API with {"latency": 0.5}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --poll-interval 1h
    And a command runs: <words>
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the command line has caused 1 batches of 3 requests

    Examples:
      | words                                                    |
      | resume RUN --poll-interval 0.1s                          |
      | resume --poll-interval 0.1s                              |
      | run actor.yaml asks.jsonl -o out.jsonl --poll-interval 0.1s |

  Scenario: While another process drives the ledger, advance leaves it to that one
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs, while another process waits for the run: advance
    Then the command line exits with 0 and says
      """
      another process drives this ledger; it sends batches and collects results
      """

  Scenario Outline: An interrupt parks the run and tells how to go on: <signal>
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command's process gets <signal> once 1 batch is created: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line prints nothing but errors
    And the command line exits with 3 and says
      """
      parking RUN; its batches continue at the API (interrupt again to end at once)
      parked; continue with: claude-batch resume RUN
      """
    And the command line has left no "out.jsonl"
    When a command runs: status RUN
    Then the command line prints
      """
      RUN parked: 1 packed of 1
      """

    Examples:
      | signal  |
      | SIGINT  |
      | SIGTERM |

  Scenario: An interrupt that Python swallows parks the run all the same
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs, interrupted where Python ignores what is raised: run actor.yaml asks.jsonl
    Then the command line exits with 3 and says
      """
      parked; continue with: claude-batch resume
      """

  Scenario: An interrupt of resume leaves the other runs alone
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "more.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: submit actor.yaml more.jsonl
    And a command runs, interrupted while it waits: resume
    Then the command line exits with 3 and says
      """
      parked; continue with: claude-batch resume
      """

  Scenario: An interrupt of submit parks, and names the ledger that a later command needs
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs, interrupted while it waits: submit actor.yaml asks.jsonl --ledger "my ledger.db"
    Then the command line exits with 3 and says
      """
      parked; continue with: claude-batch resume RUN --ledger 'my ledger.db'
      """

  Scenario: An interrupt while the input is read keeps and sends nothing
    Given a command's API
    When a command runs, interrupted while it reads the pipe "asks.jsonl": run actor.yaml asks.jsonl
    Then the command line exits with 3 and says
      """
      interrupted while the input was read; nothing was stored or sent
      """
    And the command line's ledger has 0 runs
    And the command line has sent nothing

  Scenario: An interrupt once the run is stored parks it, with the format that was asked for
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs, interrupted once the run is stored: submit actor.yaml asks.jsonl -o out.txt --format csv
    Then the command line exits with 3 and says
      """
      parked; continue with: claude-batch resume RUN
      """
    And the command line does not say: nothing was stored
    When a command runs: resume RUN
    Then the command line exits with 0
    And the rows of "out.txt" have
      | id | says     |
      | 1  | prompt 1 |
      | 2  | prompt 2 |
    When a command runs, interrupted once the run is stored: run actor.yaml asks.jsonl --confirm-above 5
    Then the command line exits with 3 and says
      """
      parked; continue with: claude-batch resume RUN
      """
    And the command line's ledger has 1 runs

  Scenario: A command that dies once the run is stored has stored the format and the folder, too
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command's process dies at after_stored: submit actor.yaml asks.jsonl -o out.txt --format csv --results-dir kept
    And a command runs: resume
    Then the command line exits with 0
    And the rows of "out.txt" have
      | id | says     |
      | 1  | prompt 1 |
      | 2  | prompt 2 |
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json

  Scenario Outline: An interrupt waits for live calls, and says what a second one costs: <verb>
    Given a command's API with {"live_latency": 1}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs, interrupted once its live calls are sent: <verb> actor.yaml asks.jsonl -o out.jsonl --mode live
    Then the command line exits with 3 and says
      """
      parking RUN; waiting for 2 live calls. An answer that comes after another interrupt is lost, and may be billed
      parked; continue with: claude-batch resume RUN
      """
    And the command line does not say: batches continue
    When a command runs: resume RUN
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"
    And the API has been paid 2 times, never twice for the same

    Examples:
      | verb   |
      | run    |
      | submit |

  Scenario: A closed terminal parks a run, whose live calls are answered first
    Given a command's API with {"live_latency": 2}
    And a command's file "asks.jsonl" of 2 prompts
    When a command's terminal is closed once its live calls are under way: run actor.yaml asks.jsonl -o out.jsonl --mode live
    Then the command line exits with 3
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 2 answers in order to "out.jsonl"
    And the API has been paid 2 times, never twice for the same

  Scenario: An interrupt of advance waits for live calls, and stores their answers
    Given a command's API with {"live_latency": 1}
    And a command's file "asks.jsonl" of 2 prompts
    When a command's process dies at after_stored: submit actor.yaml asks.jsonl -o out.jsonl --mode live
    And a command runs, interrupted once its live calls are sent: advance
    Then the command line exits with 3 and says
      """
      waiting for 2 live calls. An answer that comes after another interrupt is lost, and may be billed
      interrupted; everything stored before is kept
      """
    And in the ledger the states of the requests are ["succeeded", "succeeded"]

  Scenario Outline: Live calls whose process died are found by <verb>, and reported as lost
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command's process dies at after_live_claim: submit actor.yaml asks.jsonl --mode live --live-concurrency 2
    And a command runs: <verb>
    Then the command line exits with 1 and says
      """
      <says> 2 lost of 2
      """
    And the command line does not say: nothing is due

    Examples:
      | verb    | says              |
      | resume  | finished:         |
      | advance | is finished:      |

  Scenario: A run in live calls is sent, and submit waits until they are answered
    Given a command's API with {"live_latency": 0.5}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --mode live --live-concurrency 2
    Then the command line exits with 0 and says
      """
      live calls are answered only while their process waits: waiting for the answers
      every request has ended. The next `advance` will write
      out.jsonl. Write it now: claude-batch resume RUN
      """
    And the command line does not say: not everything was sent
    When a command runs: status RUN
    Then the command line prints
      """
      RUN finished: 3 succeeded of 3
      """
    When a command runs: resume RUN
    Then the command line has written 3 answers in order to "out.jsonl"

  Scenario: A second signal ends the process at once
    Then the command line leaves the process at a second signal, and gives handlers back

  Scenario: A reader that goes away loses nothing, and is no failure of a request
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs where nobody reads the output: results RUN
    Then the command line exits with 0
    And the command line says
      """
      standard output was closed before all results were written; they are kept in the ledger
      """
    When a command runs where nobody reads the output: status
    Then the command line exits with 0
    When a command runs where nobody reads the output: status --json
    Then the command line exits with 0

  Scenario: A link to a file stays a link, and a pipe is written through
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "real.jsonl" of 1 prompts
    And a command's link "link.jsonl" to "real.jsonl"
    When a command runs: run actor.yaml asks.jsonl -o link.jsonl
    Then the command line has written 2 answers in order to "real.jsonl"
    Given a command's pipe "pipe" whose reader writes "read.jsonl"
    When a command runs: results RUN -o pipe
    Then the command line exits with 0 and says
      """
      writing to the pipe pipe, as fast as it is read
      """
    And the command line has written 2 answers in order to "read.jsonl"

  Scenario: A file that an earlier run wrote stays whole while the next one fails
    Given a command's API with {"faults": {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}}
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "out.jsonl"
      """
      {"id": "1", "ok": true, "text": "prompt 1 of yesterday"}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario: A run that was asked of another server is not waited for at this one
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --base-url http://127.0.0.1:1
    Then the command line exits with 3
    When a command runs: resume
    Then the command line exits with 3 and says
      """
      RUN is meant for http://127.0.0.1:1, but this command uses http://127.0.0.1:
      continue with: claude-batch resume RUN --base-url http://127.0.0.1:1
      """
    And the command line has sent nothing

  Scenario Outline: A run whose base URL is another spelling is not passed over in silence: <verb>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --base-url http://localhost:PORT
    And a command runs: <verb> --ledger ledger.db
    Then the command line exits with 3 and says
      """
      RUN was sent to http://localhost:
      , but this command uses http://127.0.0.1:
      Continue with: claude-batch resume RUN --ledger ledger.db --base-url http://localhost:
      """
    When a command runs: status RUN --json
    Then the command line prints
      """
      no process drives it, and it belongs to another base URL, http://localhost:
      ; continue with `claude-batch resume RUN --base-url http://localhost:
      """
    When a command runs: <verb> --base-url http://LOCALHOST:PORT/
    And a command repeats every <verb> --base-url http://localhost:PORT until it exits with 0
    Then the command line has written 1 answers in order to "out.jsonl"

    Examples:
      | verb    |
      | resume  |
      | advance |

  Scenario: The same requests for another spelling of the base URL are reported before they are paid twice
    Given a command's API
    And the next runs get the ids run-1a00000000 run-1b00000000 run-1c00000000 run-1d00000000 run-1e00000000 run-1f00000000 run-1g00000000
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl -o other.jsonl --base-url http://localhost:PORT
    Then the command line exits with 0 and says
      """
      the same requests were sent to http://127.0.0.1:
      as run-1a00000000; they are sent again now. To continue that run instead: add `--base-url http://127.0.0.1:
      """
    When a command runs: run actor.yaml asks.jsonl -o other.jsonl --base-url http://localhost:PORT
    Then the command line exits with 0
    And the command line does not say: the same requests were sent
    When a command runs: run actor.yaml asks.jsonl -o more.jsonl --base-url http://127.0.0.1:PORT/v1
    And a command runs: cancel run-1d
    # What is left of the second run is paid for, what was cancelled is not.
    And a command runs: run actor.yaml asks.jsonl --base-url http://127.0.0.2:PORT --max-wait 0.1s
    Then the command line says
      """
      the same requests were sent to http://localhost:
      """
    And the command line does not say: /v1
    Given a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --base-url http://127.0.0.1:PORT/v1
    And a command runs: run actor.yaml asks.jsonl -o more.jsonl --api-key-env ANTHROPIC_API_KEY
    Then the command line exits with 0 and says
      """
      the same requests wait for http://127.0.0.1:
      /v1 as run-1f00000000, of which nothing was sent; if that base URL is wrong, run `claude-batch cancel run-1f00000000 --api-key-env ANTHROPIC_API_KEY`
      """

  Scenario: A command in an error of the library has the flags that were typed
    Given a command's API with {"latency": 3600, "cancel_latency": 3600}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --ledger my.db
    And a command runs: cancel RUN --ledger my.db
    And a command runs: retry RUN --ledger my.db --only canceled
    Then the command line exits with 2 and says
      """
      RUN is being cancelled, and its requests have not ended. Nothing was sent again. Wait for them with: `claude-batch resume RUN --ledger my.db`
      """

  Scenario: advance needs no key if nothing is due
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs without a key: advance
    Then the command line exits with 0 and says
      """
      nothing is due
      """
    When a command runs: submit actor.yaml asks.jsonl --new
    And a command runs without a key: advance
    Then the command line exits with 2 and says
      """
      no API key
      """

  Scenario Outline: However many runs are finished, <verb> asks the ledger as often: <verb>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --base-url http://127.0.0.1:1
    And a command's ledger has 2 more runs, which are finished
    And a command counts its questions to the ledger: <verb> --base-url http://127.0.0.1:2
    And a command's ledger has 1998 more runs, which are finished
    And a command counts its questions to the ledger: <verb> --base-url http://127.0.0.1:2
    Then the command has asked the ledger as often both times, and exits with 3

    Examples:
      | verb    |
      | resume  |
      | advance |

  Scenario: A run that another process still stores is not waited for, one that is stored is
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command's process stores: run actor.yaml pipe.jsonl -o all.jsonl
    And a command runs: resume
    Then the command line exits with 0 and says
      """
      there is no unfinished run
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 1 answers in order to "out.jsonl"
