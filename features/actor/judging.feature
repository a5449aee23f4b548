@every_python
Feature: An answer is judged by the shape that was asked for, and says no more than the model can use

  Scenario: An error lists the first few problems and counts the others
    Given an actor response of the text '{"number": [], "issued": "x", "total": "x", "currency": [], "paid": "maybe", "tags": 5}', stopped by end_turn
    Then the actor response read as Receipt is refused with "; and 1 more"

  Scenario: An answer is judged by its shape when it is final, and by being cut short before
    Then answers asked for as a Flat are judged as follows
      | text    | stop reason | validation | problem                        |
      | nothing | end_turn    | refused    | …Invalid JSON…                 |
      | nothing | tool_use    | put off    | …                              |
      | nothing | pause_turn  | put off    | …                              |
      | {       | max_tokens  | refused    | it was truncated by max_tokens |

  Scenario: A failure stays what it is, whatever shape is asked for
    Given an API
    And a batch provider
    When a run of these prompts is submitted as Flat
      | prompt                                    |
      | [[sandbox:errored:invalid_request_error]] |
    And the results are read in order, as Receipt
    Then result 1 failed with BatchRequestError

  Scenario: An unknown parameter is logged once, and sent
    Given a program that logs
    And an actor made with {"model": "claude-haiku-4-5"}
    When the actor's request {"params": {"messages": [{"role": "user", "content": "hello"}], "of_tomorrow": 7}} is encoded
    Then the actor's encoded params are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "messages": [{"role": "user", "content": "hello"}], "of_tomorrow": 7}
      """
    And the log has 1 line that says "`of_tomorrow` is not a known parameter of the Messages API"

  Scenario: An actor is asked for more shapes than are kept
    Given an API
    And a batch provider
    Then it can be asked for 70 shapes, each with its own schema

  Scenario: An exception of a tool with blocks for the model reaches the model unchanged
    Given an API whose model calls the tool refuses with {"city": "Ulm"}
    And a batch provider
    And its actor has the tools "refuses"
    When the actor is asked: "Where is it?"
    Then the model's requests have
      | field                           | value                                    |
      | 1.messages.2.content.0.content  | [{"type": "text", "text": "not in Ulm"}] |
      | 1.messages.2.content.0.is_error | true                                     |
