@long @both_backends
Feature: The program that asked judges the answers, whoever drives

  Another process drives. It has neither the type nor the function that an answer is judged by.

  Scenario: An answer that only the type of the program rejects is asked for again
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 3}
    When the actor is asked for a Picky: "an invoice"
    Then the answer is an object of Picky
    And the answer took 2 turns
    And in the ledger the problems of the answers are ["number: Value error, has other characters than digits", null]
    And the other process still drives

  Scenario: An answer that is never valid fails after the last attempt
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12b", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked in vain for a Picky: "an invoice"
    Then it fails as OutputValidationError with "{"number": "12b", "total": 1}"
    And the API has processed 2 requests, none twice

  Scenario: The functions of calls are forgotten once no call joins their run and it has ended
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And a limit of 1 kinds of calls whose run is remembered
    And a limit of 1 runs of calls that are forgotten at once
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked for a Picky: "an invoice"
    Then the answer took 2 turns
    When the actor is asked: "a plain question"
    Then the provider's fields are
      | field                     | value |
      | _engine.workbench.has_any | false |

  Scenario: A judge's text that cannot be stored is escaped
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2}
    And its actor has a function that says of the first answer: "not \ud800"
    When the actor is asked: "an invoice"
    Then the answer took 2 turns
    And in the ledger the problems of the answers are ["not \\ud800", null]

  Scenario Outline: The answers of a run are judged together, and their next turns share a batch: <whose> format
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2}
    When a run of 60 prompts is submitted <of> Picky
    And the results are read in order, as Picky
    Then 60 results are answers and 0 are errors
    And in the ledger the sizes of the batches are [60, 60]

    Examples:
      | whose          | of       |
      | the run's      | for      |
      | each request's | each for |

  Scenario: While the program judges, the driver waits for it
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2}
    When a run of 1 prompt is submitted for Considered
    Then the status says "1 conversation between two turns, 1 of them waiting for the program that asked to judge the answer"
    When the type Considered decides
    And the results are read in order, as Considered
    Then 1 result is an answer and 0 are errors

  Scenario: While a function judges a live answer, other calls of its provider go on
    Given an API
    And an actor that is asked live with {"validation_attempts": 2}, with the tools "silent"
    When the actor is asked for a Considered on another thread
    And the type Considered has begun
    Then the actor answers another call meanwhile
    When the type Considered decides
    Then that thread has its answer

  Scenario: A slow function that judges does not put off the conversations after it
    Given an API
    And a batch provider with {"validation_attempts": 2, "max_wait": 10}
    When the actor is asked for a Deliberate: "an invoice"
    And the actor is asked for a Flat: "another one"
    Then the answer's text has "number"

  Scenario: A function that hangs while it judges holds up no other conversation
    Given an API
    And a driver that waits 1 second for a verdict
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked for a Considered on another thread
    And the type Considered has begun
    Then the actor answers another call meanwhile
    When the type Considered decides
    Then that thread has its answer

  Scenario Outline: A function that judges may ask an actor whose answers are judged too: <who> drives
    Given an API whose model first answers {"number": "12", "total": 1}, and then {"number": "12", "total": 1}
    And <driver>
    And a batch provider with {"validation_attempts": 2, "max_wait": 30}
    When 3 prompts are asked for a type whose validator asks for a Picky
    Then 3 calls are answered

    Examples:
      | who             | driver                                 |
      | another process | another process that drives the ledger |
      | this process    | no other process                       |

  Scenario: A function that hangs holds up closing for seconds, and the end of its program not at all
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    When a program that asks for a Stuck closes its provider while it judges
    Then the program has closed it within 20 seconds
    And the program ends without waiting for the function

  Scenario: Closing waits for a tool, also after a driver has left a function that judges
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [2], "action": {"type": "error", "status": 401}}]}
      """
    And a limit of 0 seconds for a function that a driver leaves
    And a batch provider with {"validation_attempts": 2, "probe_interval": 0.3}
    When the actor is asked for a Considered on another thread
    And the type Considered has begun
    And a run of these prompts is stored
      | prompt |
      | hello  |
    Then in the ledger the states of the requests come to be ["continuing", "succeeded"]
    When the type Considered decides
    Then in the ledger the states of the requests come to be ["succeeded", "succeeded"]
    Given its actor has the tool that takes its time
    When the run of "Look [[sandbox:tools]]" is stored, and the tool runs
    And that provider is closed
    Then the tool was called 1 time
    And in the ledger the counts of unfinished tool calls are [0]

  Scenario: A driver does not wait for a program that has ended, and checks the JSON schema
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a program that asks for a Considered with {"validation_attempts": 2}
    When the program is killed while it judges
    Then the program's run is answered, in 1 turn

  Scenario: A program that asks again judges what it had asked before it ended
    Given an API that takes 3600 seconds for a batch, and then answers {"number": "12a", "total": 1}
    And another process that drives the ledger
    And a program that asks for a Picky with {"validation_attempts": 2}
    When the program is killed while its batch is processed
    And the same run is asked for again by a provider with {"validation_attempts": 2}
    And the batch ends
    Then the batch's answer was asked for again

  Scenario Outline: A driver does not wait for ever for a program that lives and does not judge: clock <hours> hours ahead
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And the clock of this machine is <hours> hours ahead
    And a driver that waits 1 second for a verdict
    And a program that asks for a Considered with {"validation_attempts": 2}
    Then the program's run is answered, in 1 turn

    Examples:
      | hours |
      | 0     |
      | -24   |

  Scenario: A second program that asks the same and ends does not take the verdict from the first
    Given an API that takes 3600 seconds for a batch, and then answers {"number": "12a", "total": 1}
    And another process that drives the ledger
    And a program that asks for a Picky with {"validation_attempts": 2}
    When the same run is asked for again by a provider with {"validation_attempts": 2}
    And that provider is closed
    And the batch ends
    Then the batch's answer was asked for again

  Scenario: While it judges, a program takes over from a driver that died, and sends for other runs
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2}
    When a run of 1 prompt is submitted for Considered
    And the type Considered has begun
    And the other process is killed
    And a run of 2 prompts is submitted for Picky
    Then in the ledger the counts of results come to be [3]
    When the type Considered decides
    And the results are read in order, as Picky
    Then 2 results are answers and 0 are errors
    And the API has processed 5 requests, none twice

  Scenario: A verdict that comes late is not that of another request
    Given an open ledger
    Then verdicts are recorded as follows
      | request | sending | run  | recorded |
      | 1       | 1       | its  | yes      |
      | 1       | 0       | its  | no       |
      | 1       | 1       | none | no       |
      | 2       | 1       | its  | no       |

  Scenario: A provider that does not drive is not waited for
    Given an API whose model first answers {"number": "12a", "total": 1}, and then {"number": "12", "total": 1}
    And another process that drives the ledger
    And a batch provider with {"validation_attempts": 2, "drive": false}
    When a run of 1 prompt is submitted for Picky
    Then the program's run is answered, in 1 turn
