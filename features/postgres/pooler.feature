Feature: A pooler in transaction mode may stand before the server

  PgBouncer gives a connection to another client after each transaction.

  Background:
    Given a PostgreSQL server
    And a command's API
    And the ledger's URL is that of PgBouncer

  Scenario: Workers and commands share its connections, and one worker takes over from another
    Given a command's file "prompts.jsonl" of 50 prompts
    And two workers: --health 0
    Then one of them drives, and each says that it works
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    When the worker that drives is killed
    Then the other one drives within 20 seconds
    When a command runs: status --json
    Then the command line exits with 0

  Scenario: Many processes write and read at once
    Then 8 processes that write and read 50 times each see no error
