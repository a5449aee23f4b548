@every_python
Feature: What an answer or a document holds is read as far as it can be

  Scenario: An answer in JSON is measured by its schema
    Then an answer in JSON is wrong as follows
      | text | reason | schema | problem |
      | {"a": 1} | end_turn | {"type": "object", "properties": {"a": {"type": "number"}}} | nothing |
      | {"a": 1 | max_tokens | {"type": "object"} | it was truncated by max_tokens |
      | {"a": "x"} | end_turn | {"type": "object", "properties": {"a": {"type": "number"}}} | a: 'x' is not of type 'number' |
      | "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" | end_turn | {"type": "object"} | 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx [...] xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not of type 'object'         |
      | [1] | end_turn | {"type": "object"} | [1] is not of type 'object' |
      | 1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 | end_turn | {"type": "number", "multipleOf": 0.1} | nothing |
      | [1, 2, 3, 4, 5, 6, 7] | end_turn | {"items": {"type": "null"}} | 0: 1 is not of type 'null'; 1: 2 is not of type 'null'; 2: 3 is not of type 'null'; 3: 4 is not of type 'null'; 4: 5 is not of type 'null' |

  Scenario: A result line is understood as far as its meaning is certain, and no paid answer is lost
    Then result lines are read as follows
      | result                                                                                                                      | outcome    | asks for     | error type            | tokens |
      | {"type": "succeeded", "message": {TEXT, USAGE}}                                                                             | succeeded  | final        |                       | 1+2    |
      | {"type": "succeeded", "message": {"id": null, "model": null, TEXT, USAGE}}                                                  | succeeded  | final        |                       | 1+2    |
      | {"type": "succeeded", "message": {TEXT, "usage": {"input_tokens": 1.0, "output_tokens": 2e0}}}                              | succeeded  | final        |                       | 1+2    |
      | {"type": "succeeded", "message": {TEXT, "usage": {"input_tokens": 1.5, "output_tokens": 2}}}                                | succeeded  | malformed    |                       |        |
      | {"type": "succeeded", "message": {"content": [{"type": "new", "text": {"a": 1}, "id": 2, "name": 3}], USAGE}}               | succeeded  | final        |                       | 1+2    |
      | {"type": "succeeded", "message": {"content": [{"type": "text", "text": 3}], USAGE}}                                         | succeeded  | malformed    |                       | 1+2    |
      | {"type": "succeeded", "message": {"content": [{"type": "server_tool_use", "id": 3}], USAGE}}                                | succeeded  | malformed    |                       | 1+2    |
      | {"type": "succeeded", "message": {TEXT, "new": BROKEN, USAGE}}                                                              | succeeded  | malformed    |                       | 1+2    |
      | {"type": "succeeded", "message": {TEXT, "new": DEEP, USAGE}}                                                                | succeeded  | malformed    |                       | 1+2    |
      | {"type": "succeeded", "message": null}                                                                                      | succeeded  | malformed    |                       |        |
      | {"type": "succeeded"}                                                                                                       | succeeded  | malformed    |                       |        |
      | {"type": "succeeded", "message": {"content": null, USAGE}}                                                                  | succeeded  | malformed    |                       | 1+2    |
      | {"type": "succeeded", "message": {TEXT, "usage": null}}                                                                     | succeeded  | malformed    |                       |        |
      | {"type": "completed", "message": {TEXT, USAGE}}                                                                             | succeeded  | undocumented |                       | 1+2    |
      | {"type": "paused"}                                                                                                          | succeeded  | undocumented |                       |        |
      | {"type": null}                                                                                                              | unreadable |              |                       |        |
      | "succeeded"                                                                                                                 | unreadable |              |                       |        |
      | {"type": "canceled", "message": "by an operator"}                                                                           | canceled   | final        |                       |        |
      | {"type": "expired", "error": "too late"}                                                                                    | expired    | retry        |                       |        |
      | {"type": "errored", "error": {"error": {"type": "overloaded_error", "message": "m", "details": ["d"]}, "request_id": null}} | errored    | retry        | overloaded_error      |        |
      | {"type": "errored", "error": {"error": {"type": "invalid_request_error", "message": "m", "details": "d"}}}                  | errored    | final        | invalid_request_error |        |
      | {"type": "errored", "error": {"error": {"type": "invalid_request_error", "message": null}}}                                 | errored    | final        | invalid_request_error |        |
      | {"type": "errored", "error": {"type": "invalid_request_error", "message": "nested once"}}                                   | errored    | final        | invalid_request_error |        |
      | {"type": "errored", "error": {"error": {"type": "invalid_request_error", "message": 5}, "request_id": 7}}                   | errored    | final        | invalid_request_error |        |
      | {"type": "errored", "error": {"error": "out of order"}}                                                                     | errored    | retry        | api_error             |        |
      | {"type": "errored", "error": null}                                                                                          | unreadable |              |                       |        |

  Scenario: An image whose size cannot be read is left to the API to judge
    Then bytes are recognised as follows
      | hex                                              | type       | size    |
      | ffd8ffe000020000000000000000                     | image/jpeg | unknown |
      | 5249464600000000574542505650383f0000000000000000 | image/webp | unknown |

  Scenario: The pages of a PDF are counted in its page tree alone
    Then the pages of a PDF are counted as follows
      | pdf                                                  | pages |
      | << /Type /Pages /Count 7 >>                          | 7     |
      | << /Count 9 /Resources << /Font 1 >> /Type /Pages >> | 9     |
      | /Type /Pages                                         | 0     |
      | << /Type /Catalog /Count 5 >>                        | 0     |

  Scenario: A prompt that is larger than a whole batch is refused, however it is encoded
    Given a limit of 1000 bytes in an encoded request
    Then prompts are encoded as an actor's others are, as follows
      | bytes | params | error                         |
      | 100   | 186    |                               |
      | 2000  |        | of a whole batch   |

  Scenario: Headers are shared by equal requests, and not without end
    Then headers of user profiles are kept as follows
      | profiles | with their own headers | within the limit |
      | 1003     | 1003                   | yes              |

  Scenario: A key is masked in a stream too, also where two pieces share it
    Then a body that comes in pieces is masked as follows
      | body        | bytes a piece | arrives                       |
      | one KEY two | 1000          | one [credential] two          |
      | one KEY two | 7             | one [credential] two          |
      | KEYKEY      | 1             | [credential][credential]      |
      | sk-ant-KEY  | 11            | sk-ant-[credential]           |
      | sk-ant-0    | 3             | sk-ant-0                      |
    And the first words of a body that is cut within a key hold no part of the key
