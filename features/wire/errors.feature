@every_python
Feature: Each error of the API means one thing, by one table

  Scenario: An answer to a create call
    Then a create call that is answered so is judged as follows
      | status | error_type            | message                                                     | error_code                              | verdict     |
      | 400    | invalid_request_error | bad                                                         |                                         | BAD_REQUEST |
      | 400    | invalid_request_error | Your credit balance is too low to go on                     |                                         | ACCOUNT     |
      | 400    | invalid_request_error | You have reached your specified API usage limits.           |                                         | ACCOUNT     |
      | 400    | invalid_request_error | You have reached your specified workspace API usage limits. |                                         | ACCOUNT     |
      | 401    | authentication_error  | bad key                                                     |                                         | ACCOUNT     |
      | 402    | billing_error         | pay                                                         |                                         | ACCOUNT     |
      | 403    | permission_error      | no                                                          |                                         | ACCOUNT     |
      | 401    | something_new         | unheard of                                                  |                                         | ACCOUNT     |
      | 402    | something_new         | unheard of                                                  |                                         | ACCOUNT     |
      | 403    | something_new         | unheard of                                                  |                                         | ACCOUNT     |
      | 404    | not_found_error       | no                                                          |                                         | MISPLACED   |
      | 413    | request_too_large     | big                                                         |                                         | TOO_LARGE   |
      | 429    | rate_limit_error      | slow                                                        |                                         | WAIT        |
      | 429    | rate_limit_error      | slow                                                        | ramp_limit_exceeded                     | WAIT        |
      | 429    | rate_limit_error      | stop                                                        | enforced_spend_limit_reached            | ACCOUNT     |
      | 429    | rate_limit_error      | stop                                                        | contract_spend_limit_reached            | ACCOUNT     |
      | 529    | overloaded_error      | busy                                                        |                                         | WAIT        |
      | 500    | api_error             | oops                                                        |                                         | UNKNOWN     |
      | 504    | timeout_error         | late                                                        |                                         | UNKNOWN     |
      | 409    | conflict_error        | hm                                                          |                                         | UNKNOWN     |
      | 402    | billing_error         | pay                                                         | linked_organization_spend_limit_reached | CUSTOMER    |
      | 402    | billing_error         | pay                                                         | linked_organization_billing_unavailable | CUSTOMER    |
      | 402    | billing_error         | pay                                                         | some_new_code                           | ACCOUNT     |
      | 403    | permission_error      | no                                                          | user_profile_billing_not_authorized     | CUSTOMER    |
      | 403    | permission_error      | no                                                          | user_profile_not_billable               | CUSTOMER    |
      | 403    | permission_error      | no                                                          | sandbox_egress_restricted               | ACCOUNT     |
      | 400    | invalid_request_error | bad                                                         | user_profile_required                   | BAD_REQUEST |
      | 400    | invalid_request_error | off                                                         | organization_on_hold                    | ACCOUNT     |
      | 400    | invalid_request_error | off                                                         | cmek_key_disabled                       | ACCOUNT     |
      | 400    | invalid_request_error | off                                                         | cmek_key_network_blocked                | ACCOUNT     |
      | 400    | invalid_request_error | off                                                         | workspace_human_review_disabled         | ACCOUNT     |
      | 400    | invalid_request_error | off                                                         | claude_code_key_creator_not_member      | ACCOUNT     |

  Scenario: An answer that is not the API's own
    Then a create call that another server answers is judged as follows
      | status | verdict   |
      | 300    | UNKNOWN   |
      | 301    | MISPLACED |
      | 302    | MISPLACED |
      | 303    | UNKNOWN   |
      | 304    | UNKNOWN   |
      | 307    | MISPLACED |
      | 308    | MISPLACED |
      | 413    | TOO_LARGE |
      | 400    | UNKNOWN   |
      | 401    | UNKNOWN   |
      | 429    | UNKNOWN   |
      | 502    | UNKNOWN   |

  Scenario: A result line that errored
    Then a result line with an error is judged as follows
      | error_type            | message                                                                          | error_code                              | disposition |
      | overloaded_error      | busy                                                                             |                                         | retry       |
      | api_error             | oops                                                                             |                                         | retry       |
      | timeout_error         | late                                                                             |                                         | retry       |
      | rate_limit_error      | slow                                                                             |                                         | retry       |
      | invalid_request_error | bad                                                                              |                                         | final       |
      | invalid_request_error | Your credit balance is too low                                                   |                                         | account     |
      | invalid_request_error | You have reached your specified workspace API usage limits.                      |                                         | account     |
      | invalid_request_error | The request timed out while trying to download the file. Please try again later. |                                         | retry       |
      | permission_error      | that model                                                                       |                                         | final       |
      | billing_error         | pay                                                                              |                                         | account     |
      | something_new         | unheard of                                                                       |                                         | final       |
      | billing_error         | pay                                                                              | linked_organization_spend_limit_reached | final       |
      | billing_error         | pay                                                                              | linked_organization_billing_unavailable | final       |
      | permission_error      | no                                                                               | user_profile_not_billable               | final       |
      | invalid_request_error | off                                                                              | organization_on_hold                    | account     |
      | invalid_request_error | off                                                                              | cmek_key_disabled                       | account     |
      | invalid_request_error | off                                                                              | cmek_key_network_blocked                | account     |
      | invalid_request_error | off                                                                              | claude_code_key_creator_not_member      | account     |
      | rate_limit_error      | slow                                                                             | ramp_limit_exceeded                     | retry       |

  Scenario: A stored failure may pass by itself, or not
    Then a stored failure passes by itself or not, as follows
      | error_type            | message                                                  | passes |
      | overloaded_error      | busy                                                     | yes    |
      | invalid_request_error | The request timed out while trying to download the file. | yes    |
      | invalid_request_error | Your credit balance is too low                           | yes    |
      | invalid_request_error | bad                                                      | no     |
      | http_413              | too large                                                | no     |

  Scenario: An answer to a live call may prove that nothing is billed
    Then an answer to a live call proves that nothing is billed, as follows
      | status | sender  | proves |
      | 303    | a proxy | no     |
      | 307    | a proxy | yes    |
      | 400    | the API | yes    |
      | 400    | a proxy | no     |
      | 401    | the API | yes    |
      | 402    | the API | yes    |
      | 403    | the API | yes    |
      | 404    | the API | yes    |
      | 405    | the API | no     |
      | 408    | the API | no     |
      | 409    | the API | no     |
      | 413    | a proxy | yes    |
      | 429    | the API | yes    |
      | 429    | a proxy | no     |
      | 500    | the API | no     |
      | 502    | the API | no     |
      | 503    | the API | no     |
      | 504    | the API | no     |
      | 529    | the API | yes    |
      | 529    | a proxy | no     |

  Scenario: The documentation prints the tables of errors as they are in the code
    Then the pages agree with the code about
      | subject              |
      | the tables of errors |

  Scenario: How long to wait
    Then the headers of an answer ask to wait as follows
      | headers                                                                                   | seconds |
      | {"retry-after": "7"}                                                                      | 7       |
      | {"retry-after-ms": "250"}                                                                 | 0.25    |
      | {"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": "Sat, 21 Nov 2026 10:00:00 GMT"} | 30      |
      | {"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}                                          | nothing |
      | {"retry-after": "soon", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}                          | nothing |
      | {"date": "yesterday"}                                                                     | nothing |
      | {}                                                                                        | nothing |

  Scenario: A result line is decoded only as far as collection needs
    Then a result line is decoded as follows
      | result                                                                                                                  | outcome   | disposition | error |
      | {"type": "succeeded", "message": {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {}}} | succeeded | final       |       |
      | {"type": "errored", "error": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}}               | errored   | retry       |       |
      | {"type": "expired"}                                                                                                     | expired   | retry       |       |
      | {"type": "canceled"}                                                                                                    | canceled  | final       |       |
      | {"type": "succeeded"}                                                                                                   | succeeded | malformed   |       |
      | {"type": "errored"}                                                                                                     |           |             | …     |
      | {"type": "pondered"}                                                                                                    | succeeded | undocumented |       |
      | not at all                                                                                                              |           |             | …     |
    And the error of a result line, nested twice, is decoded as follows
      | error object                                                                                       | type             | message | request_id |
      | {"type": "error", "request_id": "req_9", "error": {"type": "overloaded_error", "message": "busy"}} | overloaded_error | busy    | req_9      |
    And the usage of a result line is decoded as follows
      | usage | input_tokens | output_tokens | cache_creation_5m_input_tokens | cache_creation_1h_input_tokens | cache_read_input_tokens | web_search_requests | service_tier |
      | {"input_tokens": 5, "output_tokens": 2} | 5 | 2 | 0 | 0 | 0 | 0 |  |
      | {"input_tokens": 5, "output_tokens": 2, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}, "server_tool_use": {"web_search_requests": 2}, "service_tier": "batch"} | 5 | 2 | 3 | 4 | 3 | 2 | batch |
      | {"cache_creation_input_tokens": 9} | 0 | 0 | 9 | 0 | 0 | 0 |  |

  Scenario: The message of a line is handed on as the API sent it
    Then the message of a result line keeps its bytes, as follows
      | message                                                       | content                          | error |
      | {"usage":  {}, "content": [ {"type": "text", "text": "hi"} ]} | [{"type": "text", "text": "hi"}] |       |
      | []                                                            |                                  | …     |
