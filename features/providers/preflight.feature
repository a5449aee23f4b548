Feature: The API looks at one request of each shape before a run is sent
  Counting tokens is free; a batch tells of a mistake only hours later.

  Scenario: A model that does not exist refuses a large run at once
    Given an API
    And a batch provider
    When a run of 101 prompts is asked of the model "unknown-model-9"
    Then it is refused before anything is sent, because of "model: unknown-model-9"
    And the refusal names "request at position 0"
    And nothing is left of it in the ledger

  Scenario: The error has the item's name, its schema, and the API's message
    Given an API
    And a batch provider with {"preflight": true}
    When a run is asked of these requests
      | request                                                                                                        |
      | {"id": "good", "params": {"messages": [{"role": "user", "content": "x"}]}}                                     |
      | {"id": "bad", "params": {"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "of tomorrow"}}} |
    Then it is refused before anything is sent, because of "thinking: Input tag 'of tomorrow'"
    And the refusal names "request 'bad'"

  Scenario: A prompt with a model of its own is a shape of its own
    Given an API
    And a batch provider with {"preflight": true}
    When a run is asked of these requests
      | request                                                      |
      | "one"                                                        |
      | {"id": "bad", "prompt": "two", "model": "unknown-model-9"}   |
      | "three"                                                      |
    Then it is refused before anything is sent, because of "model: unknown-model-9"
    And the refusal names "request 'bad'"

  Scenario Outline: <shapes> shapes are <shapes> calls, however many requests have them
    Given an API
    And a batch provider
    When a run of <requests> requests of <shapes> shapes is asked
    Then the API has counted tokens <calls> times
    And all of them are answered

    Examples:
      | requests | shapes | calls |
      | 1        | 1      | 1     |
      | 100      | 3      | 3     |
      | 101      | 1      | 1     |
      | 101      | 3      | 3     |
      | 120      | 60     | 50    |

  Scenario: A turn of a thread is not checked, because the API counts no thread
    Given an API
    And a batch provider with {"preflight": true}
    When a run is asked of these requests
      | request                                                                                                                                                                              |
      | {"params": {"thread": {"type": "continue", "previous_message_id": "m"}, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]}} |
    Then all of them are answered
    And the API has counted tokens 0 times

  Scenario: A run that is stored on an event loop raises the same error
    Given an API
    And a batch provider
    When a run of 101 prompts is asked of the model "unknown-model-9", in an event loop
    Then it is refused before anything is sent, because of "model: unknown-model-9"
    And nothing is left of it in the ledger

  Scenario: A model that does not exist refuses a small run too
    Given an API
    And a batch provider
    When a run of 1 prompts is asked of the model "unknown-model-9"
    Then it is refused before anything is sent, because of "model: unknown-model-9"
    And nothing is left of it in the ledger

  Scenario Outline: A run of <requests> requests of <shapes> shapes, of which the ledger knows <known>, is <calls> calls more
    Given an API
    And a batch provider
    When a run of <known> requests of <known> shapes is asked
    Then the API has counted tokens <known> times
    When a run of <requests> requests of <shapes> shapes is asked
    Then the API has counted tokens <in all> times

    Examples:
      | known | requests | shapes | calls | in all |
      | 2     | 4        | 2      | 0     | 2      |
      | 2     | 5        | 3      | 1     | 3      |
      | 2     | 101      | 2      | 2     | 4      |

  Scenario: A shape that was refused is checked again, and another workspace's shape too
    Given an API
    And a batch provider
    When a run of 1 prompts is asked of the model "unknown-model-9"
    And a run of 1 prompts is asked of the model "unknown-model-9"
    Then the API has counted tokens 2 times
    When a run of 2 requests of 1 shapes is asked
    Then the API has counted tokens 3 times
    Given an API
    And a batch provider
    When a run of 3 requests of 1 shapes is asked
    Then the API has counted tokens 1 times

  Scenario: A small run goes on without a warning if the check fails
    Given an API
    And a batch provider
    And the API has the faults
      """
      {"rules": [{"route": "count_tokens", "action": {"type": "error", "status": 429}}]}
      """
    When a run of 2 requests of 1 shapes is asked
    Then all of them are answered
    And no warning is given

  Scenario: Without the check, and for stored runs, the API is not asked
    Given an API
    And a batch provider with {"preflight": false}
    When a run of 101 requests of 1 shapes is asked
    Then the API has counted tokens 0 times
    Given a batch provider with {"drive": false}
    When a run of 102 prompts is stored without driving
    Then the API has counted tokens 0 times

  Scenario: The same run asked again is not looked at again
    Given an API
    And a batch provider
    When a run of 101 requests of 1 shapes is asked
    And a run of 101 requests of 1 shapes is asked
    Then the API has counted tokens 1 times

  Scenario Outline: <what> is no reason to refuse
    Given an API
    And a batch provider
    And the API has the faults
      """
      {"rules": [{"route": "count_tokens", "action": <action>}]}
      """
    When a run of 101 requests of 1 shapes is asked
    Then all of them are answered
    And a warning says "the check before sending was not finished: <words>"

    Examples:
      | what                    | action                                                                           | words |
      | An API that is busy     | {"type": "error", "status": 429}                                                 | 429   |
      | What the account lacks  | {"type": "error", "status": 401}                                                 | 401   |
      | A fault of the API's    | {"type": "error", "status": 500}                                                 | 500   |
      | A dropped connection    | {"type": "drop_before"}                                                          |       |
      | A gateway without it    | {"type": "error", "status": 404, "message": "Not found"}                         | 404   |
      | A page of somebody else | {"type": "html_200"}                                                             | POST  |
      | What only counting dislikes | {"type": "error", "status": 400, "message": "mcp_servers: Extra inputs are not permitted"} | 400 |

  Scenario: The API gives no answer in time
    Given an API
    And a batch provider
    And the API has the faults
      """
      {"rules": [{"route": "count_tokens", "action": {"type": "hang", "seconds": 30}}]}
      """
    And a limit of 1 second that the preflight waits for an answer
    When a run of 101 requests of 1 shapes is asked
    Then all of them are answered
    And a warning says "the check before sending was not finished: no answer for 1 seconds"

  Scenario: A command refuses a run with the item, and with exit code 2
    Given a command's API
    And a command's file "many.jsonl" of 101 prompts
    When a command runs: run --model unknown-model-9 many.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      request '1': the API rejects it: 404 not_found_error: model: unknown-model-9
      """
    When a command runs: run --model unknown-model-9 --no-preflight many.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      101 errored of 101
      """

  Scenario: With --skip-invalid one request's own fault does not refuse the others
    Given a command's API
    And a command's file "ask.jsonl"
      """
      {"id": "odd", "messages": [{"role": "user", "content": [{"text": "no type"}]}]}
      {"id": "even", "prompt": "fine"}
      """
    When a command runs: run --model claude-haiku-4-5 --preflight ask.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      request 'odd': the API rejects it
      """
    When a command runs: run --model claude-haiku-4-5 --preflight --skip-invalid ask.jsonl -o out.jsonl
    Then the command line exits with 1 and says
      """
      1 errored, 1 succeeded of 2
      """
