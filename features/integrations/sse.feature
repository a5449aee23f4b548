@every_python
Feature: A finished message becomes the events of the streaming API

  The messages are those of `finished_messages.jsonl`, and long ones.

  Scenario: They have every block, citation and field that the installed SDK lists
    Then the finished messages have all that the SDK's types of a message list

  Scenario Outline: The SDK puts each message together again, equal to its source
    When the SDK's helper of <resource> reads each finished message as a stream
    Then each came out as its source, as far as the SDK can hold it

    Examples:
      | resource      |
      | messages      |
      | beta.messages |

  Scenario: The events have nothing else, and nothing twice
    Then the start, the deltas and the end of each finished message are that message

  Scenario: Events have the order and the names of the streaming API
    Then the events of "everything" are
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
      content_block_delta input_json_delta
      content_block_stop
      message_delta tool_use
      message_stop
      """

  Scenario Outline: A tool's input follows an empty delta, with every digit and space
    Then the input of "<message>" is streamed as <deltas>

    Examples:
      | message                                 | deltas                                         |
      | a tool call without input               | [""]                                           |
      | a tool call whose empty input has a space | [""]                                         |
      | numbers in tool input                   | ["", its own bytes]                            |
      | spaced tool input                       | ["", its own bytes]                            |

  Scenario: The last event before the stop has all that the SDK reads from it
    Then the "message_delta" events have all fields that the SDK's types of them list

  Scenario: A long value comes in deltas of at most 16 KB, cut between characters and escapes
    Then each delta of each finished message is valid alone, and at most 16384 bytes
    And the long messages have more than one delta a block

  Scenario: A message of 10 MB is not copied
    Then the events of a message of 10 MB take less than 0.5 MB at once

  Scenario Outline: What is not a message is refused before its first event
    Then no events are made of <bytes>

    Examples:
      | bytes                                          |
      | nothing at all                                 |
      | []                                             |
      | {"content": []}                                |
      | {"content": [], "usage": null}                 |
      | {"content": {}, "usage": {}}                   |
      | {"content": [{"text": "x"}], "usage": {}}      |
      | {"content": [{"type": null}], "usage": {}}     |
