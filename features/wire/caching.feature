@every_python
Feature: What requests share at their beginning is marked for the prompt cache
  The first six uses of a prefix stay as they are; LONG is a text of 24,000 bytes.

  Scenario: The longest prefix is marked from its seventh use on, by its last block
    Then the seventh and the eighth request with these params are marked as follows
      | what                           | at                   | params                                                                                                                                                                                                        |
      | a system prompt                | system.0             | {"system": "LONG"}                                                                                                                                                                                            |
      | the last of system's blocks    | system.1             | {"system": [{"type": "text", "text": "LONG"}, {"type": "text", "text": "b"}]}                                                                                                                                 |
      | the last tool                  | tools.1              | {"tools": [{"name": "a", "description": "LONG"}, {"name": "b"}]}                                                                                                                                              |
      | system after tools             | system.0             | {"tools": [{"name": "a", "description": "LONG"}], "system": "Short."}                                                                                                                                         |
      | tools before an empty text     | tools.0              | {"tools": [{"name": "a", "description": "LONG"}], "system": [{"type": "text", "text": ""}]}                                                                                                                   |
      | the last leading document      | messages.0.content.1 | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}, {"type": "document", "source": {"type": "text", "data": "x"}}, {"type": "text", "text": "N"}]}]} |
      | a document that lies elsewhere | messages.0.content.0 | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}, {"type": "text", "text": "N"}]}, {"role": "assistant", "content": "y"}]}                         |
      | an image in many bytes         | messages.0.content.0 | {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "HUGE"}}, {"type": "text", "text": "N"}]}]}                                   |
      | what this model caches already | system.0             | {"model": "claude-sonnet-4-5", "system": "MIDDLE"}                                                                                                                                                            |
      | a text that speaks of marks    | system.0             | {"system": "LONG \"cache_control\": {}"}                                                                                                                                                                      |
      | a result of a search           | messages.0.content.0 | {"messages": [{"role": "user", "content": [{"type": "search_result", "source": "https://x.example", "title": "t", "content": [{"type": "text", "text": "LONG"}]}, {"type": "text", "text": "N"}]}]} |
      | a document of tomorrow         | messages.0.content.0 | {"messages": [{"role": "user", "content": [{"type": "document", "text": 5, "source": {"type": 5, "data": "LONG"}}, {"type": 5}, {"type": "text", "text": "N"}]}]} |
      | before a block of no kind      | messages.0.content.0 | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}, ["N"]]}]} |
      | documents alone                | messages.0.content.0 | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}]}, {"role": "assistant", "content": "N"}]} |

  Scenario: A prefix that is too short, has marks of its own, or does not lead is never marked
    Then the seventh and the eighth request with these params are marked as follows
      | what                          | at       | params                                                                                                                                        |
      | what is too short             | no place | {"system": "Short."}                                                                                                                          |
      | what this model finds short   | no place | {"model": "claude-haiku-4-5", "system": "MIDDLE"}                                                                                             |
      | nothing at all                | no place | {"system": "", "tools": []}                                                                                                                   |
      | null                          | no place | {"system": null, "tools": null}                                                                                                               |
      | a tool that is loaded later   | no place | {"tools": [{"name": "a", "description": "LONG", "defer_loading": true}]}                                                                      |
      | what has marks of its own     | no place | {"system": [{"type": "text", "text": "LONG", "cache_control": {"type": "ephemeral"}}]}                                                        |
      | what asks for marks by itself | no place | {"system": "LONG", "cache_control": {"type": "ephemeral"}}                                                                                    |
      | a system prompt of no kind    | no place | {"system": [{"type": "text", "text": "LONG"}, {}]}                                                                                            |
      | a text after the documents    | no place | {"messages": [{"role": "user", "content": [{"type": "text", "text": "LONG"}]}]}                                                               |
      | a document of the assistant's | no place | {"messages": [{"role": "assistant", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}]}]}                          |
      | an image in few bytes         | no place | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "LONG"}}, {"type": "text", "text": "N"}]}]} |

  Scenario: Prefixes of more and of fewer requests are marked side by side, four marks at most
    Then requests with documents are marked as follows
      | eight times each of                        | the last one's marks                                                                   | prefixes |
      | A, A B, A B C, A B C D, A B C D E          | messages.0.content.1, messages.0.content.2, messages.0.content.3, messages.0.content.4 | 5        |

  Scenario: Another model, tool, format or beta is another prefix
    Then ten requests with one long system prompt are marked as follows
      | half of them have                                      | marked |
      | {}                                                     | 4      |
      | {"model": "claude-opus-4-6"}                           | 0      |
      | {"tools": [{"name": "a"}]}                             | 0      |
      | {"output_config": {"format": {"type": "json_schema"}}} | 0      |
      | {"betas": ["b"]}                                       | 0      |

  Scenario: Prompts of one actor are marked by their first bytes, as any other request is
    Then eight prompts of an actor are marked as their params are as follows
      | system prompt | options                                                                               | marked |
      | LONG          | {}                                                                                    | 2      |
      | LONG          | {"tools": [{"name": "a", "input_schema": {"type": "object"}, "description": "LONG"}]} | 2      |
      | LONG          | {"max_tokens": 7}                                                                     | 2      |
      | Short.        | {}                                                                                    | 0      |
    And eight prompts that do not end their params are marked as follows
      | system | marked |
      | LONG   | 2      |
      | Short. | 0      |

  Scenario: No more prefixes are remembered than there is room for
    Given a limit of 10 prefixes that are remembered
    Then requests, of which every second has a prefix of its own, are marked as follows
      | requests | the shared ones marked | the others marked | within the limit |
      | 300      | 144                    | 0                 | yes              |

  Scenario: A request that is as large as a batch may be is left as it is
    Given a limit of 30000 bytes in a request with marks
    Then the seventh and the eighth request with these params are marked as follows
      | at       | params             |
      | system.0 | {"system": "LONG"} |
    Given a limit of 24100 bytes in a request with marks
    Then the seventh and the eighth request with these params are marked as follows
      | at       | params             |
      | no place | {"system": "LONG"} |
    And eight prompts of an actor are marked as their params are as follows
      | system prompt | options | marked |
      | LONG          | {}      | 0      |
