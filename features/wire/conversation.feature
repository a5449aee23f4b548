@every_python
Feature: One generator decides what follows an answer of a conversation

  Scenario: A conversation's next step follows from the answer and the replies before it
    Given a conversation with the terms {"max_turns": 3, "validation_attempts": 3, "tools": ["ours", "also"]}
    Then what follows is
      | turns | rejected | answer                        | reply       | what follows                                                                        |
      | 0     | 0        | end_turn                      |             | check                                                                               |
      | 0     | 0        | max_tokens                    |             | check                                                                               |
      | 2     | 2        | end_turn                      | no problem  | end: succeeded                                                                      |
      | 2     | 0        | end_turn                      | a problem   | next turn, asks again                                                               |
      | 2     | 1        | end_turn                      | a problem   | next turn, asks again                                                               |
      | 0     | 2        | end_turn                      | a problem   | end: stopped (invalid_output), "a problem"                                          |
      | 1     | 2        | pause_turn                    |             | next turn                                                                           |
      | 2     | 0        | pause_turn                    |             | end: stopped (max_turns), "answer 3 asks for another turn, but max_turns is 3"  |
      | 1     | 2        | tool_use ours                 |             | tool calls: ours                                                                    |
      | 1     | 2        | tool_use also, ours           |             | tool calls: also, ours                                                              |
      | 1     | 0        | tool_use ours                 | results     | next turn                                                                           |
      | 1     | 0        | tool_use ours                 | interrupted | end: stopped (tool_interrupted), "the tool ours had started when its process ended" |
      | 0     | 0        | tool_use invented             |             | tool calls: invented                                                                |
      | 2     | 0        | tool_use ours                 |             | end: stopped (max_turns), "answer 3 asks for another turn, but max_turns is 3"  |
      | 2     | 0        | tool_use callers              |             | end: succeeded                                                                      |
      | 0     | 0        | tool_use ours, callers        |             | end: succeeded                                                                      |
      | 0     | 0        | tool_use                      |             | end: succeeded                                                                      |
      | 0     | 0        | refusal                       |             | end: refused                                                                        |
      | 0     | 0        | model_context_window_exceeded |             | end: window_exceeded                                                                |

  Scenario: Without the turns before an answer, it can only be the last one
    Given a conversation with the terms {"max_turns": 3, "validation_attempts": 3, "tools": ["ours"], "is_forgotten": true}
    Then what follows is
      | turns | rejected | answer           | reply      | what follows                                           |
      | 1     | 0        | end_turn         | no problem | end: succeeded                                         |
      | 1     | 0        | end_turn         | a problem  | end: stopped (turns_forgotten), "the ledger was restored" |
      | 1     | 0        | tool_use ours    |            | end: stopped (turns_forgotten), "the ledger was restored" |
      | 1     | 0        | tool_use callers |            | end: succeeded                                         |
      | 1     | 0        | pause_turn       |            | end: stopped (turns_forgotten), "the ledger was restored" |
      | 1     | 0        | refusal          |            | end: refused                                           |

  Scenario: Without functions and without a check, an answer is the last one unless it pauses
    Given a conversation with the terms {"max_turns": 2, "validation_attempts": 1, "tools": null}
    Then what follows is
      | turns | rejected | answer        | reply | what follows   |
      | 0     | 0        | end_turn      |       | end: succeeded |
      | 0     | 0        | tool_use ours |       | end: succeeded |
      | 0     | 0        | pause_turn    |       | next turn      |

  Scenario: If the names of the functions are unknown, no call is taken for the caller's
    Given a conversation with the terms {"max_turns": 2, "validation_attempts": 1, "tools": []}
    Then what follows is
      | turns | rejected | answer           | reply | what follows        |
      | 0     | 0        | tool_use callers |       | tool calls: callers |

  Scenario: A turn that is too large for a batch ends the conversation, whatever asked for it
    Given a conversation with the terms {"max_turns": 2, "validation_attempts": 2, "tools": ["ours"], "most_bytes": 150}
    Then what follows is
      | turns | rejected | answer        | reply     | what follows                                                   |
      | 0     | 0        | pause_turn    |           | end: stopped (too_large), "bytes, more than a batch can carry" |
      | 0     | 0        | tool_use ours | results   | end: stopped (too_large), "bytes, more than a batch can carry" |
      | 0     | 0        | end_turn      | a problem | end: stopped (too_large), "bytes, more than a batch can carry" |

  Scenario: The messages that the next turn adds
    Then the next turn begins with the turn before it, and adds as follows
      | answer              | reply     | messages                                                                                                                |
      | pause_turn          |           | assistant: text                                                                                                         |
      | tool_use also, ours | results   | assistant: text, tool_use, tool_use; user: tool_result call-0, tool_result call-1                                       |
      | end_turn            | a problem | assistant: text; user: That answer cannot be used: a problem. Answer again, in full and in the form that was asked for. |

  Scenario: Of an answer the next turn has what the API accepts, each block unchanged
    # The API writes blank texts and refuses them. It refuses an assistant's message that ends in a
    # thought, and a call without a result.
    Then the blocks of an answer return as follows
      | answer     | blocks                                                        | kept                                  |
      | tool_use   | thinking, text, tool_use ours                                 | thinking, text, tool_use              |
      | tool_use   | thinking, blank, tool_use ours                                | thinking, tool_use                    |
      | tool_use   | blank, server_tool_use, tool_use ours                         | server_tool_use, tool_use             |
      | pause_turn | text, server_tool_use, server_result, blank, server_tool_use  | text, server_tool_use, server_result, server_tool_use |
      | pause_turn | blank                                                         |                                       |
      | end_turn   | thinking, text, blank                                         | thinking, text                        |
      | end_turn   | server_tool_use, server_result, text                          | server_tool_use, server_result, text  |
      | max_tokens | text, tool_use ours                                           | text                                  |
      | max_tokens | text, server_tool_use, server_result, server_tool_use         | text, server_tool_use, server_result  |
      | max_tokens | thinking                                                      |                                       |
      | max_tokens | thinking, text, thinking                                      |                                       |
      | max_tokens | thinking, tool_use ours                                       |                                       |

  Scenario: A tool that is forced is forced once, or the conversation could never end
    Then the next turn chooses its tools as follows
      | tool_choice                                                           | answer        | next                                               |
      | {"type": "any"}                                                       | tool_use ours | {"type": "auto"}                                   |
      | {"type": "tool", "name": "ours", "disable_parallel_tool_use": true}   | tool_use ours | {"type": "auto", "disable_parallel_tool_use": true} |
      | {"type": "auto"}                                                      | tool_use ours | {"type": "auto"}                                   |
      | {"type": "none"}                                                      | tool_use ours | {"type": "none"}                                   |
      | null                                                                  | tool_use ours |                                                    |
      | {"type": "any"}                                                       | pause_turn    | {"type": "any"}                                    |
      | {"type": "any"}                                                       | max_tokens    | {"type": "any"}                                    |

  Scenario: A driver that enters a conversation where it stands continues as if it had been there from the start
    Given a conversation with the terms {"max_turns": 5, "validation_attempts": 3, "tools": ["ours"]}
    Then it takes these steps from its beginning, and the same from each of its answers
      | what follows          | reply         |
      | next turn             | pause_turn    |
      | next turn             | tool_use ours |
      | tool calls: ours      | results       |
      | next turn             | end_turn      |
      | check                 | a problem     |
      | next turn, asks again | tool_use ours |
      | tool calls: ours      | results       |
      | next turn             | end_turn      |
      | check                 | a problem     |
      | next turn, asks again | end_turn      |
      | check                 | no problem    |
      | end: succeeded        |               |

  Scenario: No other module decides it
    Then no other module than "wire/conversation.py" uses any of these
      | name                  |
      | after_pause           |
      | after_tools           |
      | after_rejection       |
      | declared_tools        |
      | schema_problem        |
      | tool_uses             |
      | Stop.MAX_TURNS        |
      | Stop.TOOL_INTERRUPTED |
      | Stop.INVALID_OUTPUT   |
      | Stop.TOO_LARGE        |
