@slow
Feature: The sandbox answers what is malformed in the API's words, and strangers not at all

  Scenario: A malformed body is a 400, and other callers are answered as ever
    Given a sandbox for strangers
    # Messages, tokens, batches, files, files as a form, faults and the clock.
    Then a body is answered by every route that takes one as follows
      | body | statuses |
      | b'' | 400 400 400 400 400 400 400 |
      | b'{' | 400 400 400 400 400 400 400 |
      | b'null' | 400 400 400 400 400 400 400 |
      | b'[]' | 400 400 400 400 400 400 400 |
      | b'"x"' | 400 400 400 400 400 400 400 |
      | b'\xff\xfe\x00' | 400 400 400 400 400 400 400 |
      | b'{"model": "\xff"}' | 400 400 400 400 400 400 400 |
      | b'{"requests": NaN}' | 400 400 400 400 400 400 400 |
      | b'[Infinity]' | 400 400 400 400 400 400 400 |
      | b'"\\ud800"' | 400 400 400 400 400 400 400 |
      | b'1' * 5000 | 400 400 400 400 400 400 400 |
      | b'[' * 200000 | 400 400 400 400 400 400 400 |
      | b'[' * 200000 + b']' * 200000 | 400 400 400 400 400 400 400 |
      | b'{"a":' * 200000 + b'1' + b'}' * 200000 | 400 400 400 400 400 400 400 |
    And the sandbox still answers, bills and ends batches

  Scenario: Malformed params end their own request, live and in a batch
    Given a sandbox for strangers
    Then params are answered live, when their tokens are counted, and in a batch beside good ones, as follows
      | field | value | live | counted | batch | its result | the good one |
      | messages | b'[' * 200000 + b']' * 200000 | 400 | 400 | 400 | | |
      | messages | b'[{"role": "user", "content": ' + b'[' * 900 + b']' * 900 + b'}]' | 400 | 400 | 200 | errored | succeeded |
      | system | b'{"a":' * 200000 + b'1' + b'}' * 200000 | 400 | 400 | 400 | | |
      | tools | b'[' * 990 + b']' * 990 | 400 | 400 | 400 | | |
      | tools | b'[{"name": "a", "input_schema": {"type": "string", "minLength": 9999999999999}}]' | 400 | 400 | 200 | errored | succeeded |
      | tools | b'[{"name": "a", "input_schema": {"type": "array", "minItems": 99999999}}]' | 400 | 400 | 200 | errored | succeeded |
      | tools | b'[{"name": "a", "input_schema": {"type": "number", "minimum": 1e308, "multipleOf": 1e-308}}]' | 400 | 400 | 200 | errored | succeeded |
      | output_config | b'{"format": {"type": "json_schema", "schema": {"type": "array", "minItems": 99999999}}}' | 400 | 400 | 200 | errored | succeeded |
      | messages | b'[{"role": "user", "content": "' + b'a' * 900000 + b'"}]' | 400 | 200 | 200 | errored | succeeded |
      | max_tokens | b'9' * 40 | 400 | 400 | 200 | errored | succeeded |
      | model | b'"\xff"' | 400 | 400 | 200 | errored | succeeded |
      | zzz | b'[' * 200000 | 400 | 400 | 400 | | |
    And the sandbox still answers, bills and ends batches

  Scenario: A malformed query, header or form is a 4xx too
    Given a sandbox for strangers
    Then calls with such headers and bodies are answered as follows
      | call | header | body | status |
      | GET /v1/files?limit=99999… | x: y |  | 400 |
      | GET /v1/files?page=page_99999… | x: y |  | 400 |
      | POST /v1/files | content-type: multipart/form-data; boundary=x | --x\r\n\xff: y\r\n\r\nz | 400 |
      | POST /v1/files | content-type: multipart/form-data; boundary*=u'x | --x\r\n\r\nz | 400 |
      | POST /sandbox/clock | x: y | {"offset": 1e300} | 400 |
      | POST /sandbox/clock | x: y | {"advance": -1e300} | 400 |
      | POST /sandbox/faults | x: y | {"rate_limits": {"requests": 0}} | 400 |
      | POST /sandbox/faults | x: y | {"rules": [{"route": "messages", "action": {"type": "redirect", "location": "a\\r\\nb: c"}}]} | 400 |
    And the sandbox still answers, bills and ends batches

  Scenario: A body has a bound on each route
    Given a sandbox for strangers
    Then a body without content is answered as follows
      | size     | path                      | status |
      | 32000001 | /v1/messages              | 413    |
      | 32000001 | /v1/messages/count_tokens | 413    |
      | 8000001  | /sandbox/faults           | 413    |
      | 8000001  | /sandbox/clock            | 413    |

  Scenario: A body that has no end is not read for ever, and one of another length is no answer
    Given a sandbox for strangers
    Then a body without an end is read as follows
      | path         | read    |
      | /v1/messages | in part |
    And a call that announces another length than it sends gets no answer of its own, as follows
      | announced | sent | fails | succeeds |
      | 100       | 10   | no    | no       |
      | 10        | 100  | no    | no       |
      | -1        | 10   | no    | no       |
      | ten       | 10   | no    | no       |
    And the sandbox still answers, bills and ends batches

  Scenario: The sandbox's own routes answer programs of this machine alone
    Given a sandbox for strangers
    Then the sandbox's own routes answer a stranger as follows
      | host                   | header                      | status |
      | 127.0.0.1:PORT         | x: y                        | 200    |
      | localhost:PORT         | sec-fetch-site: none        | 200    |
      | [::1]:PORT             | x: y                        | 200    |
      | [::ffff:127.0.0.1]     | x: y                        | 200    |
      | evil.example:PORT      | x: y                        | 403    |
      | localhost.evil.example | x: y                        | 403    |
      | 10.0.0.1               | x: y                        | 403    |
      | 127.0.0.1:PORT         | origin: http://evil.example | 403    |
      | 127.0.0.1:PORT         | origin: null                | 403    |
      | 127.0.0.1:PORT         | sec-fetch-site: cross-site  | 403    |
      | evil.example           | x-sandbox-token: guessed    | 403    |
      | evil.example           | x-sandbox-token: the-token  | 200    |

  Scenario: A caller from another machine needs the token
    Then a call to the sandbox's own routes from an address is answered as follows
      | address       | token     | status |
      | 192.0.2.7     | none      | 403    |
      | 192.0.2.7     | the-token | 200    |
      | 127.0.0.9     | none      | 200    |
      | nowhere       | none      | 200    |
      | a-test-client | none      | 403    |
