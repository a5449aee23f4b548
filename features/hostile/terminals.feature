@slow
Feature: Nothing that a file or a server says steers a terminal or a spreadsheet
  Keys, labels, models, answers, errors and headers may hold control sequences and formulas.

  Scenario: On a terminal control characters are written out, in a pipe they stay as they are
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "0\u001b]52;c;ZXZpbA==\u0007", "prompt": "Review \u001b]52;c;ZXZpbA==\u0007.py"}
      {"id": "1\u009b2J\u202etxt.exe\u2069\u007f", "prompt": "Review \u009b2J\u202etxt.exe\u2069\u007f.py"}
      """
    When a command runs on a terminal: run --model claude-haiku-4-5 --label LABEL asks.jsonl
    Then the terminal was not steered, and shows "\u001b]52;c;ZXZpbA==\u0007"
    When a command runs on a terminal: results RUN
    Then the terminal was not steered, and shows "{"id":"0\u001b]52;c;ZXZpbA==\u0007","
    And the terminal was not steered, and shows "{"id":"1\u009b2J\u202etxt.exe\u2069\u007f","
    When a command runs on a terminal: results RUN --format csv
    Then the terminal was not steered, and shows "0\x1b]52;c;ZXZpbA==\x07"
    When a command runs on a terminal: status
    Then the terminal was not steered, and shows "\x1b[31m"
    When a command runs on a terminal: status RUN
    Then the terminal was not steered, and shows "label: \x1b[31mlabel\u2066"
    When a command runs on a terminal: status RUN --json
    Then the terminal was not steered, and shows "\u001b[31mlabel\u2066"
    When a command runs in a pipe: results RUN --format csv
    Then the column "id" of the pipe is ["0\x1b]52;c;ZXZpbA==\x07", "1\x9b2J\u202etxt.exe\u2069\x7f"]

  Scenario: Control characters in click's messages of wrong usage are written out
    Given a command's folder
    When a command runs on a terminal: results LABEL LABEL
    Then the terminal was not steered, and shows "\x1b[31mlabel"
    When a command runs on a terminal: --LABEL
    Then the terminal was not steered, and shows "\x1b[31mlabel"
    When a command runs on a terminal:
    Then the terminal was not steered, and shows "Usage: claude-batch"

  Scenario: Control characters in a server's words are written out
    Given a command's API with {"faults": {"rules": [{"route": "any", "action": {"type": "error", "status": 401, "message": "no such key \u001b]52;c;ZXZpbA==\u0007"}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs on a terminal: run --model claude-haiku-4-5 asks.jsonl --max-wait 5s -o out.jsonl
    Then the terminal was not steered, and shows "\x1b]52;c;ZXZpbA==\x07"
    When a command runs on a terminal: status
    Then the terminal was not steered, and shows "run-"

  Scenario: Warnings for people are written out
    Then a warning for people is printed as follows
      | warning              | line                         | steers |
      | \x1b[31mlabel\u2066 | …it says \x1b[31mlabel\u2066… | no     |
      | a label              | …it says a label…            | no     |

  Scenario: Ids with markup are shown as they are
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    And the ids in the ledger become "x[/bold]:smile:"
    And a command runs: status
    Then the command line exits with 0
    And the command line prints
      """
      x[/bold]:smile:
      """
    When a command runs: status x[/bold]:smile:
    Then the command line exits with 0
    And the command line prints
      """
      x[/bold]:smile: finished
      │ x[/bold]:smile:
      """

  Scenario: A name that is no UTF-8 is printed, on a terminal and in a pipe
    Given a command's folder
    And a command's file "bad\udcff.yaml"
      """
      model: claude-haiku-4-5
      """
    When a command runs on a terminal: actors validate BADNAME
    Then the terminal was not steered, and shows "\udcff.yaml: fine"
    When a command runs in a pipe: actors validate BADNAME
    Then the pipe holds "\udcff.yaml: fine"

  Scenario: In safe CSV no text is a formula, and numbers stay numbers
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      {"id": "=HYPERLINK(\"http://x\",\"y\")", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "+1", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "-1.5", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "@SUM(A1)", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "\t=1", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "\r=1", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "a\n=1", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      """
    When a command runs: submit --model claude-haiku-4-5 asks.jsonl -o out.csv --csv-safe
    And a command runs: resume RUN
    Then the command line exits with 0
    And the column "id" of "out.csv" is ["'=HYPERLINK(\"http://x\",\"y\")", "'+1", "'-1.5", "'@SUM(A1)", "'\t=1", "'\r=1", "a\n=1"]
    And the column "cost_usd" of "out.csv" is ["0.001000000", "0.001000000", "0.001000000", "0.001000000", "0.001000000", "0.001000000", "0.001000000"]
    And the column "input_tokens" of "out.csv" is ["1000", "1000", "1000", "1000", "1000", "1000", "1000"]

  Scenario: Exact CSV stays exact, and each command that writes CSV has the flag
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      {"id": "=1+1", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.csv
    Then the column "id" of "out.csv" is ["=1+1"]
    When a command runs: results RUN -o safe.csv --csv-safe
    Then the column "id" of "safe.csv" is ["'=1+1"]
    When a command runs: export RUN -o also.csv --csv-safe
    Then the column "id" of "also.csv" is ["'=1+1"]
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o third.csv --csv-safe
    Then the column "id" of "third.csv" is ["'=1+1"]
    When a command runs: results RUN --format jsonl --csv-safe
    Then the command line exits with 2 and says
      """
      --csv-safe writes CSV; leave out --format jsonl
      """
