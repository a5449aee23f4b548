Feature: A run over answers as they were recorded
  A server before the sandbox sends the recorded batches, headers and lines, over real HTTP.

  Scenario Outline: Results of 2024, <form>, which are not there at first
    Given a command's API
    And a service that answers as in 2024-10-cassettes, <form>, and finds results after 1 s
    And prompts that are answered as the lines of 2024-10-cassettes
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id              | ok  | says |
      | first-question  | yes | crawl. 🐙 |
      | second-question | yes | The shortest war lasted about forty minutes. |
    And the results were looked for more than once
    And the command line has caused 1 batches of 2 requests

    Examples:
      | form                         |
      | plain in pieces of 1 byte    |
      | plain in pieces of 7 bytes   |
      | gzip in pieces of 1 byte     |
      | gzip in pieces of 5 bytes    |
      | plain in pieces of 5000 bytes |

  Scenario: Answers of 2026, of older and newer models
    Given a command's API
    And a service that answers as in 2026-messages, gzip in pieces of 3 bytes, and finds results after 0 s
    And prompts that are answered as the lines of 2026-messages
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line has written to "out.jsonl"
      | id       | ok  | says |
      | plain    | yes | Hello! 👋 How can I help you today? |
      | tool     | yes |  |
      | thinking | yes | It is irrational. |
      | cut      | yes |  |
      | search   | yes | High tide is at noon. |
      | cached   | yes | ok |

  Scenario: Lines without an answer
    Given a command's API
    And a service that answers as in 2026-line-errors, plain in pieces of 11 bytes, and finds results after 0 s
    And prompts that are answered as the lines of 2026-line-errors
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-attempts 1 --max-wait 20s
    Then the command line exits with 1
    And the command line has written to "out.jsonl"
      | id            | ok | says |
      | bad-model     | no | model: claude-doctor-unknown |
      | no-messages   | no | messages: Field required |
      | stream        | no | is not supported in the Message Batches API |
      | too-long      | no | max_tokens: 9999999 > 64000 |
      | thinking      | no | thinking.type.adaptive |
      | no-download   | no | Unable to download the file |
      | slow-download | no | timed out while trying to download |
      | overloaded    | no | Overloaded |
      | internal      | no | Internal server error |
      | expired       | no | expired |
      | canceled      | no | canceled |

  Scenario: The sandbox sends what was recorded
    Then the sandbox differs in nothing from the newest recorded answers
