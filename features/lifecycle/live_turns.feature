@both_backends
Feature: Conversations that are asked live go on as those in batches do

  Scenario: A conversation of mode live has each of its turns live, and no batch
    Given an API that remembers what it is asked
    And a batch provider with {"mode": "live"}
    And its actor has the tools "population,weather"
    When the actor is asked: "Look [[sandbox:tools]] [[sandbox:pause]]"
    Then the answer took 4 turns
    And the answer's text has "rain in"
    And its cost is that of all its turns
    And the API was paid for 0 requests in batches and 4 live, none twice
    And each turn begins with the one before it, byte for byte

  Scenario: A few conversations of mode auto stay live in all their turns
    Given an API
    And a batch provider with {"mode": "auto", "auto_threshold": 5}
    And its actor has the tools "population,weather"
    When 5 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then every result is an answer
    And the API was paid for 0 requests in batches and 15 live, none twice

  Scenario: A live turn waits for no company
    Given an API
    And a batch provider with {"mode": "live", "turn_linger": "1h"}
    And its actor has the tool that is held
    When a run of these prompts is stored
      | prompt                     |
      | Look [[sandbox:tools]]     |
      | Search [[sandbox:pause:2]] |
    Then in the ledger the states of the requests come to be ["continuing", "succeeded"]
    When the tool is let go
    And the results are read in order
    Then the results by place have
      | field            | value        |
      | 0.response.text  | "…was kept…" |
      | 1.response.turns | 3            |

  Scenario: A turn that was answered with a 500 may have been paid for, and is not asked again
    Given an API
    And the API answers the live call number 2 with {"type": "error", "status": 500, "processed": true}
    And a batch provider with {"mode": "live"}
    And its actor has the tools "population,weather"
    When 1 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then result 1 failed with SubmissionUnknownError
    And the API got 2 live calls, and was paid 2 times

  Scenario: A conversation between two live turns in a restored ledger is lost, not sent again
    Given an API
    And a batch provider with {"mode": "live"}
    And its actor has the tool that is held
    When the ledger is as if restored from a copy made before the tool's result
    And the tool is let go
    And the results are read in order
    Then result 1 failed with SubmissionUnknownError
    When 0.3 seconds pass
    Then the API was paid for 0 requests in batches and 1 live, none twice
    And in the ledger the states of the requests are ["lost"]
    When the run's lost requests are asked again
    And the results are read in order
    Then the results by place have
      | field           | value        |
      | 0.response.text | "…was kept…" |
    And the API was paid for 0 requests in batches and 2 live, none twice

  Scenario Outline: An answer that cannot be relied on is an error in the ledger's live calls too
    Given an API
    And a batch provider with <settings>
    When the actor is asked in vain: "Look [[sandbox:<ending>]]"
    Then it fails as <error> with "<text>"

    Examples:
      | settings                           | ending  | error                      | text                            |
      | {"mode": "live"}                   | refused | AnswerRefusedError         |                                 |
      | {"mode": "live"}                   | window  | ContextWindowExceededError | An answer that fills the window |
      | {"mode": "live", "max_turns": 2}   | pause:2 | TurnLimitError             | Still searching (2).            |

  Scenario: A live answer of another shape is asked for again in the ledger too
    Given an API that remembers what it is asked
    And a batch provider with {"mode": "live", "validation_attempts": 2}
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid]]"
    Then the answer is an object of Flat
    And the model was told 1 times what was wrong
    When the actor is asked in vain for a Flat: "an invoice [[sandbox:invalid:2]]"
    Then it fails as OutputValidationError with "This is not of the shape that was asked for (2)."

  Scenario: A turn that fails and is tried again goes on from where it stood
    Given an API that remembers what it is asked
    And the API answers live calls with the first {"type": "error", "status": 529, "retry_after": 0.1}
    And a batch provider with {"mode": "live"}
    When the actor is asked: "Search [[sandbox:pause:2]]"
    Then the answer took 3 turns
    And the API was paid for 0 requests in batches and 3 live, none twice

  Scenario: Past its margin a conversation that began in a batch goes on live
    Given an API
    And a batch provider with {"deadline": "60s", "deadline_margin": "56s"}
    And its actor has the tool that ends when the margin has passed
    When a run of these prompts is submitted
      | prompt                 |
      | Look [[sandbox:tools]] |
    And the results are read in order
    Then the results by place have
      | field            | value  |
      | 0.response.turns | 2      |
      | 0.response.via   | "live" |
    And the API was paid for 1 requests in batches and 1 live, none twice
    And the run's deadline was met

  Scenario: Past its margin a conversation without a fallback ends between two turns
    Given an API
    And a batch provider with {"deadline": "60s", "deadline_margin": "56s", "fallback": "none"}
    And its actor has the tool that ends when the margin has passed
    When a run of these prompts is submitted
      | prompt                 |
      | Look [[sandbox:tools]] |
    And the results are read in order
    Then result 1 failed with BatchRequestError
    And the error is a BatchRequestError that says
      """
      turn 2 of the conversation of request at position 0 did not run
      """
    And the error's fields are
      | field   | value     |
      | outcome | "expired" |
    And the API was paid for 1 requests in batches and 0 live, none twice

  Scenario: Without a driving process live conversations are had to their end in one pass
    Given an API
    And a batch provider with {"mode": "live", "drive": false}
    And its actor has the tools "population,weather"
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    And the ledger is advanced
    Then in the ledger the states of the requests are ["succeeded"]
    When the results are read in order
    Then the run's answer has "rain in"
    And the API was paid for 0 requests in batches and 3 live, none twice

  Scenario: A run's progress and report count what its live turns cost
    Given an API
    And a batch provider with {"mode": "live"}
    And its actor has the tools "population"
    When a run of these prompts is submitted
      | prompt                      |
      | Look at A [[sandbox:tools]] |
      | Look at B [[sandbox:tools]] |
    And the run is waited for
    Then the API was paid for 0 requests in batches and 4 live, none twice
    And the run's cost becomes what the API's bill of 4 answers comes to
    And the progress is 1 with the failures {}
    And the progress's cost is that of the run's report
    And the progress's fields are
      | field        | value |
      | expected_end | null  |

  Scenario Outline: A process that dies in a live conversation asks no turn twice
    Given an API
    When a process with {"mode": "live", "live_concurrency": 2} asks a run of 4 conversations, and dies at <point>
    And this process opens that run
    And the results are read in order
    Then no request was paid for twice, and <lost> of 4 are lost

    Examples:
      | point               | lost |
      | after_live_claim    | some |
      | after_live_answer   | some |
      | after_live_record   | none or some |
      | after_tool_recorded | none or some |
      | before_next_turn    | none or some |
      | after_next_turn     | none or some |
