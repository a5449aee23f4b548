@every_python
Feature: A stream is answered by the finished message, as server-sent events

  Scenario Outline: A streamed call gets the same message as one that is not
    Given an API for the batched client that answers: everything
    And <client>
    When <client> asks the same with and without a stream
    Then the batched client's final messages are equal
    And the batched client's raw stream begins with message_start and ends with message_stop

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A streamed call that fails raises before the first event
    Given an API for the batched client
    And the batched client with {"max_attempts": 1}
    When the batched client asks with {"stream": true, "prompt": "[[sandbox:errored:overloaded_error]]"}
    Then the batched client fails with 529 overloaded_error
