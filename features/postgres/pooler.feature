Feature: A pooler in transaction mode may stand before the server

  PgBouncer gives a connection to another client after each transaction.

  Background:
    Given a PostgreSQL server
    And a command's API

  Scenario: A session that processes of an earlier version have used stores rows
    # A pooler keeps sessions, and temporary tables with them.
    Given the server runs: CREATE FUNCTION use() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN CREATE TEMPORARY TABLE staged_requests (seq bigint); END$$; CREATE EVENT TRIGGER used ON login EXECUTE FUNCTION use()
    And a ledger on that server
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0

  Scenario: Workers and commands share its connections, and one worker takes over from another
    Given the ledger's URL is that of PgBouncer
    And a command's file "prompts.jsonl" of 50 prompts
    And two workers: --health 0
    Then one of them drives, and each says that it works
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    When the worker that drives is killed
    Then the other one drives within 20 seconds
    When a command runs: status --json
    Then the command line exits with 0

  Scenario: Many processes write and read at once
    Given the ledger's URL is that of PgBouncer
    Then 8 processes that write and read 50 times each see no error
