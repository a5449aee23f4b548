Feature: What the service was recorded to send is understood
  The answers lie in features/recorded/. Each file has the date and the kind of its source.

  Scenario: Batches
    Then a recorded batch is read as follows
      | recording name    | step                           | status      | processing | finished | ended |
      | 2025-01-cassettes | create                         | in_progress | 2 | 0 | no |
      | 2025-01-cassettes | batch in progress              | in_progress | 2 | 0 | no |
      | 2025-01-cassettes | batch canceling                | canceling   | 2 | 0 | no |
      | 2025-01-cassettes | list                           | in_progress | 2 | 0 | no |
      | 2026-09-captures  | create                         | in_progress | 5 | 0 | no |
      | 2026-09-captures  | batch in progress              | in_progress | 5 | 0 | no |
      | 2026-09-captures  | batch canceling                | canceling   | 3 | 0 | no |
      | 2026-09-captures  | list                           | in_progress | 5 | 0 | no |
      | 2026-09-captures  | batch ended                    | ended       | 0 | 5 | yes |
      | 2026-09-captures  | batch ended of a canceled batch | ended      | 0 | 3 | yes |

  Scenario: Errors of calls
    Then a recorded error is judged as follows
      | recording name    | step                        | type                  | of a POST   | reading passes | wait |
      | 2024-10-cassettes | results not found           | not_found_error       | MISPLACED   | no  |    |
      | 2025-01-cassettes | early results               | not_found_error       | MISPLACED   | no  |    |
      | 2025-01-cassettes | bad key                     | authentication_error  | ACCOUNT     | no  |    |
      | 2026-09-captures  | early results               | not_found_error       | MISPLACED   | no  |    |
      | 2026-09-captures  | early delete                | invalid_request_error | BAD_REQUEST | no  |    |
      | 2026-09-captures  | unknown batch               | not_found_error       | MISPLACED   | no  |    |
      | 2026-09-captures  | results of an unknown batch | not_found_error       | MISPLACED   | no  |    |
      | 2026-09-captures  | bad key                     | authentication_error  | ACCOUNT     | no  |    |
      | 2026-09-captures  | duplicate ids               | invalid_request_error | BAD_REQUEST | no  |    |
      | 2026-09-captures  | no requests                 | invalid_request_error | BAD_REQUEST | no  |    |
      | 2026-errors       | invalid                     | invalid_request_error | BAD_REQUEST | no  |    |
      | 2026-errors       | no credit                   | invalid_request_error | ACCOUNT     | no  |    |
      | 2026-errors       | too large                   | request_too_large     | TOO_LARGE   | no  |    |
      | 2026-errors       | rate limit                  | rate_limit_error      | WAIT        | yes | 17 |
      | 2026-errors       | overloaded                  | overloaded_error      | WAIT        | yes |    |
      | 2026-errors       | internal                    | api_error             | UNKNOWN     | yes |    |

  Scenario: Answers of models
    Then a recorded answer of a model is read as follows
      | recording name    | custom id       | disposition | model                      | input | output | written | searches |
      | 2024-10-cassettes | first-question  | final       | claude-3-haiku-20240307    | 20    | 33     | 0       | 0 |
      | 2024-10-cassettes | second-question | final       | claude-3-5-sonnet-20240620 | 21    | 12     | 0       | 0 |
      | 2026-09-captures  | ok-1            | final       | claude-haiku-4-5-20251001  | 16    | 5      | 0       | 0 |
      | 2026-messages     | plain           | final       | claude-haiku-4-5-20251001  | 16    | 16     | 0       | 0 |
      | 2026-messages     | tool            | tools       | claude-haiku-4-5-20251001  | 16    | 58     | 0       | 0 |
      | 2026-messages     | thinking        | final       | claude-opus-5-20260723     | 16    | 50     | 0       | 0 |
      | 2026-messages     | cut             | final       | claude-opus-5-20260723     | 16    | 5      | 0       | 0 |
      | 2026-messages     | search          | final       | claude-opus-5-20260723     | 13333 | 203    | 0       | 1 |
      | 2026-messages     | cached          | final       | claude-haiku-4-5-20251001  | 16    | 5      | 17508   | 0 |

  Scenario: Lines without an answer
    Then a recorded line without an answer is read as follows
      | custom id     | outcome  | disposition | type                  | request id |
      | bad-model     | errored  | final       | not_found_error       |  |
      | no-messages   | errored  | final       | invalid_request_error |  |
      | stream        | errored  | final       | invalid_request_error |  |
      | too-long      | errored  | final       | invalid_request_error |  |
      | thinking      | errored  | final       | invalid_request_error |  |
      | no-download   | errored  | final       | invalid_request_error | workerreq_… |
      | slow-download | errored  | retry       | invalid_request_error | workerreq_… |
      | overloaded    | errored  | retry       | overloaded_error      | workerreq_… |
      | internal      | errored  | retry       | api_error             |  |
      | expired       | expired  | retry       |                       |  |
      | canceled      | canceled | final       |                       |  |

  Scenario: No recorded answer is left out
    Then each recorded answer stands in a table of this page
