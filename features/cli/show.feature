Feature: show prints one request from its prompt to its answer

  Scenario: Prompt, documents, answer, citations, attempts and cost
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "total", "prompt": "The total?", "documents": [{"path": "invoice.txt"}], "citations": true}
      """
    And a command's file "invoice.txt"
      """
      Total: 12 dollars. [[sandbox:errored:overloaded_error:once]]
      """
    When a command runs: run --model claude-haiku-4-5 --system Briefly. asks.jsonl -o out.jsonl
    And a command runs without a key: show RUN total
    Then the command line exits with 0
    And the command line prints in this order
      """
      RUN total: succeeded
      model: claude-haiku-4-5
      system:
        Briefly.
      user:
        [document: invoice.txt, text/plain, 61 characters]
        The total?
      answer (claude-haiku-4-5-20251001, end_turn):
        Sandbox answer
        [cites invoice.txt, characters 0 to
      attempts:
        1: errored, msgbatch_
      overloaded_error: Overloaded
        2: succeeded, msgbatch_
      tokens in
      cost: $0.00
      """

  Scenario: Each turn of a conversation, its tools and their results
    Given a command's API
    And a command's file "tools.yaml"
      """
      name: tests/traveller
      provider: anthropic
      model: claude-haiku-4-5
      tools: ["toolbox:population"]
      batch_processing: {turn_linger: 0s}
      """
    And a command's file "asks.jsonl"
      """
      "Look [[sandbox:tools]]"
      """
    When a command runs: run tools.yaml asks.jsonl -o out.jsonl
    And a command runs: show RUN 1
    Then the command line prints in this order
      """
      tools: population
      user:
        Look [[sandbox:tools]]
      assistant:
        [tool call: population]
        {
          "city":
      user:
        [tool result]
      answer (
      tools that ran here:
        population: started
      succeeded after
      attempts:
        1: succeeded
        2: succeeded
      """

  Scenario: A request without an answer
    Given a command's API with {"latency": 60}
    And a command's file "asks.jsonl"
      """
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: show RUN 1
    Then the command line exits with 0
    And the command line prints
      """
      RUN 1: packed
      no answer yet
      """

  Scenario: A failure in the API's words
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: show RUN 1
    Then the command line exits with 0
    And the command line prints
      """
      RUN 1: errored
      no answer: invalid_request_error: The request was invalid.
      """

  Scenario: --json has what was sent and received, unchanged
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: show RUN 2 --json
    Then the command line's status as JSON has
      | field                                   | value                      |
      | id                                      | "2"                        |
      | number                                  | 2                          |
      | state                                   | "succeeded"                |
      | params.messages.0.content               | "prompt 2"                 |
      | attempts.0.line.result.message.role     | "assistant"                |
      | attempts.0.model                        | "claude-haiku-4-5-20251001" |
      | answered_by                             | 1                          |
      | tool_calls                              | []                         |

  Scenario Outline: An unknown run or id is an error that says which there are: <words>
    Given a command's API
    And a command's file "asks.jsonl" of 4 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: <words>
    Then the command line exits with 2 and says
      """
      <told>
      """

    Examples:
      | words                              | told                                                            |
      | show run-nosuchrun 1               | has no run 'run-nosuchrun'                                      |
      | show RUN 5                         | RUN has no request '5'. Of its 4 ids the first are '1', '2', '3' |
      | show RUN 5 --json                  | RUN has no request '5'                                          |
      | show RUN 1 --ledger /tmp/nowhere/l | there is no ledger at /tmp/nowhere/l yet                        |
      | show RUN                           | Missing argument 'KEY'                                          |

  Scenario: A name that is no UTF-8 is no id
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs on a terminal: show RUN BADNAME
    Then the terminal was not steered, and shows "has no request 'bad\udcff.yaml'"
    When a command runs on a terminal: show BADNAME 1
    Then the terminal was not steered, and shows "has no run 'bad\udcff.yaml'"

  Scenario: Nothing that a user or a model wrote steers the terminal or looks like the command's words
    Given a ledger with hostile texts in its prompts, answers, keys, labels and actors
    When a command runs on a terminal: show RUN 2
    Then the terminal was not steered, and shows "answer (claude-haiku-4-5-20251001, end_turn):  > * [x](y)"
    When a command runs on a terminal: show RUN 3
    Then the terminal was not steered, and shows "user:  [[sandbox:errored:invalid_request_error]] \x9b31m \u2066"
    When a command runs on a terminal: show RUN 2 --json
    Then the terminal was not steered, and shows "answered_by"
    When a command runs in a pipe: show RUN 3
    Then the pipe holds "\x9b31m \u2066"

  Scenario: status names the failed requests of each kind, and the command that shows one
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "good", "prompt": "prompt 1"}
      {"id": "my key", "prompt": "[[sandbox:errored:invalid_request_error]]"}
      {"id": "other", "prompt": "[[sandbox:errored:invalid_request_error]] again"}
      {"id": "no", "prompt": "[[sandbox:refused]]"}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger my.db
    Then the command line exits with 1 and says
      """
      see them with: claude-batch status RUN --ledger my.db
      """
    When a command runs: status RUN --ledger my.db
    Then the command line prints in this order
      """
      failed:
        2 invalid_request_error: 
          my key, other
        1 refused
          no
      see a request with: `claude-batch show RUN 'my key' --ledger my.db`
      """
    When a command runs: show RUN 'my key' --ledger my.db
    Then the command line exits with 0

  Scenario: The id of a failed request may look like a flag, or have a line break
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "a\nb", "prompt": "[[sandbox:errored:invalid_request_error]]"}
      {"id": "-5", "prompt": "[[sandbox:refused]]"}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger my.db
    And a command runs: status RUN --ledger my.db
    Then the command line prints in this order
      """
      failed:
        1 invalid_request_error: 
          a b
        1 refused
          -5
      see a request with: `claude-batch show RUN -5 --ledger my.db`
      """
    When a command runs: show RUN -5 --ledger my.db
    Then the command line exits with 0
    When a command runs: show RUN -5 --jso --ledger my.db
    Then the command line exits with 2 and says
      """
      --jso
      """
