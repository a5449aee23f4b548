@slow
Feature: The sandbox answers what is malformed in the API's words, and strangers not at all

  Scenario Outline: A malformed body is a 400, and other callers are answered as ever
    Given a sandbox for strangers
    When a stranger sends <body> to every route that takes a body
    Then each answer to the stranger is an error of the API with a status below 500
    And the sandbox still answers, bills and ends batches

    Examples:
      | body                                     |
      | b''                                      |
      | b'{'                                     |
      | b'null'                                  |
      | b'[]'                                    |
      | b'"x"'                                   |
      | b'\xff\xfe\x00'                          |
      | b'{"model": "\xff"}'                     |
      | b'{"requests": NaN}'                     |
      | b'[Infinity]'                            |
      | b'"\\ud800"'                             |
      | b'1' * 5000                              |
      | b'[' * 200000                            |
      | b'[' * 200000 + b']' * 200000            |
      | b'{"a":' * 200000 + b'1' + b'}' * 200000 |

  Scenario Outline: Malformed params end their own request, live and in a batch
    Given a sandbox for strangers
    When a stranger asks live and in a batch with <field> = <value>
    Then each answer to the stranger is an error of the API with a status below 500, or an answer
    And the sandbox still answers, bills and ends batches

    Examples:
      | field         | value                                                                                          |
      | messages      | b'[' * 200000 + b']' * 200000                                                                  |
      | messages      | b'[{"role": "user", "content": ' + b'[' * 900 + b']' * 900 + b'}]'                             |
      | system        | b'{"a":' * 200000 + b'1' + b'}' * 200000                                                       |
      | tools         | b'[' * 990 + b']' * 990                                                                        |
      | tools         | b'[{"name": "a", "input_schema": {"type": "string", "minLength": 9999999999999}}]'             |
      | tools         | b'[{"name": "a", "input_schema": {"type": "array", "minItems": 99999999}}]'                    |
      | tools         | b'[{"name": "a", "input_schema": {"type": "number", "minimum": 1e308, "multipleOf": 1e-308}}]' |
      | output_config | b'{"format": {"type": "json_schema", "schema": {"type": "array", "minItems": 99999999}}}'      |
      | max_tokens    | b'9' * 40                                                                                      |
      | model         | b'"\xff"'                                                                                      |
      | zzz           | b'[' * 200000                                                                                  |

  Scenario Outline: What is malformed beside the body is a 4xx too
    Given a sandbox for strangers
    When a stranger calls <method> <path> with the header <header> and the body <body>
    Then each answer to the stranger is an error of the API with a status below 500
    And the sandbox still answers, bills and ends batches

    Examples:
      | method | path                       | header                                           | body                                                                                          |
      | GET    | /v1/files?limit=99999…     | x: y                                             |                                                                                               |
      | GET    | /v1/files?page=page_99999… | x: y                                             |                                                                                               |
      | POST   | /v1/files                  | content-type: multipart/form-data; boundary=x    | --x\r\n\xff: y\r\n\r\nz                                                                       |
      | POST   | /v1/files                  | content-type: multipart/form-data; boundary*=u'x | --x\r\n\r\nz                                                                                  |
      | POST   | /sandbox/clock             | x: y                                             | {"offset": 1e300}                                                                             |
      | POST   | /sandbox/clock             | x: y                                             | {"advance": -1e300}                                                                           |
      | POST   | /sandbox/faults            | x: y                                             | {"rate_limits": {"requests": 0}}                                                              |
      | POST   | /sandbox/faults            | x: y                                             | {"rules": [{"route": "messages", "action": {"type": "redirect", "location": "a\\r\\nb: c"}}]} |

  Scenario: A body has a bound on each route
    Given a sandbox for strangers
    Then a body without content is answered as follows
      | size     | path                      | status |
      | 32000001 | /v1/messages              | 413    |
      | 32000001 | /v1/messages/count_tokens | 413    |
      | 8000001  | /sandbox/faults           | 413    |
      | 8000001  | /sandbox/clock            | 413    |

  Scenario: A body that has no end is not read for ever
    Given a sandbox for strangers
    When a stranger sends a body without an end to /v1/messages
    Then the sandbox still answers, bills and ends batches

  Scenario Outline: A body that is not what its length says is no answer of its own
    Given a sandbox for strangers
    When a stranger announces <announced> bytes and sends <sent>
    Then the sandbox still answers, bills and ends batches

    Examples:
      | announced | sent |
      | 100       | 10   |
      | 10        | 100  |
      | -1        | 10   |
      | ten       | 10   |

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
