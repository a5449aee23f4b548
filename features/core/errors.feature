@every_python
Feature: Errors form one tree, and travel between processes
  A framework catches ActorError, and may send errors to another process.

  Scenario: Errors come back from pickling with message and fields, and their tree is the one drawn
    Then the errors of the tree survive pickling as follows
      | error                      | under                    | given                                                                                                 | says                                            |
      | ActorError                 |                          | {}                                                                                                    | m                                               |
      | ActorConfigurationError    | ActorError               | {"source": "a.yaml", "line": 3}                                                                       | a.yaml:3: m                                     |
      | ProviderNotFoundError      | ActorError               | {"name": "x", "known": ["a", "b"]}                                                                    | no provider is called 'x'; registered are: a, b |
      | InvalidRequestError        | ActorError               | {"key": "k"}                                                                                          | request 'k': m                                  |
      | KeyConflictError           | InvalidRequestError      | {"key": "k"}                                                                                          | request 'k': m                                  |
      | PreflightError             | InvalidRequestError      | {"key": "k", "error_type": "t"}                                                                       | request 'k': m                                  |
      | AccountHaltedError         | ActorError               | {"reason": "billing", "error_type": "billing_error"}                                                  | m                                               |
      | BudgetExceededError        | ActorError               | {"scope": "run", "budget_usd": 2, "needed_usd": 0.5, "run_id": "run-1"}                               | m                                               |
      | BatchTimeoutError          | ActorError               | {"run_id": "run-1", "batch_ids": ["b"]}                                                               | m                                               |
      | BatchRequestError          | ActorError               | {"outcome": "errored", "error_type": "t", "error_message": "w", "request_id": "req", "batch_id": "b"} | m                                               |
      | MissingResultError         | ActorError               | {"batch_id": "b"}                                                                                     | m                                               |
      | SubmissionUnknownError     | ActorError               | {}                                                                                                    | m                                               |
      | AnswerError                | ActorError               | {"text": "t", "stop_reason": "refusal", "batch_id": "b"}                                              | m                                               |
      | MalformedAnswerError       | AnswerError              | {"raw": "{", "batch_id": "b", "problem": "p"}                                                         | m                                               |
      | OutputValidationError      | AnswerError              | {"text": "t", "stop_reason": "max_tokens", "batch_id": "b", "problem": "p"}                           | m                                               |
      | AnswerRefusedError         | AnswerError              | {"text": "t", "response": "r"}                                                                        | m                                               |
      | ContextWindowExceededError | AnswerError              | {"text": "t", "response": "r"}                                                                        | m                                               |
      | ConversationStoppedError   | AnswerError              | {"text": "t", "response": "r"}                                                                        | m                                               |
      | TurnLimitError             | ConversationStoppedError | {"text": "t", "response": "r"}                                                                        | m                                               |
      | ToolInterruptedError       | ConversationStoppedError | {"text": "t", "response": "r"}                                                                        | m                                               |
      | TurnsForgottenError        | ConversationStoppedError | {"text": "t", "response": "r"}                                                                        | m                                               |
      | MiddlewareError            | ActorError               | {"middleware": "M", "stage": "after_response", "key": "k"}                                            | request 'k': m                                  |
      | LiveRequestError           | ActorError               | {"status": 529, "error_type": "overloaded_error", "request_id": "req"}                                | m                                               |
      | RunNotFoundError           | ActorError               | {}                                                                                                    | m                                               |
      | LedgerError                | ActorError               | {}                                                                                                    | m                                               |
      | EngineStoppedError         | ActorError               | {}                                                                                                    | m                                               |

  Scenario: An error that a plug-in derives from one of these has the same type in results
    Then an error and one that is derived from it have types in results as follows
      | error                  | given                                                 | type             |
      | AnswerError            | {"text": "t"}                                         | invalid_output   |
      | OutputValidationError  | {"text": "t"}                                         | invalid_output   |
      | TurnLimitError         | {"text": "t"}                                         | max_turns        |
      | AccountHaltedError     | {"reason": "billing", "error_type": "billing_error"}  | billing_error    |
      | AccountHaltedError     | {"reason": "billing"}                                 | halted           |
      | PreflightError         | {"error_type": "invalid_request_error"}               | invalid_request  |
      | KeyConflictError       | {}                                                    | key_conflict     |
      | SubmissionUnknownError | {}                                                    | submission_unknown |
      | MissingResultError     | {}                                                    | missing_result   |

  Scenario: A configuration error names its place
    Then a configuration error reads as follows
      | source | line | message         |
      | a.yaml | 3    | a.yaml:3: wrong |
      | a.yaml |      | a.yaml: wrong   |
      |        | 3    | line 3: wrong   |
      |        |      | wrong           |

  Scenario: An unknown provider's error lists those that are known
    Then the error for an unknown provider reads as follows
      | name | known      | message                    |
      | x    | ["a", "b"] | …'x'…registered are: a, b… |
      | x    | []         | …'x'…registered are: none… |

  Scenario: A refused request's error names the key if it has one
    Then the error of a refused request reads as follows
      | key | message            |
      | k   | request 'k': wrong |
      |     | wrong              |
