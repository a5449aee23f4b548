Feature: A conversation in a restored ledger is mixed with no other turn, and runs no tool twice

  Background:
    Given a command's API
    And a command's environment has CLAUDE_BATCH_SETTLING = 100ms
    And a command's environment has CLAUDE_BATCH_MAX_TURNS = 5

  Scenario Outline: A later turn is not taken for the first one, whose batch cannot be read yet: <before>
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "asks.jsonl"
      """
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      """
    And the API has the faults
      """
      <faults>
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: <looks>
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      its results cannot be read
      a batch before it, which is not known yet, may hold earlier turns
      """
    When a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id      | ok | says            |
      | goes on | no | turns_forgotten |
    And the API has been paid 2 times, never twice for the same

    Examples:
      | before          | looks   | faults                                                                                    |
      | it was not sent | status  | {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}  |
      | it had failed   | advance | {"requests": [{"nth": [1], "outcome": "errored", "error": {"type": "overloaded_error"}}]} |

  Scenario: A later turn that has failed is not passed over before the first one is found
    Given a command's file "asks.jsonl"
      """
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"requests": [{"nth": [2], "outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    And a command's ledger may send at once
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      its results cannot be read
      a batch before it, which is not known yet, may hold earlier turns
      """
    When a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id      | ok | says            |
      | goes on | no | turns_forgotten |
    And the API has been paid 2 times, never twice for the same

  Scenario: No turn follows from an answer after a failure of which it is not known what it answers
    Given a command's file "asks.jsonl"
      """
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has the faults
      """
      {"requests": [{"nth": [2], "outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    And a command's ledger may send at once
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command's ledger is replaced by "copy.db"
    And somebody deletes the oldest batch at the API
    And the API has no faults any more
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id      | ok | says            |
      | goes on | no | turns_forgotten |
    And the API has been paid 2 times, never twice for the same

  Scenario: No turn follows from an answer of which it is not known what it answers
    Given a command's file "asks.jsonl"
      """
      {"id": "ends", "prompt": "Search [[sandbox:pause:1]]"}
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And somebody deletes the oldest batch at the API
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id      | ok  | says                 |
      | ends    | yes | Still searching (1). |
      | goes on | no  | turns_forgotten      |
    And the API has been paid 4 times, never twice for the same

  Scenario: A batch that cannot be looked up yet keeps a later turn from being passed over
    Given a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Search [[sandbox:pause:1]]"}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      its requests were sent before in msgbatch_
      """
    When a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id  | ok  | says                 |
      | one | yes | Still searching (1). |
    And the API has been paid 2 times, never twice for the same

  Scenario: An answer that another line hides is not passed over
    Given a server that means harm, before an API
    And it gives the results of every batch but the first with an error nested once
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Search [[sandbox:pause:1]]"}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the API does not send 1 of its successes
      """
    When the server means no harm any more
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id  | ok  | says                 |
      | one | yes | Still searching (1). |
    And the API has been paid 2 times, never twice for the same

  Scenario: An answer that another line hides is neither paid for again nor passed over on the user's order
    Given a server that means harm, before an API
    And it gives the results of every batch but the first with an error nested once
    And a command's environment has CLAUDE_BATCH_MISSING_AFTER = 1s
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Search [[sandbox:pause:1]]"}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      ledger recover --force` adopts the 1 result that it sends; a request that failed there
      """
    When a command runs: ledger recover --force
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok | says   |
      | one | no | result |
    And the API has been paid 2 times, never twice for the same

  Scenario: A forgotten turn is not sent again on the user's order, although the turn before it is read only later
    Given a command's file "asks.jsonl"
      """
      {"id": "goes on", "prompt": "Search more [[sandbox:pause:2]]"}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a command runs: ledger recover --force
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id      | ok | says            |
      | goes on | no | turns_forgotten |
    And the API has been paid 2 times, never twice for the same

  Scenario: Retrying a malformed answer to a forgotten turn starts its conversation with the first turn
    Given a command's environment has CLAUDE_BATCH_MAX_TURNS = 3
    And a server that means harm, before an API
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Search [[sandbox:pause:2]]"}
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command runs: ledger backup copy.db
    Given it gives the results of every batch but the first with a string as content
    When a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    When the server means no harm any more
    And a command runs: retry RUN --only malformed
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id  | ok  | says                 |
      | one | yes | Still searching (2). |

  Scenario Outline: A tool that may have run after the copy was made does not run again: <fault>
    Given a command's file "journeys.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:<tool>"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Travel [[sandbox:tools]]"}
      """
    When a command runs: submit journeys.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And the API has the faults
      """
      {"rules": [{"route": "<route>", "action": {"type": "error", "status": <status>}}]}
      """
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    And the high-water mark has the API's time
    When the API has no faults any more
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4 and says
      """
      ledger recover
      """
    And the file "journeys.txt" has 1 lines
    When a command runs: ledger recover
    And a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok   | says   |
      | one | <ok> | <says> |
    And the file "journeys.txt" has <runs> lines

    Examples:
      | fault                            | route  | status | tool    | runs | ok  | says             |
      | the next turn is refused         | create | 529    | book    | 1    | no  | tool_interrupted |
      | nothing is sent                  | list   | 500    | book    | 1    | no  | tool_interrupted |
      | the tool is marked as repeatable | create | 529    | look_up | 2    | yes | is booked        |

  Scenario: A tool that shares its function with a repeatable one does not run again
    Given a command's file "journeys.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:book", "toolbox:look_up"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Travel [[sandbox:tools]]"}
      """
    When a command runs: submit journeys.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    When the API has no faults any more
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    When a command runs: results RUN -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok | says             |
      | one | no | tool_interrupted |

  Scenario: A conversation that had failed, and was asked again since, is not paid for again
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Search [[sandbox:pause:1]]"}
      """
    And the API has the faults
      """
      {"requests": [{"nth": [1], "outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And a command runs: advance
    And a command waits 0.2 seconds
    And a command's ledger is replaced by "copy.db"
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: resume
    Then the command line has written to "out.jsonl"
      | id  | ok  | says                 |
      | one | yes | Still searching (1). |
    And the API has been paid 2 times, never twice for the same

  Scenario: A tool of a conversation that had failed, and was asked again since, does not run again
    Given a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "journeys.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:book"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Travel [[sandbox:tools]]"}
      """
    And the API has the faults
      """
      {"requests": [{"nth": [1], "outcome": "errored", "error": {"type": "overloaded_error"}}]}
      """
    When a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    When a command runs: ledger backup copy.db
    And the API has no faults any more
    And a command runs: submit journeys.yaml asks.jsonl -o out.jsonl
    And a command waits 0.2 seconds
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    When the API has no faults any more
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok | says             |
      | one | no | tool_interrupted |
    And the file "journeys.txt" has 1 lines

  Scenario: A tool does not run again for an answer that another copy of the ledger had
    Given a command's environment has CLAUDE_BATCH_NOT_FOUND_AFTER = 100ms
    And a command's file "journeys.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:book"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Travel [[sandbox:tools]]"}
      """
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit journeys.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup before.db
    And a command's ledger may send at once
    And a command runs: advance
    And a command runs: ledger backup sent.db
    And a command waits 0.2 seconds
    And somebody deletes the oldest batch at the API
    And a command's ledger is replaced by "before.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command's ledger may send at once
    And a command runs: advance
    And a command waits 0.2 seconds
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    When the API has no faults any more
    And a command's ledger is replaced by "sent.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the API does not show it, and it may have been answered
      """
    When a command waits 2.1 seconds
    And a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok | says             |
      | one | no | tool_interrupted |
    And the file "journeys.txt" has 1 lines

  Scenario: A tool does not run again for an answer that a recovery could not look up
    Given a command's file "journeys.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:book"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      {"id": "one", "prompt": "Travel [[sandbox:tools]]"}
      """
    When a command runs: submit journeys.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger backup copy.db
    And a command waits 0.2 seconds
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    And a command runs: advance
    Then the file "journeys.txt" has 1 lines
    When the API has the faults
      """
      {"rules": [{"route": "retrieve", "nth": [1], "action": {"type": "error", "status": 404}}]}
      """
    And a command's ledger is replaced by "copy.db"
    And a command waits 0.2 seconds
    And a command runs: ledger recover
    Then the command line exits with 3 and says
      """
      the API does not show it, and it may have been answered
      """
    When a command runs: ledger recover
    Then the command line exits with 0
    When a command runs: run journeys.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id  | ok | says             |
      | one | no | tool_interrupted |
    And the file "journeys.txt" has 1 lines
