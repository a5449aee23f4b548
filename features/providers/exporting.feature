Feature: Results as files, from Python

  Scenario Outline: A folder gets one file a result when all requests have ended: <way>
    Given an API whose model answers as it is told
    And a command's folder
    And a batch provider
    When the prompts are asked as Flat into the folder "kept", by <way>
      | prompt                                    |
      | say: {"number": "12", "total": 3}         |
      | say: not an invoice                       |
      | [[sandbox:errored:invalid_request_error]] |
    Then the folder "kept" has the files 000001.json, 000002.json, 000003.json, raw/results.jsonl, summary.json
    And the file "kept/000001.json" of JSON has
      | field  | value                         |
      | id     | "1"                           |
      | ok     | true                          |
      | parsed | {"number": "12", "total": 3.0} |
    And the file "kept/000002.json" of JSON has
      | field  | value            |
      | text   | "not an invoice" |
      | parsed | nothing          |
    And the file "kept/000003.json" of JSON has
      | field      | value                   |
      | error.type | "invalid_request_error" |
    And the file "kept/summary.json" of JSON has
      | field              | value |
      | total              | 3     |
      | requests.succeeded | 2     |
    And nothing of the ledger is left to deliver

    Examples:
      | way              |
      | submit and wait  |
      | respond_all      |
      | respond_all_sync |
      | a `with` block   |

  Scenario: A file's parsed values are those of its request's own format
    Given an API
    And a command's folder
    And a batch provider
    When requests with these fields are asked with {"results_dir": "kept"}, many at once synchronously
      | prompt | format |
      | a      | Flat   |
      | b      | Picky  |
    Then the results have these fields in any order
      | position | error                    |
      | 0        |                          |
      | 1        | OutputValidationError: … |
    And the file "kept/000001.json" of JSON has
      | field        | value |
      | parsed.total | 1.0   |
    And the file "kept/000002.json" of JSON has
      | field  | value   |
      | ok     | true    |
      | parsed | nothing |

  Scenario: Another process that waits for the run fills the folder
    Given an API that takes 1 seconds for a batch
    And a command's folder
    And a batch provider
    When 2 prompts are submitted for the folder "kept", and their process ends
    Then the command line has left no "kept/raw/results.jsonl"
    And the command line has left no "kept/000001.json"
    When another provider opens the run
    And the run is waited for
    Then the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    And nothing of the ledger is left to deliver

  Scenario: A folder that cannot be made is refused before anything is stored
    Given an API
    And a command's folder
    And a command's file "taken"
      """
      a file where a folder should be
      """
    And a batch provider
    When 2 prompts are submitted for the folder "taken"
    Then the error's fields are
      | field    | value             |
      | strerror | "Not a directory" |
      | filename | "…/taken/raw"     |
    And there is no ledger yet
    Given a live actor
    When 2 prompts are asked for the folder "kept"
    Then the error is a ActorConfigurationError that says
      """
      which keeps no runs; write `batch_processing: true` in its YAML to write a folder of results
      """

  Scenario: The fields of an answer that cites its documents have their citations
    Given an API
    And a command's folder
    And a batch provider
    And the documents
      | file        | content        |
      | receipt.txt | text Receipt 7 |
    When the prompts are asked as Receipt into the folder "kept", by respond_all_sync
      | prompt           | document    |
      | What does it say? | receipt.txt |
    Then the file "kept/000001.json" of JSON has
      | field                                | value       |
      | parsed.paid                          | true        |
      | field_citations.number.0.text        | "Receipt 7" |
      | field_citations.number.0.title       | "receipt.txt" |
    And to_dict has the same, if it is parsed, and of a text without a format nothing parsed

  Scenario: A command's folder has the values of what is JSON
    Given an API whose model answers as it is told
    And a command's folder
    And a command's file "asks.jsonl"
      """
      {"prompt": "say: [1, 2]"}
      {"prompt": "say: 42"}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl --results-dir kept --poll-interval 0.1s
    Then the command line exits with 0
    And the file "kept/000001.json" of JSON has
      | field  | value  |
      | parsed | [1, 2] |
    And the file "kept/000002.json" of JSON has
      | field  | value   |
      | text   | "42"    |
      | parsed | nothing |

  Scenario: A program that adds a folder to a delivered run leaves the output alone until a retry
    Given a command's API
    And the next runs get the ids run-1a00000000
    And a command's file "asks.jsonl"
      """
      "one"
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Given a command's file "out.jsonl"
      """
      changed by its reader
      """
    When this program runs
      """
      with cb.ClaudeBatchProvider(**settings) as provider:
          run = provider.open_run("run-1a")
          run.set_results_dir("kept")
          run.wait_sync()
          print(len(provider.outstanding()))
      """
    Then the program has printed
      """
      0
      """
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    When a command runs: advance
    Then the command line exits with 0 and says
      """
      nothing is due
      """
    When a command runs: retry RUN
    Then the command line exits with 2 and says
      """
      out.jsonl: was changed after run-1a00000000 had written it, and would be replaced
      """
    When this program runs
      """
      with cb.ClaudeBatchProvider(**settings) as provider:
          run = provider.open_run("run-1a")
          run.set_results_dir("kept")
          run.retry_failed_sync()
          run.wait_sync()
          print(len(provider.outstanding()))
      """
    Then the program has printed
      """
      1
      """

  Scenario: A run is exported as the command does it, and stays as it is
    Given an API
    And a command's folder
    And a batch provider with {"max_requests": 2, "max_attempts": 1}
    When a run of these prompts is submitted
      | prompt                                    |
      | one                                       |
      | [[sandbox:errored:invalid_request_error]] |
    And the run is waited for
    And the run is exported to "answers.csv"
    Then 2 results are exported
    And the rows of "answers.csv" have
      | id | ok    | says | error_type            |
      | 1  | true  |      |                       |
      | 2  | false |      | invalid_request_error |
    When the run is exported to "answers.txt" as jsonl, asynchronously
    Then 2 results are exported
    When a command runs: export RUN -o same.jsonl
    Then the files "answers.txt" and "same.jsonl" are the same

  Scenario: A folder that a command names while a program waits is filled, too
    Given a command's API
    And the next runs get the ids run-1a00000000
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And this program runs
      """
      import subprocess, sys
      with cb.ClaudeBatchProvider(**settings) as provider:
          run = provider.open_run("run-1a")
          run.set_results_dir("kept")
          command = "-m claude_batch submit actor.yaml asks.jsonl --results-dir other"
          subprocess.run([sys.executable, *command.split()], check=True, capture_output=True)
          run.wait_sync()
      """
    And a command runs: advance
    Then the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json
    And the folder "other" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json

  Scenario: A retry replaces the run's own output after a program has exported to it
    Given a command's API
    And the next runs get the ids run-1a00000000
    And a command's file "asks.jsonl"
      """
      "prompt 1 [[sandbox:errored:overloaded_error:once]]"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --max-attempts 1
    And this program runs
      """
      with cb.ClaudeBatchProvider(**settings) as provider:
          print(provider.open_run("run-1a").export_sync("out.jsonl"))
      """
    Then the program has printed
      """
      1
      """
    When a command runs: retry RUN
    Then the command line exits with 0
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario: A file system that does not answer in time is not taken for the end of a wait
    Given an API
    And a command's folder
    And a batch provider
    When a run of 1 prompts is submitted
    And the run is waited for
    Then the run's files are written where the file system does not answer in time as follows
      | by           | raises                |
      | export       | …Connection timed out |
      | export_sync  | …Connection timed out |
      | wait         | …Connection timed out |
      | wait_sync    | …Connection timed out |
      | results      | …Connection timed out |
      | results_sync | …Connection timed out |

  Scenario: The results so far can be exported
    Given an API that takes 3600 seconds for a batch
    And a command's folder
    And a batch provider
    When a run of 2 prompts is submitted
    And the run is exported to "answers.jsonl"
    Then 0 results are exported

  Scenario: An export through a link that would replace a file of the ledger is refused
    Given an API that takes 3600 seconds for a batch
    And a command's folder
    And a batch provider
    When a run of 2 prompts is submitted
    Then an export of the run through a link to the ledger's path is refused as follows
      | and then | refused |
      |          | yes     |
      | -wal     | yes     |
      | -copy    | no      |
    And the status shows 2 requests packed
