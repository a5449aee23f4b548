Feature: `claude-batch ledger copy` moves a file to a PostgreSQL server

  Background:
    Given a PostgreSQL server
    And a command's API
    And a document "long.txt" of 600000 bytes
    And a command's file "first.jsonl"
      """
      "one"
      "two"
      """
    And a command's file "more.jsonl"
      """
      "three"
      """
    And a command's file "tools.yaml"
      """
      name: tests/looker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: true
      tools: [toolbox:population]
      """
    And a command's file "looks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      "Look at Brest [[sandbox:tools]]"
      """
    When a command runs: run actor.yaml first.jsonl --document long.txt -o first-out.jsonl
    And a command runs: budget --daily 5

  Scenario Outline: A run that a process left in the middle is moved, and finished there: <left>
    When a command's process dies at <left>: run tools.yaml looks.jsonl -o out.jsonl
    And the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    Then the command line exits with 0 and says
      """
      moved ledger.db with 4 requests to postgresql://claude:***@
      """
    And the server has each row of "ledger.db"
    When a command runs until it need not be repeated: run tools.yaml looks.jsonl -o out.jsonl --settling 1s
    Then the command line exits with 0
    And the command line has written to "out.jsonl"
      | id | ok  | says           |
      | 1  | yes | The tools gave |
      | 2  | yes | The tools gave |
    And the API has processed 6 requests, none twice
    When a command runs: run actor.yaml first.jsonl --document long.txt -o again.jsonl
    Then the command line exits with 0
    And the API has processed 6 requests, none twice
    And 1 uploads were made
    And no file has the password of the server

    Examples:
      | left                      |
      | after_stored              |
      | after_pack                |
      | after_intent              |
      | after_armed               |
      | after_post_before_record  |
      | after_record              |
      | during_collect_chunk      |
      | between_results_and_state |
      | before_next_turn          |
      | after_next_turn           |

  Scenario: A batch that was being sent is reported as unknown
    When a command's process dies at after_armed: run actor.yaml more.jsonl -o out.jsonl
    And the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    Then the command line exits with 0 and says
      """
      the outcome of 1 batch is unknown; nothing is sent again before it is known
      """

  Scenario Outline: A move that is killed is finished by the same command; never are two ledgers used: <where>
    When the ledger's URL is that of the server
    And a command's process dies at <where>: ledger copy ledger.db
    And a command runs: status --ledger ledger.db
    Then the command line exits with <file>
    When a command runs: status
    Then the command line exits with <server>
    When a command runs: ledger copy ledger.db
    Then the command line exits with 0 and says
      """
      to postgresql://claude:***@
      """
    And the server has each row of "ledger.db"
    When a command runs: status --ledger ledger.db
    Then the command line exits with 2 and says
      """
      the ledger ledger.db was moved to postgresql://claude:***@
      """
    When a command runs: run actor.yaml more.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command runs: ledger copy ledger.db
    Then the command line exits with 0 and says
      """
      ledger.db had been moved to postgresql://claude:***@
      """
    When a command runs: run actor.yaml more.jsonl -o again.jsonl
    Then the API has processed 3 requests, none twice

    Examples:
      | where             | file | server |
      | during_arrival    | 0    | 0      |
      | during_arrival:20 | 0    | 0      |
      | after_arriving    | 0    | 2      |
      | after_moved       | 2    | 2      |
      | after_arrived     | 2    | 0      |

  Scenario: A file that was used after its move was killed is copied again
    When the ledger's URL is that of the server
    And a command's process dies at after_arriving: ledger copy ledger.db
    And a command runs: run actor.yaml more.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      is still arriving from
      """
    When a command runs: run actor.yaml more.jsonl -o out.jsonl --ledger ledger.db
    Then the command line exits with 0
    When a command runs: ledger copy ledger.db
    Then the command line exits with 0 and says
      """
      moved ledger.db with 3 requests
      """
    And the server has each row of "ledger.db"

  Scenario Outline: The answer to a COMMIT is lost
    Given a proxy before the PostgreSQL server
    And a COMMIT that has "<statement>" fails by "lose_answer"
    When a command runs until it need not be repeated: ledger copy ledger.db
    Then the fault has happened
    And the command line exits with 0
    And the server has each row of "ledger.db"
    And the password of the server was never said

    Examples:
      | statement        |
      | setval           |
      | DELETE FROM meta |

  Scenario: A backup of a file that has moved sends nothing
    When a command runs: ledger backup copy.db
    And the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    Then the high-water mark has the API's time
    When a command runs: run actor.yaml more.jsonl -o out.jsonl --ledger copy.db
    Then the command line exits with 4 and says
      """
      it was restored, or copied without its -wal file
      """
    When a command runs: ledger copy copy.db postgresql://127.0.0.1:1/other
    Then the command line exits with 3 and says
      """
      Connection refused
      """
    When a command runs: ledger copy copy.db
    Then the command line exits with 2 and says
      """
      the ledger copy.db is behind its high-water mark and cannot move; nothing was changed. Recover it first, with: `claude-batch ledger recover --ledger copy.db`
      """

  Scenario: A moved ledger that is restored as it was before its first driver sends nothing before it is recovered
    When a command's process dies at after_stored: run actor.yaml more.jsonl -o out.jsonl
    And the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    And the ledger's schema is dumped, and restored after a command runs: resume
    Then the command line exits with 0
    # As in a new container.
    When a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/elsewhere
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      is on another server than before, or on a standby that was promoted, or was restored
      """
    And the API has processed 3 requests, none twice

  Scenario: A backup of a file sends nothing, although its move was killed just when another machine could use the ledger
    When a command runs: ledger backup copy.db
    And the ledger's URL is that of the server
    And a command's process dies at after_arrived: ledger copy ledger.db
    And a command runs: run actor.yaml more.jsonl -o out.jsonl --ledger copy.db
    Then the command line exits with 4 and says
      """
      it was restored, or copied without its -wal file
      """

  Scenario: A move that is repeated while a worker sends does not hold up the worker
    When the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    And this program runs
      """
      import os
      from claude_batch.ledger.high_water import HighWater, count_post
      from claude_batch.ledger.store import Ledger
      from claude_batch.ledger.transfer import move_ledger

      url = os.environ["CLAUDE_BATCH_LEDGER"]
      worker = Ledger(url)
      with worker.write() as tx:
          number = count_post(tx)
      print(move_ledger("ledger.db", url).was_moved)
      print(HighWater(worker).raise_to(number, sending=True))
      worker.close()
      """
    Then the program has printed
      """
      True
      True
      """

  Scenario: A process that drives the file is named, and nothing is moved
    Given a process that drives "ledger.db"
    When the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    Then the command line exits with 3 and says
      """
      another process drives the ledger ledger.db (process PID); end it first: a ledger moves while no process drives it
      """
    And the server has no ledger

  Scenario: A process that has the file open writes nothing while it is copied, and nothing after
    Given the ledger's URL is that of the server
    And a process has "ledger.db" open
    When that process writes before the end of the command: ledger copy ledger.db
    Then the command line exits with 0
    And the server has each row of "ledger.db"
    And what that process writes is refused: was moved to postgresql://claude:***@

  Scenario Outline: A target that cannot take the ledger is refused, and the file stays in use: <trouble>
    Given a ledger has trouble there: <trouble>
    When a command runs: ledger copy ledger.db
    Then the command line exits with <code> and says
      """
      <words>
      """
    And the password of the server was never said
    When a command runs: status --ledger ledger.db
    Then the command line exits with 0

    Examples:
      | trouble                      | code | words                                             |
      | it is in use                 | 2    | has a ledger already; nothing was changed         |
      | it is another program's      | 2    | has tables of another program already             |
      | another file arrives         | 2    | has a ledger that is arriving from                |
      | it is not UTF-8              | 2    | its encoding is LATIN1, and UTF8 is needed        |
      | it is a standby              | 3    | is on a standby, which cannot be written          |
      | nobody listens               | 3    | Connection refused                                |
      | it is a file                 | 2    | a file is moved to a URL such as                  |
      | a key has a NUL              | 2    | has the key 'a\x00b', whose NUL character         |
      | a name is too long           | 2    | …, of 3,000 bytes, too long for an index          |

  Scenario: A file that moved elsewhere is not taken for a ledger that is there
    When the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    And the ledger's URL is postgresql://claude:PASSWORD@127.0.0.1:PORT/postgres?schema=other
    And a command runs: ledger copy ledger.db
    Then the command line exits with 2 and says
      """
      /postgres, and postgresql://claude:***@
      """
    And the password of the server was never said

  Scenario: A file of an older version is migrated first, and its copy stays
    Given a ledger of schema version 5 with a run in it
    When the ledger's URL is that of the server
    And a command runs: ledger copy old.db
    Then the command line exits with 0 and says
      """
      moved old.db with 1 request
      """
    And a copy of version 5 lies beside it as "old.db.v5.backup", the owner's alone
    And the server has each row of "old.db"

  Scenario: doctor says of a file where it moved
    When the ledger's URL is that of the server
    And a command runs: ledger copy ledger.db
    And a command runs: doctor --ledger ledger.db
    Then the command line exits with 2
    And the command line prints
      """
      was moved to postgresql://claude:***@
      """
