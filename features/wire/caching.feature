@every_python
Feature: What requests share at their beginning is marked for the prompt cache
  The first six uses of a prefix stay as they are; LONG is a text of 24,000 bytes.

  Scenario Outline: <what> is marked from its seventh use on
    When 8 requests with these params are looked at
      """
      <params>
      """
    Then the first 6 are as they were
    And the others differ in the marks at <marks> alone, and share a number

    Examples: the longest prefix, by its last block
      | what                        | params                                                                                                                   | marks           |
      | a system prompt             | {"system": "LONG"}                                                                                                       | system.0        |
      | the last of system's blocks | {"system": [{"type": "text", "text": "LONG"}, {"type": "text", "text": "b"}]}                                            | system.1        |
      | the last tool               | {"tools": [{"name": "a", "description": "LONG"}, {"name": "b"}]}                                                         | tools.1         |
      | system after tools          | {"tools": [{"name": "a", "description": "LONG"}], "system": "Short."}                                                    | system.0        |
      | tools before an empty text  | {"tools": [{"name": "a", "description": "LONG"}], "system": [{"type": "text", "text": ""}]}                              | tools.0         |
      | the last leading document   | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}, {"type": "document", "source": {"type": "text", "data": "x"}}, {"type": "text", "text": "N"}]}]} | messages.0.content.1 |
      | a document that lies elsewhere | {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}, {"type": "text", "text": "N"}]}, {"role": "assistant", "content": "y"}]} | messages.0.content.0 |
      | an image in many bytes      | {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "HUGE"}}, {"type": "text", "text": "N"}]}]} | messages.0.content.0 |

  Scenario Outline: <what> is never marked
    When 8 requests with these params are looked at
      """
      <params>
      """
    Then the first 8 are as they were

    Examples:
      | what                          | params                                                                                                         |
      | what is too short             | {"system": "Short."}                                                                                           |
      | what this model finds short   | {"model": "claude-haiku-4-5", "system": "MIDDLE"}                                                              |
      | nothing at all                | {"system": "", "tools": []}                                                                                    |
      | null                          | {"system": null, "tools": null}                                                                                |
      | a tool that is loaded later   | {"tools": [{"name": "a", "description": "LONG", "defer_loading": true}]}                                       |
      | what has marks of its own     | {"system": [{"type": "text", "text": "LONG", "cache_control": {"type": "ephemeral"}}]}                         |
      | what asks for marks by itself | {"system": "LONG", "cache_control": {"type": "ephemeral"}}                                                     |
      | a text after the documents    | {"messages": [{"role": "user", "content": [{"type": "text", "text": "LONG"}]}]}                                |
      | a document of the assistant's | {"messages": [{"role": "assistant", "content": [{"type": "document", "source": {"type": "text", "data": "LONG"}}]}]} |
      | an image in few bytes         | {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "LONG"}}, {"type": "text", "text": "N"}]}]} |

  Scenario: A model that caches shorter prefixes has them marked
    When 8 requests with these params are looked at
      """
      {"model": "claude-sonnet-4-5", "system": "MIDDLE"}
      """
    Then the first 6 are as they were
    And the others differ in the marks at system.0 alone, and share a number

  Scenario: A text that speaks of marks has none of its own
    When 8 requests with these params are looked at
      """
      {"system": "LONG \"cache_control\": {}"}
      """
    Then the first 6 are as they were
    And the others differ in the marks at system.0 alone, and share a number

  Scenario: What more requests share is marked beside what fewer share, four marks at most
    When requests with the documents are looked at
      | documents | times |
      | A         | 8     |
      | A B       | 8     |
      | A B C     | 8     |
      | A B C D   | 8     |
      | A B C D E | 8     |
    Then the last of them has its marks at messages.0.content.1, messages.0.content.2, messages.0.content.3, messages.0.content.4
    And the numbers are as many as the lists of documents

  Scenario: Another model, tool, format or beta is another prefix
    When 5 requests of each kind that share a long system prompt alone are looked at
    Then none of them is marked

  Scenario: Prompts of one actor are marked by their first bytes, as any other request is
    When 8 prompts of an actor are looked at, as prompts and as params
    Then both have become the same

  Scenario: No more prefixes are remembered than there is room for
    Given a limit of 10 prefixes that are remembered
    When 300 requests are looked at, of which every second has a prefix of its own
    Then the shared prefix is marked all the same
    And no more than 10 prefixes are remembered

  Scenario: A request that is as large as a batch may be is left as it is
    Given the largest body has 30000 bytes
    When 8 requests with these params are looked at
      """
      {"system": "LONG"}
      """
    Then the first 6 are as they were
    Given the largest body has 24100 bytes
    When 8 requests with these params are looked at
      """
      {"system": "LONG"}
      """
    Then the first 8 are as they were
