@every_python
Feature: A finished message becomes the events of the streaming API

  The messages are those of `finished_messages.jsonl`, and long ones.

  Scenario: They have every block, citation and field that the installed SDK lists
    Then the SDK's types and ours differ as follows
      | place                     | type             | we lack |
      | message                   | BetaMessage      |         |
      | message.usage             | BetaUsage        |         |
      | message.content           | BetaContentBlock |         |
      | message.content.citations | BetaTextCitation |         |

  Scenario: The SDK puts each message together again, equal to its source
    The helper of `messages` does not know all blocks of `beta.messages`.
    Then the SDK's helpers put the streams of finished messages together as follows
      | resource      | read | different |
      | messages      | 53   |           |
      | beta.messages | 68   |           |

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

  Scenario: A tool's input follows an empty delta, with every digit and space
    Then a tool's input is streamed as follows
      | input                                                      | first delta | others                                                     |
      | {}                                                         |             |                                                            |
      | { }                                                        |             |                                                            |
      | {"big":12345678901234567890,"huge":1e400,"tail":0.10}      |             | {"big":12345678901234567890,"huge":1e400,"tail":0.10}      |
      | {"small":-0.0,"tiny":5e-324,"digits":3.141592653589793238} |             | {"small":-0.0,"tiny":5e-324,"digits":3.141592653589793238} |
      | { "a" : [ 1 , 2 ] , "b":"\ud83d\ude00\u0022" }             |             | { "a" : [ 1 , 2 ] , "b":"\ud83d\ude00\u0022" }             |

  Scenario: The last event before the stop has all that the SDK reads from it
    The API streams `input_transformations` if the model changes meanwhile.
    Then the SDK's types and ours differ as follows
      | place               | type                     | we lack               | it lacks |
      | message_delta       | BetaRawMessageDeltaEvent | input_transformations |          |
      | message_delta.delta | Delta                    |                       |          |
      | message_delta.usage | BetaMessageDeltaUsage    |                       |          |

  Scenario: A long value comes in deltas of at most 16 KB, cut between characters and escapes
    Then each delta of each finished message is valid alone, and has 16384 bytes or less

  Scenario: A message of 10 MB is not copied
    Then the events of a message of 10 MB take less than 0.5 MB at once

  Scenario: A body that is not a message is refused before its first event
    Then what is not a message is refused before its first event as follows
      | bytes                                      | error                          |
      |                                            | Input data was truncated       |
      | []                                         | Expected `object`, got `array` |
      | {"content": []}                            | Expected `object`, got `null`  |
      | {"content": [], "usage": null}             | Expected `object`, got `null`  |
      | {"content": {}, "usage": {}}               | Expected `array`, got `object` |
      | {"content": [{"text": "x"}], "usage": {}}  | Expected `str`, got `null`     |
      | {"content": [{"type": null}], "usage": {}} | Expected `str`, got `null`     |
