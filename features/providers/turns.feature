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
    And its actor's file has the tools "[toolbox:population, local/shell, toolbox:weather, {name: x}]"
    When the actor is asked: "Look [[sandbox:tools]]"
    Then it is answered in 3 turns, each in a batch of its own
    And the answer's text has "rain in"
    And the API was told of the tools
      | name       | description                      | required | optional |
      | population | How many people live in a city.  | city     |          |
      | weather    | What the weather will be like.   | city     | days     |
    And each turn begins with the one before it, byte for byte

  Scenario: Tools can be functions that no other process can import
    Given an API
    And a batch provider
    And its actor has the tool that notes its calls
    When the actor is asked: "Look [[sandbox:tools]]"
    Then it is answered in 2 turns, each in a batch of its own
    And the answer's text has "is noted"
    And the tool was called 1 time

  Scenario Outline: What a call comes to is shown to the model
    Given an API whose model calls the tool <tool> with <input>
    And a batch provider
    And its actor has the tools "<given>"
    When the actor is asked: "Look"
    Then the model was shown <what> <words>

    Examples:
      | tool       | input                    | given                | what      | words                                             |
      | population | {"city": "Bonn"}         | population           | a result  | "4000"                                            |
      | visit      | {"place": {"city": "A"}} | visit                | a result  | "{\"city\":\"A\",\"streets\":[]}"                 |
      | silent     | {}                       | silent               | a result  | ""                                                |
      | pictures   | {}                       | pictures             | a result  | [{"type":"text","text":"a picture"}]              |
      | fails      | {"city": "Bonn"}         | fails                | an error  | "LookupError: no Bonn on the map"                 |
      | weather    | {"city": "A", "days": []}| weather              | an error  | "wrong arguments: days: Input should be a valid integer" |
      | population | {}                       | population           | an error  | "wrong arguments: city: Missing required argument" |
      | hangs      | {"city": "Bonn"}         | hangs                | an error  | "the tool hangs gave no result within 0.2 seconds" |
      | dawdles    | {"city": "Bonn"}         | dawdles              | an error  | "the tool dawdles gave no result within 0.2 seconds" |
      | blocks     | {"city": "Bonn"}         | blocks               | an error  | "the tool blocks gave no result within 0.2 seconds" |
      | invented   | {}                       | population,fails     | an error  | "there is no tool 'invented'; there are: fails, population" |

  Scenario: A result that is no JSON is an error that the model is shown
    Given an API whose model calls the tool unwritable with {}
    And a batch provider
    And its actor has the tools "unwritable"
    When the actor is asked: "Look"
    Then the model was shown an error that has "PydanticSerializationError"

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

  Scenario Outline: What is no answer to rely on is none
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
    When raw params with a tool of the caller's are asked
    Then the answer's stop reason is tool_use

  Scenario: An answer of another shape is asked for again, with what was wrong
    Given an API that remembers what it is asked
    And a batch provider with {"validation_attempts": 3}
    When the actor is asked for a Flat: "an invoice [[sandbox:invalid:2]]"
    Then the answer is an object of Flat
    And the model was told 2 times what was wrong

  Scenario: What is never of the shape is an error that carries its text
    Given an API
    And a batch provider with {"validation_attempts": 2}
    When the actor is asked in vain for a Flat: "an invoice [[sandbox:invalid:9]]"
    Then it fails as OutputValidationError with "This is not of the shape that was asked for (2)."

  Scenario: Without a type the answer is judged by the schema of its actor
    Given an API that remembers what it is asked
    And a batch provider with {"validation_attempts": 2}
    And its actor asks for the schema of Flat
    When the actor is asked: "an invoice [[sandbox:invalid]]"
    Then it is answered in JSON
    And the model was told 1 times what was wrong

  Scenario: Many conversations advance in shared batches, turn by turn
    Given an API
    And a batch provider
    And its actor has the tools "population,weather"
    When 200 conversations are asked as one run: "Look at {n} [[sandbox:tools]]"
    Then all of them are answered
    And they travelled in 3 batches of 200

  Scenario: A key finds its conversation again
    Given an API
    And a batch provider
    And its actor has the tool that notes its calls
    When the actor is asked under the key k: "Look [[sandbox:tools]]"
    And another provider is asked under the key k: "Look [[sandbox:tools]]"
    Then both have the same answer
    And the tool was called 1 time
