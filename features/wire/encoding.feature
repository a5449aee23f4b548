@every_python
Feature: Messages params are checked and encoded once

  Scenario Outline: What the API would refuse in a batch is refused before anything is sent: <fault>
    When params with <fault> are encoded
    Then they are refused with "<words>"

    Examples:
      | fault                      | words        |
      | no model                   | model        |
      | no max_tokens              | max_tokens   |
      | no messages                | messages     |
      | empty messages             | messages     |
      | "stream": true             | stream       |
      | "max_tokens": 0            | max_tokens   |
      | "speed": "fast"            | speed        |
      | "store": true              | store        |
      | "cache_hint": {}           | cache_hint   |
      | "context_hint": {}         | context_hint |
      | a value that is no JSON    | JSON         |
      | more bytes than a batch may have | 256,000,000 |

  Scenario: What is harmless is removed
    When params with "stream": false and "temperature": null are encoded
    Then the encoded params have neither
    And the API version is 2026-10-21

  Scenario Outline: Sampling parameters choose the API version that still takes them: <name>
    When params of claude-haiku-4-5 with <name> are encoded
    Then the API version is 2023-06-01

    Examples:
      | name        |
      | temperature |
      | top_p       |
      | top_k       |

  Scenario Outline: A model that takes no sampling refuses an explicit one: <model>
    When params of <model> with temperature are encoded
    Then they are refused with "does not accept `temperature`"

    Examples:
      | model                    |
      | claude-opus-5-5          |
      | claude-sonnet-5-5        |
      | claude-haiku-5-5         |
      | claude-opus-4-7-20260101 |

  Scenario: A default that the model does not take is dropped with a warning
    When params of claude-opus-5-5 with a default temperature are encoded
    Then the encoded params have no temperature
    And a warning says that the default is dropped
    And the API version is 2026-10-21

  Scenario: A default that the model takes is used, unless the caller sets its own
    When params of claude-haiku-4-5 with a default temperature are encoded
    Then the API version is 2023-06-01

  Scenario: Betas become headers, sorted and each once
    When params with betas are encoded
    Then the headers name the betas and the profile, and the params do not

  Scenario: A live request is not held to the rules of batches
    When params with "speed": "fast" are encoded for a live call
    Then the encoded params have it

  Scenario: A custom_id tells the request, the ledger and the sending
    Then a custom_id reads back as it was made
    And custom_ids of others are not taken for ours
    And the 10,000th sending of a request is refused

  Scenario: A body is what the API documents
    Then a body of two requests is the JSON that the API takes
