@every_python
Feature: Each error of the API means one thing, by one table

  Scenario Outline: An answer to a create call: <status> <type>, <details>
    Given an answer <status> with <type> saying "<message>" and <details>
    Then the create is judged <verdict>

    Examples:
      | status | type                  | message | details | verdict |
      | 400 | invalid_request_error | bad | no details | BAD_REQUEST |
      | 400 | invalid_request_error | Your credit balance is too low to go on | no details | ACCOUNT |
      | 400 | invalid_request_error | You have reached your specified API usage limits. | no details | ACCOUNT |
      | 400 | invalid_request_error | You have reached your specified workspace API usage limits. | no details | ACCOUNT |
      | 401 | authentication_error  | bad key | no details | ACCOUNT |
      | 402 | billing_error         | pay | no details | ACCOUNT |
      | 403 | permission_error      | no | no details | ACCOUNT |
      | 404 | not_found_error       | no | no details | MISPLACED |
      | 413 | request_too_large     | big | no details | TOO_LARGE |
      | 429 | rate_limit_error      | slow | no details | WAIT |
      | 429 | rate_limit_error      | slow | error_code ramp_limit_exceeded | WAIT |
      | 429 | rate_limit_error      | stop | error_code enforced_spend_limit_reached | ACCOUNT |
      | 429 | rate_limit_error      | stop | error_code contract_spend_limit_reached | ACCOUNT |
      | 529 | overloaded_error      | busy | no details | WAIT |
      | 500 | api_error             | oops | no details | UNKNOWN |
      | 504 | timeout_error         | late | no details | UNKNOWN |
      | 409 | conflict_error        | hm | no details | UNKNOWN |

  Scenario Outline: An answer that is not the API's own: <status>
    Given an answer <status> that is not the API's
    Then the create is judged <verdict>

    Examples:
      | status | verdict   |
      | 307    | MISPLACED |
      | 413    | TOO_LARGE |
      | 400    | UNKNOWN   |
      | 429    | UNKNOWN   |
      | 502    | UNKNOWN   |

  Scenario Outline: A result line that errored with <type>
    Then a line with <type> saying "<message>" is <disposition>

    Examples:
      | type                  | message                           | disposition |
      | overloaded_error      | busy                              | retry       |
      | api_error             | oops                              | retry       |
      | timeout_error         | late                              | retry       |
      | rate_limit_error      | slow                              | retry       |
      | invalid_request_error | bad                               | final       |
      | invalid_request_error | Your credit balance is too low    | account     |
      | invalid_request_error | You have reached your specified workspace API usage limits. | account |
      | invalid_request_error | The request timed out while trying to download the file. Please try again later. | retry |
      | permission_error      | that model                        | final       |
      | billing_error         | pay                               | account     |
      | something_new         | unheard of                        | final       |

  Scenario Outline: A stored failure passes, or it does not: <type> "<message>"
    Then a failure with <type> saying "<message>" <passes>

    Examples:
      | type                  | message                                                     | passes        |
      | overloaded_error      | busy                                                        | passes        |
      | invalid_request_error | The request timed out while trying to download the file.    | passes        |
      | invalid_request_error | Your credit balance is too low                              | passes        |
      | invalid_request_error | bad                                                         | does not pass |
      | http_413              | too large                                                   | does not pass |

  Scenario Outline: Which answers to a live call prove that nothing is billed: <status>
    Then an answer <status> to a live call <whose> proves that nothing is billed: <proves>

    Examples:
      | status | whose           | proves |
      | 307    | from a proxy    | yes    |
      | 400    | of the API      | yes    |
      | 400    | from a proxy    | no     |
      | 401    | of the API      | yes    |
      | 402    | of the API      | yes    |
      | 403    | of the API      | yes    |
      | 404    | of the API      | yes    |
      | 405    | of the API      | no     |
      | 408    | of the API      | no     |
      | 409    | of the API      | no     |
      | 413    | from a proxy    | yes    |
      | 429    | of the API      | yes    |
      | 429    | from a proxy    | no     |
      | 500    | of the API      | no     |
      | 502    | of the API      | no     |
      | 503    | of the API      | no     |
      | 504    | of the API      | no     |
      | 529    | of the API      | yes    |
      | 529    | from a proxy    | no     |

  Scenario Outline: The documentation prints the tables of errors as they are in the code
    Then docs/explanation/guarantees.md has every row of the <table>, with its source

    Examples:
      | table                             |
      | table of errors                   |
      | table of answers to a live call   |

  Scenario Outline: How long to wait: <headers>
    Then the headers <headers> ask to wait <seconds> seconds

    Examples:
      | headers                                                                                        | seconds |
      | {"retry-after": "7"}                                                                           | 7       |
      | {"retry-after-ms": "250"}                                                                      | 0.25    |
      | {"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}       | 30      |
      | {"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}                                               | None    |
      | {"retry-after": "soon", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}                               | None    |
      | {"date": "yesterday"}                                                                          | None    |
      | {}                                                                                             | None    |

  Scenario Outline: A result line is decoded only as far as collection needs: <what>
    When the line of <what> is decoded
    Then it is <outcome>

    Examples:
      | what                            | outcome    |
      | a success                       | succeeded  |
      | a success with cache tokens     | succeeded  |
      | an error, nested twice          | errored    |
      | an expired request              | expired    |
      | a canceled request              | canceled   |
      | no JSON                         | unreadable |
      | a success without a message     | malformed  |
      | an error without an error       | unreadable |
      | an outcome nobody knows         | unreadable |

  Scenario: The message of a line is handed on as the API sent it
    Then the message of a line keeps its bytes
    And what is no message is unreadable
