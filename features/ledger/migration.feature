@every_python
Feature: A ledger of an older version is brought to this one, and never harmed

  Scenario Outline: A ledger of version <version> becomes a new one, with all that was in it
    Given a ledger of schema version <version> with a run in it
    When it is opened as a ledger
    Then it has the tables, columns, indexes and keys of a new ledger
    And the run is still in it, and can be sent
    And a copy of version <version> lies beside it as "old.db.v<version>.backup", the owner's alone

    Examples:
      | version |
      | 1       |
      | 2       |
      | 3       |
      | 4       |
      | 5       |
      | 6       |
      | 7       |
      | 8       |

  Scenario: Budgets still count the costs of a ledger of version 3
    Given a ledger of schema version 3 with a run in it
    And budgets have counted of the run's batches:
      | state       | reserved | spent | kept |
      | in_progress | 500      |       |      |
      | unknown     | 400      |       |      |
      | ended       | 300      | 20    |      |
      | collected   | 7        | 90    |      |
      | unresolved  | 60       |       |      |
      | live        | 5        | 30    | 8    |
      | rejected    | 1000     |       |      |
      | packed      |          |       |      |
      | collected   | 70       |       |      |
      | removed     |          | 11    |      |
    When it is opened as a ledger
    Then budgets count of a migrated ledger as follows
      | scope | name      | reserved | spent | doubt | uncounted |
      | actor | tests/one | 1205     | 151   | 75    | [8, 9]    |
      | day   |           | 1205     | 151   | 75    | [8, 9]    |

  Scenario: Budgets still count the costs of one of the first ledgers of version 2
    Given a ledger of schema version 2 with a run in it
    And budgets have counted of the run's batches:
      | state       | reserved | spent | kept |
      | in_progress | 500      |       |      |
      | collected   | 7        | 90    |      |
    And an earlier version left in it
      """
      ALTER TABLE batch_runs DROP COLUMN kept;
      DROP TABLE removed_costs;
      """
    When it is opened as a ledger
    Then it has the tables, columns, indexes and keys of a new ledger
    And budgets count of a migrated ledger as follows
      | scope | name      | reserved | spent | doubt | uncounted |
      | actor | tests/one | 500      | 90    | 7     | []        |

  # If it fails, raise `SCHEMA_VERSION`, add what `add_what_is_missing` does not do to `_CHANGES` and
  # a file of the former tables, then write the new version and digest here.
  Scenario: A change of the tables raises the schema version
    Then a new ledger has schema version 9, and its tables have the digest "b2a13fbf7eab1150"

  Scenario: A pause for batches_per_hour that an earlier version stored can still be lifted
    Given a command's folder
    And a ledger of schema version 8 with a run in it
    And an earlier version left in it
      """
      UPDATE workspaces SET wait_until = strftime('%s', 'now') + 3000,
          wait_reason = 'batches_per_hour allows no more batches in this hour';
      """
    When a command runs: status run-aaaaaaaaaa --ledger old.db
    Then the command line prints
      """
      claude-batch resume run-aaaaaaaaaa --batches-per-hour 0
      """

  Scenario: A conversation does not inherit the turns that a dropped run left under its number
    Given a command's API
    And a ledger of schema version 8 with a run in it
    And an earlier version left in it
      """
      INSERT INTO conversations (request_seq, turns, rejected, consumed) VALUES (1, 0, 0, 0), (2, 9, 0, 0);
      """
    And a command's file "one.jsonl"
      """
      "Search [[sandbox:pause:2]]"
      """
    When a command runs: run actor.yaml one.jsonl -o one.out.jsonl --ledger old.db
    Then the command line exits with 0

  Scenario: The command line says what it did
    Given a command's folder
    And a ledger of schema version 1 with a run in it
    When a command runs: status --ledger old.db
    Then the command line exits with 0 and says
      """
      was migrated from schema version 1 to 9
      old.db.v1.backup is a copy of the old file
      """

  Scenario: A second copy does not take the first one's place
    Given a command's folder
    And a ledger of schema version 1 with a run in it
    And a command's file "old.db.v1.backup"
      """
      a letter of somebody else
      """
    When it is opened as a ledger
    Then a copy of version 1 lies beside it as "old.db.v1-2.backup", the owner's alone
    And the file "old.db.v1.backup" has 1 lines

  Scenario: While another process drives it nothing is changed
    Given a ledger of schema version 1 with a run in it
    And a process that drives "old.db"
    When it is opened as a ledger
    Then the ledger error says "another process drives the ledger"
    And it is still of version 1, and has 0 copies

  Scenario: A process that dies midway leaves it to the next one
    Given a command's folder
    And a ledger of schema version 1 with a run in it
    When a command's process dies at during_migration: status --ledger old.db
    Then it is still of version 1, and has 1 copy
    When it is opened as a ledger
    Then the folder "." has the files old.db, old.db-shm, old.db-wal, old.db.seat-1, old.db.v1.backup
    And it has the tables, columns, indexes and keys of a new ledger
    And the run is still in it, and can be sent

  Scenario: A migration that fails, or was killed while it copied, leaves no copy behind
    Given a command's folder
    And a ledger of schema version 1 with a run in it
    And a command's file ".old.db.v1.backup.0123456789abcdef.copy.partial"
      """
      half a copy
      """
    And an earlier version left in it
      """
      DROP INDEX ix_requests_batch;
      """
    When it is opened as a ledger
    Then the ledger error says "no such index"
    And it is still of version 1, and has 0 copies
    And the folder "." has the files old.db, old.db.seat-1

  Scenario: If no copy can be made, nothing is changed
    Given a ledger of schema version 1 with a run in it
    And a disk without room for a copy
    When it is opened as a ledger
    Then the ledger error says "no copy can be made beside it"
    And the error's fields are
      | field  | value |
      | passes | true  |
    And it is still of version 1, and has 0 copies

  Scenario: A ledger that this user may not write is not copied, and the message names the way to read it
    Given this process may give files away
    And a ledger of schema version 5 with a run in it
    When the files "old.db" get the mode 444
    And the files "**" belong to nobody
    And the user nobody opens it
    Then the command line says
      """
      has to be migrated from schema version 5 to 9, also to be read, but cannot be written
      """
    And it is still of version 5, and has 0 copies

  Scenario Outline: A version that nobody knows is named and left alone: <version>
    Given a ledger of schema version 1 with a run in it that says it is of <version>
    When it is opened as a ledger
    Then the ledger error says "has schema version <version>"

    Examples:
      | version |
      | 0       |
      | 3000    |

  Scenario: Two processes that open it at once migrate it once
    Given a ledger of schema version 1 with a run in it
    When two processes of this version open it at once
    Then it has the tables, columns, indexes and keys of a new ledger
    And a copy of version 1 lies beside it as "old.db.v1.backup", the owner's alone
