@every_python
Feature: Messages params are checked and encoded once
  Changes are made to valid params: a model, a max_tokens and a message.

  Scenario: Params that the API would refuse in a batch are refused before anything is sent
    Then changed params are encoded for a batch as follows
      | without    | changes              | error        |
      |            | {"model": null}      | model        |
      | max_tokens |                      | max_tokens   |
      | messages   |                      | messages     |
      |            | {"messages": []}     | messages     |
      |            | {"stream": true}     | stream       |
      |            | {"max_tokens": 0}    | max_tokens   |
      |            | {"speed": "fast"}    | speed        |
      |            | {"store": true}      | store        |
      |            | {"cache_hint": {}}   | cache_hint   |
      |            | {"context_hint": {}} | context_hint |
      |            | {"system": "\ud800"} | JSON         |
    Given a limit of 100 bytes in an encoded request
    Then changed params are encoded for a batch as follows
      | changes                                                      | error                              |
      | {"system": "With these words there are more bytes of them."} | more than the 100 of a whole batch |

  Scenario: Params without an effect in a batch are removed
    Then changed params are encoded for a batch as follows
      | changes                                | added | api version |
      | {"stream": false, "temperature": null} | {}    | 2026-10-21  |

  Scenario: Sampling parameters choose the API version that still takes them
    Then changed params are encoded for a batch as follows
      | changes              | added                | api version |
      | {"temperature": 0.5} | {"temperature": 0.5} | 2023-06-01  |
      | {"top_p": 0.5}       | {"top_p": 0.5}       | 2023-06-01  |
      | {"top_k": 5}         | {"top_k": 5}         | 2023-06-01  |

  Scenario: A model that takes no sampling refuses an explicit one
    Then changed params are encoded for a batch as follows
      | changes                                                   | error                  |
      | {"model": "claude-opus-5-5", "temperature": 0.5}          | does not accept `temperature` |
      | {"model": "claude-sonnet-5-5", "temperature": 0.5}        | does not accept `temperature` |
      | {"model": "claude-haiku-5-5", "temperature": 0.5}         | does not accept `temperature` |
      | {"model": "claude-opus-4-7-20260101", "temperature": 0.5} | does not accept `temperature` |

  Scenario: A default is used if the model takes it, and else dropped with a warning
    Then changed params are encoded for a batch as follows
      | changes                       | defaults                               | added                | api version | warning                     |
      | {"model": "claude-opus-5-5"}  | {"temperature": 0.5, "model": "other"} | {}                   | 2026-10-21  | …the default 0.5 is dropped |
      | {"model": "claude-haiku-4-5"} | {"temperature": 0.5, "model": "other"} | {"temperature": 0.5} | 2023-06-01  |                             |
      | {"temperature": 0.1}          | {"temperature": 0.5}                   | {"temperature": 0.1} | 2023-06-01  |                             |

  Scenario: Betas and the profile become headers, the betas sorted and each once
    Then params with betas and a profile get headers as follows
      | betas in the params | betas beside them | profile   | headers                                                                                                  |
      | ["b", "a"]          | ["c", "a"]        | profile-1 | {"anthropic-version": "2026-10-21", "anthropic-beta": "a,b,c", "anthropic-user-profile-id": "profile-1"} |

  Scenario: A live request is not held to the rules of batches
    Then changed params are encoded for a live call as follows
      | changes           | added             |
      | {"speed": "fast"} | {"speed": "fast"} |

  Scenario: A custom_id tells the request, the ledger and the sending
    Then a custom_id is made as follows
      | request                          | ledger   | sending | custom_id                                      | error |
      | 0123456789abcdef0123456789abcdef | deadbeef | 7       | 0123456789abcdef0123456789abcdef-deadbeef-0007 |       |
      | 0123456789abcdef0123456789abcdef | deadbeef | 9999    | 0123456789abcdef0123456789abcdef-deadbeef-9999 |       |
      | 0123456789abcdef0123456789abcdef | deadbeef | 10000   |                                                | 9999  |
    And a custom_id is read as follows
      | custom_id                                                        | means                                               |
      | 0123456789abcdef0123456789abcdef-deadbeef-0007                   | ["0123456789abcdef0123456789abcdef", "deadbeef", 7] |
      | request-1                                                        | nothing                                             |
      |                                                                  | nothing                                             |
      | xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | nothing                                             |
      | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-deadbeef-000x                   | nothing                                             |
      | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-deadbeef-1                      | nothing                                             |
      | éaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-deadbeef-0007                   | nothing                                             |

  Scenario: A body is what the API documents
    Then a body of these items is written as follows
      | items                                    | requests                                                                               |
      | [["id-1", {"a": 1}], ["id-2", {"b": 2}]] | [{"custom_id": "id-1", "params": {"a": 1}}, {"custom_id": "id-2", "params": {"b": 2}}] |
