@every_python
Feature: A stream is answered by the finished message, as server-sent events

  Scenario Outline: A streamed call gets the same message as one that is not
    Given an API for the batched client that answers: everything
    And <client>
    Then <client> is answered the same with and without a stream
    And the outcomes have these fields in the same order
      | content.0.type | content.1.type | content.2.type | stop_reason |
      | thinking       | text           | tool_use       | tool_use    |
      | thinking       | text           | tool_use       | tool_use    |
    And the events of the stream have these fields in the same order
      | type                | content_block.type |
      | message_start       |                    |
      | content_block_start | thinking           |
      | content_block_stop  |                    |
      | content_block_start | text               |
      | content_block_stop  |                    |
      | content_block_start | tool_use           |
      | content_block_stop  |                    |
      | message_delta       |                    |
      | message_stop        |                    |

    Examples:
      | client                         |
      | the batched client             |
      | the synchronous batched client |

  Scenario: A streamed call that fails raises before the first event
    Given an API for the batched client
    And the batched client with {"max_attempts": 1}
    When the batched client asks with {"stream": true, "prompt": "[[sandbox:errored:overloaded_error]]"}
    Then the batched client fails with 529 overloaded_error
