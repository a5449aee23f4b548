Feature: What processes read again and again does not grow with the runs that are finished

  Scenario Outline: Neither the requests of a finished run nor older runs are read again: <reader>
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server
    And a command's file "prompts.jsonl" of 400 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    And the ledger has 3000 older runs like that one
    And the server gathers statistics
    And <reader> has read the ledger, and reads it after each of 3 commits
    Then its statements read fewer than 1000 runs, requests, params and results

    Examples:
      | reader                 |
      | `status --watch`       |
      | the dashboard          |
      | a process that drives  |

  Scenario Outline: What waits is found without reading the requests that have ended: <reader>
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server
    And a command's file "prompts.jsonl" of 20 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    And the ledger has 3000 older runs like that one, of 20 requests
    And <reader> has read the ledger, and reads it after each of 2 commits
    Then its statements read fewer than 100000 runs, requests, params and results

    Examples:
      | reader                                         |
      | a process that packs batches                   |
      | a process that makes live calls                |
      | a process that makes live calls stored of late |

  Scenario: A finished run that is asked again is seen to be open again
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs: submit actor.yaml prompts.jsonl
    And a command runs: cancel RUN
    And a command runs: resume RUN
    And `status --watch` has read the ledger, and reads it once all requests of the run are queued again
    Then it shows a run of 3 requests that are queued
