Feature: An input line reads no file outside the folder that was named

  Background:
    Given a command's API
    And a command's file "given/note.md"
      """
      A note.
      """
    And a command's file "secret.md"
      """
      The secret.
      """
    And a link from "given/link.md" to "secret.md"
    And a link from "given/alias.md" to "given/note.md"

  Scenario Outline: A path that leads outside is refused before anything is sent
    Given a command's file "asks.jsonl"
      """
      {"id": "good", "prompt": "What does it say?", "documents": ["given/note.md"]}
      {"id": "bad", "prompt": "What does it say?", "documents": [<document>]}
      """
    When a command runs: <command> actor.yaml asks.jsonl --documents-root given
    Then the command line exits with 2 and says
      """
      asks.jsonl:2: document <named>
      """
    And the command line has sent nothing

    Examples:
      | command  | document                         | named                                    |
      | run      | "secret.md"                      | secret.md is outside the documents root |
      | submit   | "given/../secret.md"             | given/../secret.md is outside            |
      | run      | {"path": "given/link.md"}        | given/link.md is outside                 |
      | run      | "/etc/hostname"                  | /etc/hostname is outside                 |
      | run      | "given/\u0000x"                  | given/                                   |
      | run      | "given-too/note.md"              | given-too/note.md is outside             |
      | estimate | "secret.md"                      | secret.md is outside                     |

  Scenario: With --skip-invalid only that line is left out; the root may come from the environment
    Given a command's file "asks.jsonl"
      """
      {"id": "good", "prompt": "What does it say?", "documents": ["given/note.md"]}
      {"id": "bad", "prompt": "What does it say?", "documents": ["given/link.md"]}
      {"id": "too", "prompt": "What does it say?", "documents": ["given/alias.md", "https://example.com/a.pdf"]}
      """
    And a command's environment has CLAUDE_BATCH_DOCUMENTS_ROOT = given
    When a command runs: run actor.yaml asks.jsonl --skip-invalid -o out.jsonl
    Then the command line exits with 0 and says
      """
      asks.jsonl:2: document given/link.md is outside the documents root
      skipped 1 of 3 items
      """

  Scenario: A root that is no folder is refused
    When a command runs: run actor.yaml asks.jsonl --documents-root secret.md
    Then the command line exits with 2 and says
      """
      --documents-root
      """
