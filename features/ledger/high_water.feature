Feature: A ledger that was restored sends nothing until it knows again what was sent from it

  Background:
    Given a command's API
    And a command's environment has CLAUDE_BATCH_SETTLING = 100ms
    And a command's file "asks.jsonl" of 3 prompts
    And a command's file "more.jsonl"
      """
      "another prompt"
      """

  Scenario: Requests that were queued when the backup was made are found at the API, and not paid for again
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    Then the command line exits with 0
    When the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      sending is halted (ledger_behind)
      claude-batch ledger recover
      """
    When a command runs: status RUN
    Then the command line prints
      """
      RUN halted
      """
    When a command runs: ledger show
    Then the command line prints
      """
      high water: above
      schema version: 9
      requests: 3 packed
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      the ledger is recovered and may send again
      """
    When a command runs: ledger show
    Then the command line prints
      """
      batches: 1 collected, 1 rejected
      """
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice
    When a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0
    When a command runs: ledger show --json
    Then the command line's status as JSON has
      | field      | value     |
      | high_water | "reached" |

  Scenario: A call that may have been made live since the backup is not made again automatically
    Given the API has the faults
      """
      {"rules": [{"route": "messages", "action": {"type": "error", "status": 402}}]}
      """
    And a command's environment has CLAUDE_BATCH_MODE = live
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      sending is halted (ledger_behind)
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      3 requests may have been sent live since
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      3 lost
      """
    And the API has been paid 3 times, never twice for the same
    When a command runs: budget RUN 1
    Then the command line exits with 0
    And what each lost call can cost live is kept, and nothing is reserved

  Scenario: What may have been sent live since the backup is not canceled before the ledger is recovered
    Given the API has the faults
      """
      {"rules": [{"route": "messages", "action": {"type": "error", "status": 402}}]}
      """
    And a command's environment has CLAUDE_BATCH_MODE = live
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      sending is halted (ledger_behind)
      """
    When a command runs: cancel RUN
    Then the command line exits with 0 and says
      """
      its requests end when the ledger is recovered: `claude-batch ledger recover`
      """
    When a command runs: retry RUN --only canceled
    Then the command line exits with 2 and says
      """
      is being cancelled, and its requests have not ended
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      3 requests may have been sent live since
      """
    When a command runs: retry RUN --only canceled
    Then the command line exits with 1
    And the API has been paid 3 times, never twice for the same

  Scenario: What may have been sent live since the backup does not expire before the ledger is recovered
    Given the API has the faults
      """
      {"rules": [{"route": "messages", "action": {"type": "error", "status": 402}}]}
      """
    And a command's environment has CLAUDE_BATCH_MODE = live
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --deadline 8s --deadline-margin 1s --fallback none
    Then the command line exits with 4
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: resume
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 8.0 seconds
    And a command runs: resume
    Then the command line exits with 4
    When a command runs: retry RUN --only expired
    Then the command line exits with 3
    When a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      3 requests may have been sent live since
      """
    When a command runs: retry RUN --only expired
    Then the API has been paid 3 times, never twice for the same

  Scenario: Answers to what the backup does not know are reported and kept
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 1 request that this ledger does not have; submit it again
      """
    And in the ledger the counts of strange lines are [1]
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 2 batches, and processed no request twice

  Scenario: A failure beside answers to what the backup does not know is sent again
    Given a command's file "busy.jsonl"
      """
      {"id": "one", "prompt": "Busy [[sandbox:errored:overloaded_error:once]]"}
      """
    When a command runs: submit actor.yaml busy.jsonl -o out.jsonl --budget 0.00001
    Then the command line exits with 3
    When a command runs: budget RUN 1
    And a command runs: ledger backup copy.db
    And a command runs: submit actor.yaml more.jsonl
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 1 request of this ledger
      has the answers to 1 request that this ledger does not have
      """
    When a command runs: resume
    Then the command line exits with 0 and says
      """
      1 succeeded
      """
    And the API has been paid 2 times, never twice for the same

  Scenario: The budget of a day counts the answers to what the backup does not know
    When a command runs: run actor.yaml asks.jsonl --daily-budget 1
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl -o more.out
    And a command runs: budget
    Then the command line prints
      """
      today (UTC): budget $1, spent $0.000176, reserved $0.00, left
      """
    When a command's ledger is replaced by "copy.db"
    And a command runs: budget
    Then the command line prints
      """
      today (UTC): budget $1, spent $0.000128, reserved $0.00, left
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: budget
    Then the command line prints
      """
      today (UTC): budget $1, spent $0.000176, reserved $0.00, left
      """
    When a command runs: run actor.yaml more.jsonl -o more.out --daily-budget 0.0002
    Then the command line exits with 3 and says
      """
      1 request is held: the budget of this day (UTC) is $0.0002, $0.0001755 of it spent
      """

  Scenario: Recovery waits for batches that still process, and meanwhile nothing is sent
    Given a command's API with {"latency": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      cannot be recovered: it is still processing
      nothing is sent until every batch is known
      """
    When a command runs: resume
    Then the command line exits with 4
    When the API's clock goes 2 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: A batch that cannot be judged is sent again on the user's order alone
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "error", "status": 404}}]}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      its results cannot be read
      """
    When the API has no faults any more
    And a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the last batch may have been sent so recently that the API does not list it yet; wait
      """
    When a command runs: ledger recover --force
    Then the command line exits with 0

  Scenario: A batch that was deleted at the API is named as the reason why the recovery waits, with the remedy
    Given the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "error", "status": 500}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: advance
    Then in the ledger the states of the batches come to be ["ended"]
    When somebody deletes the oldest batch at the API
    And the API has no faults any more
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3 and says
      """
      msgbatch_
      cannot be recovered: the API answers 404, as it does for a batch that was deleted there
      It counts as lost after 1d of such answers
      at least every 12h
      ledger recover --force
      """
    When a command runs: ledger recover --force
    Then the command line exits with 0
    And in the ledger the states of the batches come to be ["ended"]

  Scenario Outline: Stray lines in a forgotten batch's results do not hide its own: <stray>
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": <stray>}]}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with <code> and says
      """
      <words>
      """
    When the API has no faults any more
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

    Examples:
      | stray                                 | code | words                                       |
      | {"type": "foreign_lines", "count": 2} | 0    | was adopted, with 3 requests of this ledger |
      | {"type": "garbage_line", "count": 2}  | 0    | was adopted, with 3 requests of this ledger |
      | {"type": "missing_lines", "count": 1} | 3    | the API does not send 1 of its results      |
      | {"type": "missing_lines", "count": 3} | 3    | the API does not send 3 of its results      |

  Scenario Outline: A batch that was being sent when the backup was made is found too: <how far>
    When a command's process dies at <point>: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

    Examples:
      | how far            | point        |
      | its end held back  | after_intent |
      | its end on the way | after_armed  |

  Scenario: A batch that is unknown in the backup may have been sent again with other requests
    Given a command's file "asks.jsonl" of 4 prompts
    And a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_before"}}]}
      """
    When a command runs: submit --model claude-haiku-4-5 --max-tokens 1000 asks.jsonl --budget 0.01 -o out.jsonl
    Then the command line exits with 3
    And in the ledger the states of the requests are ["packed", "packed", "packed", "queued"]
    When a command runs: ledger backup copy.db
    And a command runs: unknown RUN --resubmit
    And a command runs: budget RUN 1
    And a command runs: resume
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command's environment has CLAUDE_BATCH_SETTLING = 100ms
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 4 requests of this ledger
      """
    And in the ledger the states of the requests are ["succeeded", "succeeded", "succeeded", "succeeded"]
    When a command runs: budget RUN 1
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 4 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: Somebody else's batch is no answer to what was forgotten
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl
    And somebody else makes 1 batches of 3 requests
    And somebody else makes 1 batches of 1200 requests
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.5 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 1 request that this ledger does not have; submit it again
      """
    And in the ledger the counts of strange lines are [1]

  Scenario: A batch that is in progress in the backup is collected first
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: resume
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "missing_lines", "count": 1}}]}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      its results are not complete: 1 of 3 results were not in the stream
      """
    When the API has no faults any more
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 2 batches, and processed no request twice

  Scenario: A backup from before the first request knows none of the answers
    When a command's process dies at during_store_chunk: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml asks.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 3 requests that this ledger does not have; submit them again
      """

  Scenario: Only what knows nothing of the sending is behind: a process that dies in between is not
    When a command's process dies at before_high_water: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: A lost mark is no fault, nor is a ledger that begins anew
    When a command runs: run actor.yaml asks.jsonl
    And the high-water marks are lost
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "nothing"
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0

  Scenario: Two copies of a ledger do not both send
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl --ledger copy.db
    Then the command line exits with 0
    When a command runs: run actor.yaml more.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    And the API has taken 2 batches, and processed no request twice

  Scenario: A copy that sends at the same moment is noticed before anything has left
    When a command runs: run actor.yaml asks.jsonl
    Then of two copies that count a POST at the same moment the second is refused

  Scenario: A ledger that its mark shows to be whole is not recovered, and goes on sending
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: run actor.yaml asks.jsonl
    And a command runs without a key: ledger recover
    Then the command line exits with 0 and says
      """
      the ledger has every sending that its high-water mark counts: there is nothing to recover
      """
    When a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0
    And the API has taken 2 batches, and processed no request twice

  Scenario: A ledger that was restored together with its mark is recovered on order
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And the high-water marks are kept aside
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    And the high-water marks are put back
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: ledger recover --even-if-whole
    Then the command line exits with 3 and says
      """
      has the answers to 1 request that this ledger does not have; submit it again
      the last batch may have been sent so recently that the API does not list it yet; wait
      """
    Given a command's environment has CLAUDE_BATCH_SETTLING = 0.1s
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0

  Scenario: A recovery that has not ended names itself as what is left to do
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    When a command runs: submit actor.yaml more.jsonl
    Then the command line exits with 4 and says
      """
      because its recovery has not ended yet
      First run `claude-batch ledger recover`, then repeat the call
      """
    When a command runs: status RUN --json
    Then the command line prints
      """
      Look for them at the API with: `claude-batch ledger recover`; halted for
      until you run `claude-batch ledger recover`
      """
    When a command runs: doctor
    Then the command line exits with 4
    And the command line prints
      """
      until the ledger is recovered: the ledger
               claude-batch ledger recover
      """
    When a command runs: ledger show
    Then the command line prints
      """
      high water: reached
      """
    And the command line says
      """
      its recovery has not ended yet; continue it with: claude-batch ledger recover
      """
    When a command's environment has CLAUDE_BATCH_SETTLING = 1ms
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0

  Scenario: The recovery of one key's workspace lets no other workspace send what it has forgotten
    Given the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_A", "sk-ant-other-key": "wrkspc_B"},
       "rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: submit actor.yaml more.jsonl -o more.out
    And a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_A", "sk-ant-other-key": "wrkspc_B"}}
      """
    And a command's ledger may send at once
    And a command runs: run actor.yaml more.jsonl -o more.out
    Then the command line exits with 0
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      the ledger is recovered and may send again
      the workspaces of other keys still have to be recovered, at
      """
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: run actor.yaml more.jsonl -o more.out
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 1 request of this ledger
      """
    When a command runs: run actor.yaml more.jsonl -o more.out
    Then the command line exits with 0
    And the API has taken 2 batches, and processed no request twice
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command runs: run actor.yaml asks.jsonl more.jsonl
    Then the command line exits with 0

  Scenario: What may have been sent with a key that was refused when the backup was made is not sent with another
    Given the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_A", "sk-ant-other-key": "wrkspc_B"}}
      """
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: run actor.yaml more.jsonl -o more.out
    Then the command line exits with 4 and says
      """
      claude-batch ledger recover
      """
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      the workspaces of other keys still have to be recovered, at
      """
    When a command runs: run actor.yaml more.jsonl -o more.out
    Then the command line exits with 0
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has been paid 4 times, never twice for the same

  Scenario: If the key that was refused when the backup was made is gone, another sends its requests on order
    Given the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: run actor.yaml more.jsonl -o more.out
    And a command's ledger is replaced by "copy.db"
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: ledger recover --force
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0 and says
      """
      3 succeeded
      """

  Scenario: A workspace that is recovered goes on, and is not recovered again with those of other keys
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_A", "sk-ant-other-key": "wrkspc_B"}}
      """
    When a command runs: run actor.yaml asks.jsonl
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: run actor.yaml more.jsonl
    And the high-water marks are lost
    And a command runs: ledger recover
    Then the command line exits with 3
    When a command's environment has CLAUDE_BATCH_SETTLING = 1ms
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      the workspaces of other keys still have to be recovered, at
      """
    When a command runs: run actor.yaml asks.jsonl more.jsonl
    Then the command line exits with 0

  Scenario: The key of a workspace that the restored ledger does not know recovers it on order
    Given a command's environment has CLAUDE_BATCH_SETTLING = 1ms
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_A", "sk-ant-other-key": "wrkspc_B"}}
      """
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 0 and says
      """
      has the answers to 1 request that this ledger does not have
      """

  Scenario: What waited for a key without a known workspace is not sent again if another key has recovered that workspace
    When a command runs: run actor.yaml asks.jsonl
    And the API has the faults
      """
      {"workspace_header": false, "rules": [{"route": "messages", "action": {"type": "error", "status": 529}}]}
      """
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: run actor.yaml more.jsonl -o more.out --mode live --max-wait 1
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"workspace_header": true}
      """
    And a command runs: resume
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      the workspaces of other keys still have to be recovered, at
      """
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-other-key
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      1 request may have been sent live since the copy was made
      """
    When a command runs: resume
    Then the command line says
      """
      1 lost
      """
    And the API has been paid 4 times, never twice for the same
    When a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      there is nothing to recover
      """

  Scenario: Without a mark that shows when the last batch was sent, a recovery waits until it must be listed
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: run actor.yaml asks.jsonl
    And the high-water marks are lost
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the last batch may have been sent so recently that the API does not list it yet; wait 15
      """
    When a command runs: submit actor.yaml more.jsonl
    Then the command line exits with 4

  Scenario: If no mark counts them, live calls that may have been made are not made again
    Given the API has the faults
      """
      {"rules": [{"route": "messages", "action": {"type": "error", "status": 402}}]}
      """
    And a command's environment has CLAUDE_BATCH_MODE = live
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And the high-water marks are lost
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: ledger recover
    Then the command line exits with 3
    Given a command's environment has CLAUDE_BATCH_SETTLING = 0.1s
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      3 requests may have been sent live since
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the API has been paid 3 times, never twice for the same

  Scenario: A batch that was sent after the ledger was first found to be behind is found too
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the ledger was found to be behind an hour ago
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: resume
    Then the command line exits with 0
    And the API has taken 1 batches, and processed no request twice

  Scenario: Results that the API never counts are adopted on the user's order, and not paid for again
    Given a server that means harm, before an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    Given it answers the first 1000 API calls with no counts
    When a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      ledger recover --force` adopts the 3 results that it sends
      """
    Given the API has the faults
      """
      {"rules": [{"route": "results", "nth": 1, "action": {"type": "missing_lines"}}]}
      """
    When a command runs: ledger recover --force
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has processed 3 requests, none twice

  Scenario Outline: Results of a batch that the API does not send in full are adopted on the user's order, and not paid for again: <fetches>
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [
        {"route": "results", "nth": 2, "action": <first>},
        {"route": "results", "nth": 3, "action": <second>},
        {"route": "results", "nth": 4, "action": <third>},
        {"route": "results", "nth": <others>, "action": {"type": "missing_lines"}}
      ]}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the API does not send 1 of its results
      ledger recover --force` adopts the 2 results that it sends; a request without one is sent again, and may be paid for twice, or is lost
      """
    When a command runs: ledger recover --force
    Then the command line exits with 0 and says
      """
      was adopted, with <adopted> requests of this ledger
      """
    When the API has no faults any more
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed <all> requests in all

    Examples:
      | fetches                | first                                         | second                                        | third                                         | others | adopted | all |
      | all lack one           | {"type": "missing_lines"}                     | {"type": "missing_lines"}                     | {"type": "missing_lines"}                     | null   | 2       | 4   |
      | the first lacks one    | {"type": "missing_lines"}                     | {"type": "delay", "seconds": 0}               | {"type": "delay", "seconds": 0}               | 1      | 3       | 3   |
      | the first has none     | {"type": "missing_lines", "count": 3}         | {"type": "delay", "seconds": 0}               | {"type": "delay", "seconds": 0}               | 1      | 3       | 3   |
      | the first fails        | {"type": "error", "status": 404}              | {"type": "delay", "seconds": 0}               | {"type": "delay", "seconds": 0}               | 1      | 3       | 3   |
      | each lacks another one | {"type": "missing_lines"}                     | {"type": "missing_lines", "after_lines": 1}   | {"type": "missing_lines"}                     | 1      | 3       | 3   |
      | the later ones fail    | {"type": "missing_lines"}                     | {"type": "error", "status": 404}              | {"type": "error", "status": 404}              | null   | 2       | 4   |
      | all break off          | {"type": "cut_inside_line", "after_lines": 2} | {"type": "cut_inside_line", "after_lines": 2} | {"type": "cut_inside_line", "after_lines": 2} | null   | 2       | 4   |

  Scenario Outline: An entry of the API's list that cannot be read may be what was forgotten: <what>
    Given a server that means harm, before an API
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    Given it answers the first 9 list calls with <what>
    When a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      <words>
      nothing is sent until every batch is known
      """
    When the server means no harm any more
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 1 request that this ledger does not have
      """

    Examples:
      | what      | words                                                                 |
      | no status | of the API's list of batches cannot be read, and may be this ledger's |
      | no counts | cannot be recovered: the API does not count its results               |

  Scenario: A list that names no workspace, and shows nothing of what it had, ends no recovery
    Given a command's API with {"workspace_header": false}
    When a command runs: run actor.yaml more.jsonl
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl --budget 0.00001
    And a command runs: ledger backup copy.db
    And a command runs: budget RUN 1
    And a command runs: resume
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"workspaces": {"sk-ant-marked-for-the-search-0123456789": "wrkspc_other"}}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      batches may be missing: the API's list shows none of the batches that it had at the last sending
      If they were deleted: `claude-batch ledger recover --force`
      """
    When the API has no faults any more
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """

  Scenario Outline: A recovery ends although the last batch that the backup knows was deleted at the API: <list>
    Given a command's API with <list>
    And a command's file "first.jsonl" of 2 prompts
    When somebody else makes 1 batches of 3 requests
    And the API's clock goes 960 hours on
    And a command runs: run actor.yaml first.jsonl
    And a command runs: run actor.yaml more.jsonl
    And a command runs: ledger backup copy.db
    And somebody deletes the newest batch at the API
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 3 requests that this ledger does not have
      the ledger is recovered and may send again
      """

    Examples:
      | list                        |
      | {}                          |
      | {"workspace_header": false} |

  Scenario: A backup from before a recovery is behind too
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: ledger recover --even-if-whole
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """

  Scenario: A batch that was sent after a recovery is found by the recovery of a backup from before it
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: ledger recover --even-if-whole
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: A request that had failed, and was sent again since, gives no sending the number of that one
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "busy.jsonl"
      """
      {"id": "one", "prompt": "Busy [[sandbox:errored:overloaded_error]]"}
      """
    When a command runs: run actor.yaml busy.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml busy.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: submit actor.yaml busy.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: advance
    Then in the ledger the counts of results are [3]

  Scenario: A batch is found although only a later one shows that it is of this ledger
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "busy.jsonl"
      """
      {"id": "one", "prompt": "Busy [[sandbox:errored:overloaded_error:once]]"}
      """
    When a command runs: run actor.yaml busy.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command's ledger is recovered on order
    And a command runs: run actor.yaml more.jsonl
    And a command runs: run actor.yaml busy.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is recovered on order
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      has the answers to 1 request that this ledger does not have
      """

  Scenario: A batch that was sent is found although the clock of the machine was set since
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    Given the clock of this machine is -2 hours ahead
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    Given the clock of this machine is 0 hours ahead
    When a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """

  Scenario: A recovery waits until settling has passed by this machine's clock too
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: run actor.yaml more.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the API's clock goes 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the last batch may have been sent so recently that the API does not list it yet; wait 1
      """
    Given the clock of this machine is 1 hours ahead
    When a command runs: ledger recover
    Then the command line exits with 0

  Scenario: A date that was ahead when the last batch was sent does not make a recovery wait for it
    Given a server that means harm, before an API
    And it answers the first 1000 API calls with a clock that is an hour ahead
    When a command runs: run actor.yaml more.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When the server means no harm any more
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      the ledger is recovered and may send again
      """

  Scenario: A date that is behind in the middle of a recovery hides no batch that is in progress
    Given a server that means harm, before an API that takes 36000 seconds for a batch
    And a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: submit actor.yaml more.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    Given it answers the first 1000 API calls with a clock that is an hour behind
    When a command runs: ledger recover
    Then the command line exits with 3
    When the server means no harm any more
    And both clocks go 1 hours on
    And a command runs: ledger recover
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API's clock goes 20 hours on
    Then the API has taken 2 batches, and processed no request twice

  Scenario Outline: A gateway that writes the time of its own clock hides nothing that was forgotten: <clock>, budget <budget>
    Given a server that means harm, before an API that takes <takes> seconds for a batch
    And it answers the first 1000 API calls with <clock>
    When a command runs: submit actor.yaml more.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [<refused>], "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl --budget <budget>
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: budget RUN 1
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.5 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with <code> and says
      """
      <words>
      """

    Examples:
      | clock                          | refused | budget  | takes | code | words                                       |
      | a clock that is an hour ahead  | 1       | 1       | 0.05  | 0    | was adopted, with 3 requests of this ledger |
      | a clock that is an hour ahead  | 9       | 0.00001 | 0.05  | 0    | was adopted, with 3 requests of this ledger |
      | a clock that is an hour behind | 1       | 1       | 3600  | 3    | cannot be recovered: it is still processing |

  Scenario: A sending that is found after a later one gives its number to no other
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 3
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Busy [[sandbox:errored:overloaded_error]]"}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [3], "action": {"type": "error", "status": 401}}]}
      """
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1, 2, 3], "action": {"type": "error", "status": 404}}]}
      """
    And a command runs: ledger recover --force
    Then the command line exits with 0 and says
      """
      its results cannot be read
      """
    When a command's ledger is recovered on order
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And in the ledger the counts of results are [4]
    And the API has been paid 0 times, never twice for the same

  Scenario: A conversation whose later turn the backup has forgotten does not go on without that turn
    Given a command's environment has CLAUDE_BATCH_MAX_TURNS = 5
    And a command's file "asks.jsonl"
      """
      {"id": "ends", "prompt": "Search [[sandbox:pause:1]]"}
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      {"id": "fails", "prompt": "Search in vain [[sandbox:pause:1]]"}
      """
    And the API has the faults
      """
      {"requests": [{"contains": "in vain", "nth": [2], "outcome": "expired"}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id      | ok  | says                                                                     |
      | ends    | yes | Still searching (1).                                                     |
      | goes on | no  | turns_forgotten                                                          |
      | fails   | yes | Still searching (1).                                                     |
    And the API has been paid 6 times, never twice for the same

  Scenario: A backup that is restored again before its recovery has ended is still behind
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger is replaced by "copy.db"
    And the high-water marks are lost
    And a command runs: ledger recover
    Then the command line exits with 3
    When a command's ledger is replaced by "copy.db"
    And a command's ledger may send at once
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    And the API has taken 1 batches, and processed no request twice

  Scenario: A newer backup than the one whose recovery has not ended is behind, although that one came with its mark
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup first.db
    And the high-water marks are kept aside
    Given the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml more.jsonl
    And a command runs: ledger backup second.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "first.db"
    And the high-water marks are put back
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    When a command's ledger is replaced by "second.db"
    And a command's ledger may send at once
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    And the API has taken 2 batches, and processed no request twice

  Scenario: A backup from within a recovery, restored together with its mark, finds what was sent after it
    Given a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the high-water marks are kept aside
    And both clocks go 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When both clocks go 1 hours on
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And the high-water marks are put back
    And a command runs: ledger recover
    And both clocks go 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: A backup from within a recovery, restored together with its mark, waits on order for what processes
    Given a command's API with {"latency": 3600}
    And a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the high-water marks are kept aside
    And both clocks go 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When both clocks go 1 hours on
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And the high-water marks are put back
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3 and says
      """
      cannot be recovered: it is still processing
      """
    When both clocks go 2 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: A backup from within a recovery, restored together with its mark, waits on order for what may not be listed yet
    Given a command's API with {"listed_after": 600}
    And a command's environment has CLAUDE_BATCH_SETTLING = 15m
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's ledger may send at once
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3
    When a command runs: ledger backup copy.db
    And the high-water marks are kept aside
    And both clocks go 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 0
    When the API has no faults any more
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command's ledger is replaced by "copy.db"
    And the high-water marks are put back
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with 3 and says
      """
      the last batch may have been sent so recently that the API does not list it yet; wait 15m
      nothing is sent until every batch is known; then repeat, without --even-if-whole, which begins the wait again: claude-batch ledger recover
      """
    When both clocks go 1 hours on
    And a command runs: ledger recover
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: If the mark cannot be written, nothing is sent
    Given a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/asks.jsonl/state
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 3 and says
      """
      high-water mark
      name another folder with CLAUDE_BATCH_STATE_DIR
      """
    And the command line has sent nothing
    Given a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/state
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0

  Scenario: The mark's folder is the same one from every directory
    Given a command's environment has HOME = the folder
    And a command's environment has CLAUDE_BATCH_STATE_DIR = ~/marks
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    Given a command's folder named "elsewhere"
    When a command changes to the folder "elsewhere"
    And a command runs: run ../actor.yaml ../more.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    Given a command's environment has CLAUDE_BATCH_STATE_DIR = marks
    When a command runs: run ../actor.yaml ../more.jsonl
    Then the command line exits with 2 and says
      """
      mark, marks, is relative to the current directory. Set CLAUDE_BATCH_STATE_DIR to an absolute path
      """
    When a command runs: doctor
    Then the command line exits with 4
    And the command line prints
      """
      fault    mark: the folder of the ledger's high-water mark, marks, is relative
      """
    And the API has taken 2 batches, and processed no request twice

  Scenario: A mark that disappears into a full disk midway is a definite no
    When a command's process meets a full disk at before_high_water: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 3
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has taken 1 batches, and processed no request twice

  Scenario: A mark that cannot be read is not guessed
    When a command runs: run actor.yaml asks.jsonl
    And the high-water marks are overwritten with a letter
    And a command runs: run actor.yaml more.jsonl
    Then the command line exits with 3 and says
      """
      high-water mark
      cannot be read
      """
    When a command runs: ledger show
    Then the command line prints
      """
      high water: unreadable
      """
    When a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      Remove the damaged file, then run `claude-batch ledger recover`
      """
    When the high-water marks are lost
    And a command runs: ledger recover
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0

  Scenario: A ledger whose name is not UTF-8 has a mark that can be read, also one of an older version
    When a command runs: run actor.yaml asks.jsonl --ledger "l\udcff.db"
    And a command runs: run actor.yaml more.jsonl --ledger "l\udcff.db"
    Then the command line exits with 0
    When the high-water marks are overwritten with {"incarnation": "a", "posts": 9, "written": 1.0, "ledger": "l\udcff.db"}
    And a command runs: ledger show --ledger "l\udcff.db"
    Then the command line prints
      """
      high water: above
      """

  Scenario Outline: A mark that is JSON of another kind cannot be read either: <content>
    When a command runs: submit actor.yaml asks.jsonl
    And the high-water marks are overwritten with <content>
    And a command runs: ledger show
    Then the command line prints
      """
      high water: unreadable
      """

    Examples:
      | content                                            |
      | null                                               |
      | []                                                 |
      | {"incarnation": "a", "posts": 1, "written": 1e999} |
      | {"incarnation": "a", "posts": 1e999, "written": 1} |

  Scenario: A waiting call fails at once
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger backup copy.db
    And a command runs: run actor.yaml more.jsonl
    And a command's ledger is replaced by "copy.db"
    Given a batch provider
    When "hello" is asked with the key "k"
    Then every call fails with AccountHaltedError
    And the error's fields are
      | field  | value           |
      | reason | "ledger_behind" |

  Scenario Outline: A process sends nothing more from a file that is not the ledger's any more: <trouble>
    Given a command's file "many.jsonl" of 60 prompts
    When a command runs: run actor.yaml more.jsonl
    And a command runs: ledger backup older.db
    And a command runs: run actor.yaml many.jsonl
    Given a batch provider
    When "hello" is asked with the key "k"
    And a ledger has trouble: <trouble>
    And "good-bye" is asked with the key "l"
    Then every call fails with LedgerError
    And the ledger error says "<words>"
    And the API has taken 3 batches, and processed no request twice

    Examples:
      | trouble                          | words                                   |
      | its file is removed              | was removed or replaced by another file |
      | its file is replaced by a copy   | was removed or replaced by another file |
      | an older copy is written over it | away together with its -wal file        |

  Scenario: A backup never overwrites, and may be made while others write
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: ledger backup
    Then the command line exits with 0
    And the command line prints
      """
      /ledger.db.20
      """
    And the command line has left nothing half-written
    When a command runs: ledger backup asks.jsonl
    Then the command line exits with 2 and says
      """
      asks.jsonl: the file exists and is not overwritten; give another name
      """
    When a command runs: ledger backup nowhere/copy.db
    Then the command line exits with 2 and says
      """
      nowhere/copy.db: cannot be written: No such file or directory
      """
    And five copies that are made while another thread writes are whole

  Scenario: Recovery must be alone with the ledger
    When a command runs: run actor.yaml asks.jsonl
    And a command runs while another process holds its leader lock: ledger recover --even-if-whole
    Then the command line exits with 3 and says
      """
      another process drives the ledger
      """

  Scenario Outline: Recovery needs a key that works: <fault>
    When a command runs: run actor.yaml asks.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "any", "action": <action>}]}
      """
    And a command runs: ledger recover --even-if-whole
    Then the command line exits with <code> and says
      """
      <words>
      """

    Examples:
      | fault         | action                           | code | words            |
      | a wrong key   | {"type": "error", "status": 401} | 4    | was not recovered |
      | no such place | {"type": "error", "status": 404} | 3    | ledger recover   |

  Scenario: Recovery without a server, or without a key, changes nothing
    When a command runs: run actor.yaml asks.jsonl
    And a command runs: ledger recover --even-if-whole --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      cannot be reached
      """
    When a command runs without a key: ledger recover --even-if-whole
    Then the command line exits with 2 and says
      """
      no API key
      """
    When a command runs: run actor.yaml more.jsonl
    Then the command line exits with 0

  Scenario: A process that has the ledger open while it is recovered writes nothing more
    When a command runs: run actor.yaml asks.jsonl
    And a ledger is recovered while a process has it open
    Then what that process writes is refused: recovered by another process
