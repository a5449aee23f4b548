@every_python
Feature: The ledger is opened with care

  Scenario: A new ledger is readable by its owner only, and keeps its incarnation
    When a ledger is opened in a folder that does not exist yet
    Then its file and folder are the owner's alone
    And opening it again gives the same incarnation

  Scenario Outline: What cannot be a ledger is named and left as it was: <what>
    Given a file that is <what>
    When it is opened as a ledger
    Then the ledger error says "<words>"
    And the file is as it was

    Examples:
      | what                       | words                     |
      | no database                | cannot be used            |
      | somebody else's database   | not a ledger of claude-batch |
      | a ledger of another schema | schema version 999        |

  Scenario: A location that cannot be opened is named
    Then locations are opened as ledgers as follows
      | location                 | error                            |
      | /proc/none/ledger.db     | cannot be                        |
      | nosuchdriver://host/name | a path, or a URL of SQLite or PostgreSQL |
      | postgresql+none://h/n    | a path, or a URL of SQLite or PostgreSQL |
      | sqlite://                | a path, or a URL of SQLite or PostgreSQL |
      | sqlite+none:////proc/x   | be                               |

  Scenario: Two who make the same ledger at once wait for each other
    When a ledger is opened whose new file another one is about to write
    Then it has waited, and is a ledger

  Scenario: A ledger can be named by an SQLite URL
    When a ledger is opened by its URL
    Then it has a path beside which other files can lie

  Scenario: A write that fails midway leaves nothing
    Given an open ledger
    When a transaction writes and then fails
    Then nothing of it is in the ledger

  Scenario: A deposed driver writes nothing
    Given an open ledger
    And a driver that has lost its seat to another
    When it writes
    Then it is told that it was deposed, and nothing is written

  Scenario: The watch sees what others commit
    Given an open ledger
    Then the watch is quiet until another connection commits

  Scenario: A credential is known again by its fingerprint, which does not tell it
    Given an open ledger
    Then equal credentials have equal fingerprints, and others have others

  Scenario: A rotated key of the same workspace continues its lanes
    Given an open ledger
    When two keys turn out to belong to one workspace
    Then what waited under the second is in the lanes of the first

  Scenario: A key that changes its workspace leaves what was sent where it is
    Given an open ledger
    When a key turns out to belong to another workspace than before
    Then it has a workspace of its own from now on

  Scenario: What was stored under a refused key goes to the first key that works
    Given an open ledger
    When requests wait under a refused key, and another key turns out to work
    Then they wait in the workspace of the key that works, and the refused driver is fenced

  Scenario: What was sent under another key stays with it
    Given an open ledger
    When a batch was sent under a key that was refused later, and another key turns out to work
    Then it stays where it was

  Scenario: Many rows are inserted in the order of the table's columns
    Given an open ledger
    Then an insert of many rows with other columns is refused

  Scenario: Opening the ledger twice in a process keeps the locks of the first
    Given an open ledger
    When the process opens the ledger once more and closes it
    And another process opens the ledger and closes it
    Then what the ledger still writes is kept, and others read it
