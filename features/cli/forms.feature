Feature: Results are written as people want them

  Scenario: An output that is called .csv is CSV, with a row for each request in input order
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      {"id": "a,b", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200, \"cache_read\": 40, \"cache_5m\": 2}"}
      {"id": "c", "prompt": "says \"é\",\nand more"}
      {"id": "d", "prompt": "[[sandbox:errored:invalid_request_error]]"}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.csv
    Then the command line exits with 1
    And the rows of "out.csv" have
      | id  | ok    | says | input_tokens | output_tokens | cache_read_input_tokens | cache_creation_input_tokens | cost_usd    | error_type            | attempt |
      | a,b | true  | done | 1000         | 200           | 40                      | 2                           | 0.001003250 |                       | 1       |
      | c   | true  | é    | -            | -             | 0                       | 0                           | -           |                       | 1       |
      | d   | false |      |              |               |                         |                             |             | invalid_request_error | 1       |
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.csv --format jsonl
    Then the command line has written to "out.csv"
      | id  | ok  | says                  |
      | a,b | yes | done                  |
      | c   | yes | é                     |
      | d   | no  | invalid_request_error |
    When a command runs: results RUN --format csv
    Then the command line prints
      """
      id,ok,text,stop_reason,model,input_tokens,output_tokens,cache_read_input_tokens,cache_creation_input_tokens,cost_usd,error_type,error_message,batch_id,attempt,via
      "a,b",true,done,end_turn,claude-haiku-4-5-20251001,1000,200,40,2,0.001003250,,,msgbatch_
      """

  Scenario: A later command writes in the form that was asked for
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.txt --format csv --results-dir kept
    And a command runs: resume RUN
    Then the command line exits with 0 and says
      """
      out.txt
      kept
      """
    And the rows of "out.txt" have
      | ok   | says     |
      | true | prompt 1 |
      | true | prompt 2 |
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json

  Scenario: A repeated command changes the forms that it names, and no others
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.txt --format csv --results-dir kept
    And a command runs: submit actor.yaml asks.jsonl
    And the API's clock goes 2 hours on
    And a command runs: resume RUN
    Then the command line exits with 0
    And the rows of "out.txt" have
      | ok   | says     |
      | true | prompt 1 |
      | true | prompt 2 |
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    When a command runs: run actor.yaml asks.jsonl
    Then the command line has written 2 answers in order to "standard output"
    When a command runs: run actor.yaml asks.jsonl -o out.txt
    Then the command line has written 2 answers in order to "out.txt"

  Scenario: The results so far go to a folder, too, and to no other place
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "one"
      "two [[sandbox:canceled]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: submit actor.yaml asks.jsonl --budget 0
    Then the command line exits with 3
    When a command runs: results RUN --results-dir kept
    Then the command line exits with 3 and says
      """
      RUN is not finished
      """
    And the command line prints nothing but errors
    And the folder "kept" has the files 000001.json, raw/results.jsonl

  Scenario: A billed failure has its text, reason and cost in each format
    Given a command's API
    And a command's file "asks.jsonl"
      """
      "one [[sandbox:refused]]"
      "two [[sandbox:window]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the command line's failures in "out.jsonl" have the fields id, ok, error, text, stop_reason, model, usage, batch_id, attempt, via, cost_usd
    When a command runs: results RUN -o out.csv
    Then the rows of "out.csv" have
      | id | ok    | says                            | stop_reason                   | cost_usd    | error_type                    |
      | 1  | false |                                 | refusal                       | 0.000009500 | refusal                       |
      | 2  | false | An answer that fills the window | model_context_window_exceeded | 0.000026500 | model_context_window_exceeded |

  Scenario: A folder gets one file a result, the API's own lines, and at last the summary
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      {"id": "src/../a b.py", "prompt": "{\"input_tokens\": 1000, \"output_tokens\": 200}"}
      {"id": "..", "prompt": "two"}
      {"id": "d", "prompt": "[[sandbox:errored:invalid_request_error]]"}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --results-dir kept --label mine
    Then the command line exits with 1
    And the command line prints nothing but errors
    And the folder "kept" has the files 000001-src-..-a-b.py.json, 000002.json, 000003-d.json, raw/results.jsonl, summary.json
    And the file "kept/000001-src-..-a-b.py.json" of JSON has
      | field    | value            |
      | id       | "src/../a b.py"  |
      | ok       | true             |
      | cost_usd | 0.001            |
    And the file "kept/000002.json" of JSON has
      | field | value |
      | id    | ".."  |
      | ok    | true  |
    And the file "kept/000003-d.json" of JSON has
      | field      | value                   |
      | id         | "d"                     |
      | ok         | false                   |
      | error.type | "invalid_request_error" |
    And the raw lines of the folder "kept" are the API's, byte for byte
    And the file "kept/summary.json" of JSON has
      | field    | value                         |
      | label    | "mine"                        |
      | requests | {"errored": 1, "succeeded": 2} |
      | total    | 3                             |
      | cost     | 1039500 |
    When a command runs: status RUN --json
    Then the command line's status as JSON has
      | field  | value |
      | output | null  |
    When a command runs: resume
    Then the command line exits with 0 and says
      """
      there is no unfinished run
      """

  Scenario: The files of a folder keep the letters of their ids, and are safe names
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "zwei-ä", "prompt": "1"}
      {"id": "ZWEI-A\u0308", "prompt": "2"}
      {"id": "日本/語", "prompt": "3"}
      {"id": "कि", "prompt": "4"}
      {"id": "a\u202eb\u0007c\\d\u2028e", "prompt": "5"}
      {"id": "…", "prompt": "6"}
      {"id": "名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名end", "prompt": "7"}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --results-dir kept
    Then the command line exits with 0
    And the folder "kept" has the files 000001-zwei-ä.json, 000002-ZWEI-Ä.json, 000003-日本-語.json, 000004-कि.json, 000005-a-b-c-d-e.json, 000006.json, 000007-名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名名end.json, raw/results.jsonl, summary.json

  Scenario: An id with a NUL character is refused, because not every ledger can store it
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "a\u0000b", "prompt": "1"}
      """
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      a key must not have a NUL character
      """

  Scenario: A folder without a summary is not complete
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "taken/raw"
      """
      a file where a folder should be
      """
    When a command runs: run actor.yaml asks.jsonl --results-dir taken
    Then the command line exits with 2 and says
      """
      taken: cannot write to this folder: File exists. Nothing was sent
      """
    When a command runs: run actor.yaml asks.jsonl --results-dir kept
    Then the command line exits with 0
    Given a command's file "held/000002.json/inside"
      """
      a file in a folder, where a file should be
      """
    When a command runs: results RUN --results-dir held
    Then the command line exits with 2 and says
      """
      held: cannot write to this folder
      The results are kept
      """
    And the command line has left no "held/summary.json"

  Scenario: Result files of another run stay in a folder, and are reported
    Given a command's API
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl --results-dir kept
    And a command runs: run actor.yaml asks.jsonl --results-dir kept
    Then the command line exits with 0
    And the command line does not say: another run
    Given a command's file "asks.jsonl" of 1 prompts
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --results-dir kept
    Then the command line exits with 0 and says
      """
      kept also has 2 result files of another run, which stay
      """

  Scenario: The results so far can be exported without changing the run
    Given a command's API with {"latency": 3600}
    And a command's environment has CLAUDE_BATCH_MAX_REQUESTS = 1
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command runs: results RUN -o none.jsonl
    Then the command line exits with 3 and says
      """
      there is no result yet; none.jsonl is not written
      RUN is not finished
      """
    When a command runs: export RUN -o early.csv
    Then the command line exits with 3 and says
      """
      wrote early.csv
      RUN is not finished: 2 requests have no result yet
      """
    When the API's clock goes 1 hours on
    And a command runs: advance
    And a command runs: export RUN --format jsonl -o late.csv
    Then the command line exits with 0
    And the command line has written 2 answers in order to "late.csv"
    When a command runs: export RUN
    Then the command line exits with 0
    And the command line has written 2 answers in order to "standard output"
    When a command runs: export run-none
    Then the command line exits with 2

  Scenario: An output line copies what the API sent
    Then output lines hold text, content, usage and context byte for byte, and costs in one form
