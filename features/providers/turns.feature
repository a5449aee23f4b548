@long
Feature: Conversations go on by themselves in the next batch

  Scenario: A long turn that pauses is gone on from, as often as it pauses
    Given an API
    And a batch provider
    When the actor is asked: "Search [[sandbox:pause:2]]"
    Then it is answered in 3 turns, each in a batch of its own
    And its cost is that of all its turns

  Scenario: Tools are functions that the actor's file names, beside the host's own
    Given an API that remembers what it is asked
    And a batch provider
    And its actor's file has
      """
      tools: [toolbox:population, local/shell, toolbox:weather, {name: x}]
      """
    When the actor is asked: "Look [[sandbox:tools]]"
    Then it is answered in 3 turns, each in a batch of its own
    And the answer's text has "rain in"
    And the model's requests have
      | field                                  | value                           |
      | 0.tools.0.name                         | "population"                    |
      | 0.tools.0.description                  | "How many people live in a city." |
      | 0.tools.0.input_schema.required        | ["city"]                        |
      | 0.tools.0.input_schema.properties.days |                                 |
      | 0.tools.1.name                         | "weather"                       |
      | 0.tools.1.description                  | "What the weather will be like." |
      | 0.tools.1.input_schema.required        | ["city"]                        |
      | 0.tools.1.input_schema.properties.days.type | "integer"                  |
      | 0.tools.2                              |                                 |
    And each turn begins with the one before it, byte for byte

  Scenario: The functions of a run are forgotten once all its requests have succeeded, or it is pruned
    Given an API
    And a batch provider
    And its actor has the tool that notes its calls
    Then the process keeps the functions of these runs after the last one, if it says so
      | prompt                                            | kept   |
      | One [[sandbox:tools]]                             | no     |
      | Two [[sandbox:errored:invalid_request_error]]     | yes    |
      | Three [[sandbox:errored:invalid_request_error]]   | pruned |
      | Four [[sandbox:tools]]                            | no     |
      | Five                                              | no     |
      | Six                                               | yes    |

  Scenario: Tools can be functions that no other process can import
    Given an API
    And a batch provider
    And its actor has the tool that notes its calls
    When the actor is asked: "Look [[sandbox:tools]]"
    Then it is answered in 2 turns, each in a batch of its own
    And the answer's text has "is noted"
    And the tool was called 1 time

  Scenario Outline: The model receives the outcome of a tool call
    Given an API whose model calls the tool <tool> with <input>
    And a batch provider
    And its actor has the tools "<given>"
    When the actor is asked: "Look"
    Then the model's requests have
      | field                              | value         |
      | 1.messages.2.content.0.type        | "tool_result" |
      | 1.messages.2.content.0.tool_use_id | "toolu_1"     |
      | 1.messages.2.content.0.content     | <words>       |
      | 1.messages.2.content.0.is_error    | <is error>    |
      | 1.messages.2.content.1             |               |
      | 1.messages.3                       |               |
      | 2                                  |               |

    Examples:
      | tool       | input                    | given               | words                                | is error |
      | population | {"city": "Bonn"}         | population          | "4000"                               |          |
      | visit      | {"place": {"city": "A"}} | visit               | "{\"city\":\"A\",\"streets\":[]}"    |          |
      | silent     | {}                       | silent              | ""                                   |          |
      | pictures   | {}                       | pictures            | [{"type":"text","text":"a picture"}] |          |
      | blank      | {}                       | blank               | ""                                   |          |
      | rows       | {}                       | rows                | "[{\"type\":\"text\",\"value\":\"Bonn\"}]" |     |
      | files      | {}                       | files               | "[{\"type\":\"document\",\"source\":\"a.pdf\"}]" |     |
      | partly_blank | {}                     | partly_blank        | [{"type":"text","text":"little"}]    |          |
      | fails      | {"city": "Bonn"}         | fails               | "LookupError: no Bonn on the map"    | true     |
      | rambles    | {"city": "Bonn"}         | rambles             | "LookupError: no Bonn in [0, 1,… [...] …, 4998, 4999]" | true     |
      | unwritable | {}                       | unwritable          | "…PydanticSerializationError…"       | true     |
      | mutters    | {}                       | mutters             | "Unreadable: its message cannot be read (ValueError)" | true |
      | stammers   | {}                       | stammers            | "Unreadable: its message cannot be read (ValueError)" | true |
      | exits      | {}                       | exits               | "SystemExit: enough"                 | true     |
      | leaves     | {}                       | leaves              | "SystemExit: enough"                 | true     |
      | weather    | {"city": "A", "days": []}| weather             | "wrong arguments: days: Input should be a valid integer" | true |
      | population | {}                       | population          | "wrong arguments: city: Missing required argument" | true |
      | hangs      | {"city": "Bonn"}         | hangs               | "the tool hangs returned no result within 0.2 seconds" | true |
      | dawdles    | {"city": "Bonn"}         | dawdles             | "the tool dawdles returned no result within 0.2 seconds" | true |
      | blocks     | {"city": "Bonn"}         | blocks              | "the tool blocks returned no result within 0.2 seconds: the event loop of the asynchronous tools is blocked; on it run: blocks" | true |
      | invented   | {}                       | population,fails    | "there is no tool 'invented'; there are: fails, population" | true |

  Scenario: max_turns bounds a conversation, whose last answer is kept
    Given an API
    And a batch provider with {"max_turns": 3}
    When the actor is asked in vain: "Search [[sandbox:pause:9]]"
    Then it fails as TurnLimitError with "Still searching (3)."

  Scenario: A tool whose result nobody would see is not run
    Given an API
    And a batch provider with {"max_turns": 1}
    And its actor has the tool that notes its calls
    When the actor is asked in vain: "Look [[sandbox:tools]]"
    Then it fails as TurnLimitError with ""
    And the tool was called 0 times

  Scenario Outline: A reply that cannot be relied on is not an answer
    Given an API
    And a batch provider
    When the actor is asked in vain: "Look [[sandbox:<ending>]]"
    Then it fails as <error> with "<text>"
    When a client is asked: "Look [[sandbox:<ending>]]"
    Then the client is told the stop reason <reason>

    Examples:
      | ending  | error                      | text                           | reason                        |
      | refused | AnswerRefusedError         |                                | refusal                       |
      | window  | ContextWindowExceededError | An answer that fills the window | model_context_window_exceeded |

  Scenario: A client's caller goes on by itself
    Given an API
    And a batch provider
    When a client is asked: "Search [[sandbox:pause:2]]"
    Then the client is told the stop reason pause_turn

  Scenario: Tools in raw params are the caller's own
    Given an API
    And a batch provider
    And its actor has the tools "population"
    When the actor is asked with {"params": {"messages": [{"role": "user", "content": "Look [[tool:own]]"}], "tools": [{"name": "own", "input_schema": {"type": "object"}}]}}
    Then the answer's fields are
      | field       | value      |
      | stop_reason | "tool_use" |

  Scenario: An answer of another shape is asked for again, with what was wrong
    Given an API that remembers what it is asked
    And a batch provider with {"validation_attempts": 3}
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid:2]]"
    Then the answer is an object of Flat
    And the model was told 2 times what was wrong
    And the answer took 3 turns
    And its cost is that of all its turns

  Scenario: Answers of another shape are turns, and none of them counts for max_turns
    Given an API
    And a batch provider with {"validation_attempts": 3, "max_turns": 1}
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid:2]]"
    Then the answer is an object of Flat
    And the answer took 3 turns

  Scenario: An answer that never matches the shape is an error that carries its text
    Given an API
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked in vain for a Flat: "an invoice [[sandbox:invalid:9]]"
    Then it fails as OutputValidationError with "This is not of the shape that was asked for (2)."

  Scenario: The model is told what was wrong in at most 2,000 bytes
    Given an API that remembers what it is asked
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked in vain for a Wordy: "an invoice"
    Then it fails as OutputValidationError and says "no answer matched the requested format"
    And the model's requests have
      | field                | value                                                                 |
      | 1.messages.2.content | "…number: Value error, is not one of [0, 1,… [...] …, 4998, 4999]. Answer again…" |

  Scenario: Without a type the answer is judged by the schema of its actor
    Given an API that remembers what it is asked
    And a batch provider with {"validation_attempts": 2}
    And its actor's file has
      """
      response_format: {type: object, properties: {number: {type: string}}, required: [number]}
      """
    When the actor is asked: "an invoice [[sandbox:invalid]]"
    Then the answer's fields are
      | field | value         |
      | text  | "{\"number\":…" |
    And the model was told 1 times what was wrong

  Scenario: Many conversations advance in shared batches, turn by turn
    Given an API
    And a batch provider
    And its actor has the tools "population,weather"
    When 200 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then every result is an answer
    And in the ledger the sizes of the batches are [200, 200, 200]
    And in the ledger the counts of results are [600]

  Scenario Outline: Tools that ask an actor with tools do not use up the places of its tools: <how>
    Given an API
    And a batch provider
    And its actor has a tool that asks an actor with tools <how>
    When 20 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then every result is an answer
    And each answer quotes the actor that its tool has asked

    Examples:
      | how                     |
      | with respond_sync       |
      | with respond            |
      | with respond_all_sync   |

  Scenario Outline: A tool that waits for claude-batch as its process closes has no result: <kind>
    Given an API that takes 3600 seconds for a batch
    And a batch provider with {"mode": "live"}
    And its actor has a <kind> tool that asks in a batch
    When the provider closes at once, although the tool waits for its answer
    Then in the ledger the ends of the tool calls are [null]
    When the batch ends
    And the same question is asked by another provider with {"mode": "live"}
    Then it is told "<words>" after <count> more runs of the tool
    And in the ledger the sizes of the batches at the API are [1]

    Examples:
      | kind       | words                    | count |
      | repeatable | The tools gave:          | 1     |
      | usual      | not marked as repeatable | 0     |

  Scenario: Equal conversations of a run are one, which answers all of them
    Given an API
    And a batch provider with {"dedupe": true}
    And its actor has the tools "population,weather"
    When 3 conversations are asked as one run: "Look [[sandbox:tools]]"
    Then every result is an answer
    And the API has processed 3 requests in all

  Scenario: If a conversation stops, its duplicates stop with it
    Given an API
    And a batch provider with {"dedupe": true, "max_turns": 1}
    And its actor has the tools "population,weather"
    When 3 conversations are asked as one run: "Look [[sandbox:tools]]"
    Then 0 results are answers and 3 are errors
    And result 1 failed with TurnLimitError
    And result 3 failed with TurnLimitError
    And the error is a ConversationStoppedError that says
      """
      max_turns is 1
      """
    And the API has processed 1 requests in all

  Scenario: A primer that converses lets the others go after its first turn
    Given an API
    And a batch provider with {"cache": "auto", "prime": true}
    And its actor has the tools "population,weather"
    And its actor begins with a long text
    When 4 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then every result is an answer
    And the first turn of one went ahead alone, and before its last one all had begun

  Scenario: A key finds its conversation again
    Given an API
    And a batch provider
    And its actor has the tool that notes its calls
    When "Look [[sandbox:tools]]" is asked with the key "k"
    And the provider is made anew
    And "Look [[sandbox:tools]]" is asked with the key "k"
    Then all 1 are answered
    And the API has processed 2 requests, none twice
    And the tool was called 1 time

  Scenario: A key goes on from the answer that met its cancellation
    Given an API
    And a batch provider
    When "Search [[sandbox:pause:1]]" is asked with the key "a"
    And "Search [[sandbox:pause:2]]" is asked with the key "b"
    Given a batch provider with {"max_wait": 4, "on_timeout": "cancel", "poll_interval": 8}
    And its actor has the tool that notes its calls
    When "Look [[sandbox:tools]]" is asked with the key "k"
    Then every call fails with BatchTimeoutError
    And in the ledger the states of the requests come to be ["succeeded","succeeded","canceled"]
    Given a batch provider
    And its actor has the tool that notes its calls
    When "Look [[sandbox:tools]]" is asked with the key "k"
    Then all 1 are answered
    And the API has processed 7 requests, none twice
    And the tool was called 1 time

  Scenario: A live conversation goes on too
    Given an API that remembers what it is asked
    And an actor that is asked live, with the tools "population,fails"
    When the actor is asked: "Look [[sandbox:tools]] [[sandbox:pause]]"
    Then the answer took 4 turns
    And the answer's text has "LookupError: no"

  Scenario Outline: A live reply that cannot be relied on is not an answer either
    Given an API
    And an actor that is asked live with <settings>, with the tools "population"
    When the actor is asked in vain: "Look [[sandbox:<ending>]]"
    Then it fails as <error> with "<text>"

    Examples:
      | settings           | ending  | error                      | text                           |
      | {}                 | refused | AnswerRefusedError         |                                |
      | {}                 | window  | ContextWindowExceededError | An answer that fills the window |
      | {"max_turns": 2}   | pause:2 | TurnLimitError             | Still searching (2).           |

  Scenario: A live answer of another shape is asked for again
    Given an API that remembers what it is asked
    And an actor that is asked live with {"validation_attempts": 2}, with the tools "silent"
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid]]"
    Then the answer is an object of Flat
    And the model was told 1 times what was wrong
    And the answer took 2 turns
    When the actor is asked in vain for a Flat: "an invoice [[sandbox:invalid:2]]"
    Then it fails as OutputValidationError with "This is not of the shape that was asked for (2)."

  Scenario Outline: The model receives the outcome of a tool call live
    Given an API whose model calls the tool <tool> with {"city": "Bonn"}
    And an actor that is asked live, with the tools "population,hangs"
    When the actor is asked: "Look"
    Then the model's requests have
      | field                              | value     |
      | 1.messages.2.content.0.tool_use_id | "toolu_1" |
      | 1.messages.2.content.0.content     | <words>   |
      | 1.messages.2.content.0.is_error    | true      |
      | 2                                  |           |

    Examples:
      | tool     | words                                                       |
      | hangs    | "the tool hangs returned no result within 0.2 seconds"      |
      | invented | "there is no tool 'invented'; there are: hangs, population" |

  Scenario: A process without the functions leaves a conversation to one that has them
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that notes its calls
    When the run of "Look [[sandbox:tools]]" is stored, and another provider drives it
    Then the run's fields are
      | field                       | value                                  |
      | status.waiting_for          | "…1 conversation between two turns…note" |
      | status.failed               | 0                                      |
      | provider.outstanding.0.finished | false |
      | provider.outstanding.1      |                                        |
    And the tool was called 0 times
    When the same run is asked again by a provider that has the tool
    Then the run's answer has "is noted"
    And the tool was called 1 time

  Scenario: While its tool runs, a run does not ask for a process that has the tool
    Given an API
    And a batch provider
    And its actor has the tool that takes its time
    When the run of "Look [[sandbox:tools]]" is stored, and the tool runs
    Then the status says "1 conversation between two turns, 1 of them waiting for their tools (1 running now)"
    And the status does not say "the process that drives the run needs"

  Scenario: A run that is cancelled between two turns ends there
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that notes its calls
    When the run of "Look [[sandbox:tools]]" is stored, and another provider drives it
    And the run is cancelled
    And the results are read in order
    Then 0 results are answers and 1 are errors
    And result 1 failed with BatchRequestError
    And the error's fields are
      | field   | value      |
      | outcome | "canceled" |
    And the error is a BatchRequestError that says
      """
      Its next turn was not sent, and nothing was billed for it; the 1 answer before it was billed and kept
      """

  Scenario: A tool that another process cannot have runs here, whoever drives
    Given an API
    And another process that drives the ledger
    And a batch provider
    And its actor has the tool that notes its calls
    When the actor is asked: "Look [[sandbox:tools]]"
    Then the answer's text has "is noted"
    And the tool was called 1 time
    And the other process still drives

  Scenario Outline: A program that <ends> while its tool runs waits for it, and its result is not lost
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that takes its time
    When a program asks "Look [[sandbox:tools]]", and <ends> while the tool runs
    And the same run is asked again by a provider that has the tool
    Then the run's answer has "was thought about"
    And the tool was called 1 time

    Examples:
      | ends   |
      | ends   |
      | closes |

  Scenario: A conversation whose tool was interrupted ends, also if a process drives that has no tools
    Given an API
    And another process that drives the ledger
    And a batch provider that does not drive
    And its actor has the tool that takes its time
    When a program asks "Look [[sandbox:tools]]", and is killed while the tool runs
    And the same run is asked again by a provider that has the tool
    Then result 1 failed with ToolInterruptedError
    And the other process still drives

  Scenario: A turn that was sent twice is answered once, also if both answers come while its tool runs
    Given an API
    And the API has the faults
      """
      {"rules": [
        {"route": "create", "nth": [1], "action": {"type": "drop_after", "listed_after": 4}},
        {"route": "create", "nth": [2], "action": {"type": "drop_after", "listed_after": 4.3}}
      ]}
      """
    And a batch provider with {"settling": "60s"}
    And its actor has the tool that takes its time
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    Then in the ledger the states of the batches come to be ["unknown"]
    And decisions about the run's unknown requests change as follows
      | decision   | how           | requests |
      | send again | synchronously | 1        |
    And in the ledger the states of the batches come to be ["unknown", "unknown"]
    And decisions about the run's unknown requests change as follows
      | decision | how           | requests |
      | give up  | synchronously | 1        |
    And in the ledger the states of the requests come to be ["succeeded"]
    And the tool was called 1 time
    And in the ledger the states of the batches come to be ["collected", "collected", "collected"]

  Scenario: Without a driving process conversations advance pass by pass
    Given an API
    And a batch provider that does not drive
    And its actor has the tools "population,weather"
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    And everything that is due is advanced until the run is finished
    And the results are read in order
    Then the run's answer has "rain in"

  Scenario: A later turn that fails is asked again from where it stood
    Given an API
    And a batch provider
    And its actor has the tools "directive"
    When a run of these prompts is submitted
      | prompt                 |
      | Look [[sandbox:tools]] |
    And the results are read in order
    Then result 1 failed with BatchRequestError
    When what failed in the run is retried
    Then the run's answer has "The tools gave"
    And in the ledger the names of the tool calls are ["directive"]
    When the run 1 is pruned
    Then in the ledger the names of the tool calls are []
    And in the ledger the counts of conversations are [0]

  Scenario: A conversation that outgrows a batch stops
    Given an API
    And a batch provider
    And a limit of 700 bytes in a batch
    When the actor is asked in vain: "Search [[sandbox:pause:50]]"
    Then it fails as ConversationStoppedError and says "more than a batch can carry"

  Scenario Outline: An answer without a format is not judged, and whatever a validator raises rejects one: <type>
    Given an API
    And a batch provider with {"validation_attempts": 3}
    When the actor is asked: "hello"
    Then the answer took 1 turns
    When a run of these prompts is submitted as <type>
      | prompt |
      | hi     |
    And the run is waited for
    And another provider opens the run
    And the results are read in order
    Then the results by place have
      | field   | value                                                     |
      | 0.error | "OutputValidationError: …its validator raised <error>…" |
    And the API has processed 4 requests, none twice

    Examples:
      | type     | error                                  |
      | Stubborn | RuntimeError: a validator with a mistake |
      | Quitting | SystemExit: no answer is good enough   |

  Scenario: Two keys of one workspace have each tool run once
    Given an API
    And a batch provider
    When the actor is asked: "a question after which that provider drives the ledger"
    Given a batch provider with {"api_key": "sk-ant-another-key-of-the-same-workspace"}
    And its actor has the tool that takes its time
    When the actor is asked: "Look [[sandbox:tools]]"
    Then the answer's text has "was thought about"
    And the tool was called 1 time

  Scenario: A tool that another driver of the process starts first is waited for
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that takes its time
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    Then a driver that finds its tool started by another one goes on from the result
    And the tool was called 1 time

  Scenario: A tool that another driver of the process could not start is not taken for interrupted
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that takes its time
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    Then a driver that finds its tool started by another one, which had no thread for it, goes on from the result
    And the tool was called 1 time

  Scenario: A tool that waits to start is not started for a conversation that was cancelled and retried
    Given an API
    And a batch provider that does not drive
    And its actor has the tool that notes its calls
    When a run of these prompts is stored
      | prompt                 |
      | Look [[sandbox:tools]] |
    Then a driver starts its tool only once it has found the retried conversation
    And the tool was called 1 time
