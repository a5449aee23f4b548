@every_python
Feature: A stream is answered by the finished message, as correct server-sent events

  Scenario Outline: The SDK puts the same message together from the events
    When the batched client tells this message as events: <message>
    Then the SDK's <kind> stream ends with that very message

    Examples: The Messages API
      | kind     | message                |
      | messages | a text                 |
      | messages | an unusual text        |
      | messages | cited text             |
      | messages | thinking               |
      | messages | redacted thinking      |
      | messages | a tool call            |
      | messages | a call without input   |
      | messages | server tools           |
      | messages | a refusal              |
      | messages | nothing                |
      | messages | a stop sequence        |
      | messages | a container            |
      | messages | a block of the future  |
      | messages | detailed usage         |

    Examples: Its beta
      | kind | message              |
      | beta | a text               |
      | beta | cited text           |
      | beta | thinking             |
      | beta | a call without input |
      | beta | an MCP call          |
      | beta | a compaction         |
      | beta | a failed compaction  |
      | beta | a fallback           |
      | beta | managed context      |
      | beta | detailed usage       |

  Scenario: Events have the order and the names of the streaming API
    When the batched client tells this message as events: everything
    Then the batched client's events are
      """
      message_start
      content_block_start thinking
      content_block_delta thinking_delta
      content_block_delta signature_delta
      content_block_stop
      content_block_start text
      content_block_delta text_delta
      content_block_delta citations_delta
      content_block_delta citations_delta
      content_block_stop
      content_block_start tool_use
      content_block_delta input_json_delta
      content_block_stop
      message_delta tool_use
      message_stop
      """

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
