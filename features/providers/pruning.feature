Feature: Runs that nobody needs any more leave the ledger
  What is unfinished, undelivered or unknown stays, whatever its age.

  Background:
    Given a command's API
    And a document "long.txt" of 600000 bytes
    And a command's file "asks.jsonl"
      """
      "one"
      "two"
      "three"
      """

  Scenario: a delivered run goes, with its answers and its file
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    Then the command line exits with 0 and says
      """
      long.txt (600,000 bytes) is uploaded once, as file_
      """
    When a command runs: ledger prune --older-than 0s --dry-run
    Then the command line exits with 0 and says
      """
      1 run would be removed; nothing was removed
      """
    And the ledger holds 1 runs, 3 requests, 3 params, 3 results and 1 files
    When a command runs: ledger prune
    Then the command line exits with 0 and says
      """
      removed 0 runs with 0 requests
      """
    When a command runs: ledger prune --older-than 0s
    Then the command line exits with 0 and says
      """
      removed 1 run with 3 requests, 0.6 MB of prompts and answers
      deleted 1 uploaded file at the API
      """
    And the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files
    And in the ledger the sizes of the batches are [3]
    And in the ledger the snapshots of the batches are [null]
    And the API has no files
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    Then the command line exits with 0
    And the API has processed 6 requests in all

  Scenario: A file that another run names stays
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl --new
    And the oldest run is pruned by its id
    Then the ledger holds 1 runs, 3 requests, 3 params, 3 results and 1 files
    When the oldest run is pruned by its id
    Then the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files
    And the API has no files

  Scenario Outline: Runs that must not be removed are named, and stay
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the run is made <what>
    And the oldest run is pruned by its id
    Then the command line exits with 2 and says
      """
      was kept: <says>
      """
    When a command runs: ledger prune --older-than 0s
    Then the command line exits with 0
    And the ledger holds 1 runs, 3 requests, 3 params, 3 results and 0 files

    Examples:
      | what           | says                                            |
      | unfinished     | it is unfinished                                |
      | unwritten      | its output is not written yet; write it with `claude-batch resume` |
      | lost           | it has requests that may or may not have been   |
      | unknown        | a batch of it is unknown                        |
      | unresolved     | a batch of it is unresolved                     |
      | half stored    | it is still being stored                        |
      | single calls   | it contains single calls                           |

  Scenario: a run that is old enough and must stay is named with its reason
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the run is made unresolved
    And a command runs: ledger prune --older-than 0s
    Then the command line exits with 0 and says
      """
      was kept: a batch of it is unresolved
      removed 0 runs
      """

  Scenario: the reason why a run stays names the ledger in its command
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --ledger my.db
    And a command's environment has CLAUDE_BATCH_LEDGER = my.db
    And the run is made unwritten
    And a command's environment has CLAUDE_BATCH_LEDGER = ledger.db
    And a command runs: ledger prune RUN --ledger my.db
    Then the command line exits with 2 and says
      """
      write it with `claude-batch resume --ledger my.db`. Nothing was removed
      """

  Scenario: a run that is not there is no run
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger prune none
    Then the command line exits with 2 and says
      """
      none
      """

  Scenario: A run that is named twice is removed once
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs: ledger prune RUN RUN
    Then the command line exits with 0 and says
      """
      removed 1 run with 3 requests
      """
    And the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files

  Scenario: Two processes that remove the same runs at once share them
    When a command runs: run actor.yaml asks.jsonl -o one.jsonl
    And a command runs: run actor.yaml asks.jsonl -o two.jsonl --new
    And another provider prunes everything at during_pruning while a command runs: ledger prune --older-than 0s
    Then the command line exits with 0 and says
      """
      removed 1 run with 3 requests
      """
    And the command line does not say: kept
    And the other provider has removed 1 run
    And the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files

  Scenario Outline: A command ends with an error if another process removes the run that it reads: <verb>, <count>, <point>
    Given a command's file "asks.jsonl" of <count> prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And another provider prunes everything at <point> while a command runs: <verb>
    Then the command line exits with 2 and says
      """
      error: RUN was removed from the ledger meanwhile, as by `claude-batch ledger prune`; what was read of it before may be incomplete
      """
    And the other provider has removed 1 run

    Examples:
      | verb                      | count | point           |
      | export RUN                | 1500  | during_delivery |
      | export RUN -o again.jsonl | 1500  | during_delivery |
      | results RUN               | 1500  | during_delivery |
      | results RUN               | 3     | during_delivery |
      | results RUN               | 3     | before_delivery |

  Scenario: A process that dies while it removes leaves nothing half
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    And a command's process dies at during_pruning: ledger prune --older-than 0s
    Then the ledger holds 1 runs, 3 requests, 3 params, 3 results and 1 files
    When a command runs: ledger prune --older-than 0s
    Then the ledger comes to hold 0 runs, 0 requests, 0 params, 0 results and 1 files
    When a command runs: ledger prune --older-than 0s
    Then the API has no files

  Scenario: Files whose deletion broke off are deleted the next time
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    And a command's process dies at before_files_deleted: ledger prune --older-than 0s
    Then the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files
    Given the API has the faults
      """
      {"rules": [{"route": "delete_file", "action": {"type": "error", "status": 403}}]}
      """
    When a command runs: ledger prune
    Then the command line exits with 3 and says
      """
      1 uploaded file is still at the API, although no run uses them (403 permission_error
      Repeat the command with the key of their workspace
      """
    When the API has no faults any more
    And somebody deletes the files at the API
    And a command runs: ledger prune
    Then the command line exits with 0 and says
      """
      deleted 1 uploaded file at the API
      """

  Scenario: without a key runs go, and files wait for one
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    Given a command's environment lacks ANTHROPIC_API_KEY
    When a command runs: ledger prune --older-than 0s
    Then the command line exits with 3 and says
      """
      removed 1 run
      1 uploaded file is still at the API, although no run uses them (no API key
      """

  Scenario: files of another key's workspace wait for that key
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    Given the API has the faults
      """
      {"workspaces": {"sk-of-another-workspace": "wrkspc_other"}}
      """
    And a command's environment has ANTHROPIC_API_KEY = sk-of-another-workspace
    When a command runs: ledger prune --older-than 0s
    Then the command line exits with 3 and says
      """
      removed 1 run
      1 uploaded file is still at the API, although no run uses them (they belong to the workspace of another key)
      """
    When a command's environment has ANTHROPIC_API_KEY = sk-ant-marked-for-the-search-0123456789
    And a command runs: ledger prune
    Then the command line exits with 0 and says
      """
      deleted 1 uploaded file at the API
      """

  Scenario: A file that two keys have uploaded, before both were known to be of one workspace, leaves no copy at the API
    When a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    And the API has the faults
      """
      {"workspace_header": false}
      """
    And a command's key is changed to "sk-rotated"
    And a command runs: run actor.yaml asks.jsonl --document long.txt -o again.jsonl --new
    And the API has the faults
      """
      {"workspace_header": true}
      """
    And a command runs: advance
    And a command runs: ledger prune --older-than 0s
    Then the command line exits with 0 and says
      """
      removed 2 runs with 6 requests
      deleted 2 uploaded files at the API
      """
    And the ledger holds 0 runs, 0 requests, 0 params, 0 results and 0 files
    And the API has no files

  Scenario: from Python, a run counts as delivered once that is said
    Given a batch provider
    When 3 requests about "long.txt" are asked, cited
    Then pruning from Python what is older than 0 seconds removes nothing, until it is marked as delivered
