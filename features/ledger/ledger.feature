@every_python
Feature: The ledger is opened with care

  Scenario: A new ledger is readable by its owner only, and keeps its incarnation
    Then locations are opened as ledgers as follows
      | location                  | file               | mode of the file | mode of its folder |
      | FOLDER/new/deep/ledger.db | new/deep/ledger.db | 0o600            | 0o700              |
      | sqlite:///FOLDER/url.db   | url.db             | 0o600            | …                  |

  Scenario Outline: A file that cannot be a ledger is named and left as it was: <what>
    Given a file that is <what>
    When it is opened as a ledger
    Then the ledger error says "<words>"
    And the file is, byte for byte, as it was

    Examples:
      | what                       | words                     |
      | no database                | is not a ledger (no SQLite file); name the ledger with --ledger |
      | somebody else's database   | not a ledger of claude-batch; it was not changed |
      | a ledger of another schema | schema version 999        |

  Scenario: An empty file where no ledger ever was is a new one
    Given a file that is empty
    When it is opened as a ledger
    Then there is no error

  Scenario: A location that cannot be opened is named
    Then locations are opened as ledgers as follows
      | location                 | error                            |
      | /proc/none/ledger.db     | cannot be                        |
      | /etc/passwd/ledger.db    | /etc/passwd is not a folder      |
      | nosuchdriver://host/name | a path, or a URL of SQLite or PostgreSQL |
      | postgresql+none://h/n    | a path, or a URL of SQLite or PostgreSQL |
      | sqlite://                | a path, or a URL of SQLite or PostgreSQL |
      | sqlite+none:////proc/x   | be                               |

  Scenario: Two who make the same ledger at once wait for each other
    When a ledger is opened whose new file another one is about to write
    Then there is no error

  Scenario: A write that fails, or comes too late, leaves nothing
    Then writes to a ledger end as follows
      | drives | deposed | migrated | fails | with                | is stored |
      | no     | no      | no       | no    |                     | yes       |
      | yes    | no      | no       | no    |                     | yes       |
      | no     | yes     | no       | no    |                     | yes       |
      | no     | no      | no       | yes   | ZeroDivisionError…  | no        |
      | yes    | no      | no       | yes   | ZeroDivisionError…  | no        |
      | yes    | yes     | no       | no    | Deposed…            | no        |
      | no     | no      | yes      | no    | LedgerError …was migrated to schema version 999 by another process; nothing was written. Restart this process, with the version of claude-batch that did it | no |

  Scenario Outline: A write that is interrupted locks the ledger no longer than it lasts: in its <part>
    Given an open ledger
    Then a write succeeds while the interrupt of another write's <part> is handled

    Examples:
      | part      |
      | statement |
      | commit    |

  Scenario: The watch sees what others commit
    Given an open ledger
    Then the watch is quiet until another connection commits

  Scenario: A credential is known again by its fingerprint, which does not tell it
    Given an open ledger
    Then the fingerprints of two credentials are as follows
      | one    | other  | ledger    | equal |
      | sk-one | sk-one | ledger.db | yes   |
      | sk-one | sk-two | ledger.db | no    |
      | sk-one | sk-one | other.db  | no    |

  Scenario: A rotated key of the same workspace continues its lanes
    Given an open ledger
    When a run is stored under the key "aa"
    And a run is stored under the key "bb"
    And a run is stored under the key "bb" and the version 2023-06-01
    Then in the ledger the workspaces of the runs are [1, 2, 2]
    When the key "aa" turns out to belong to the workspace "wrkspc_1"
    And the key "aa" turns out to belong to the workspace "wrkspc_1"
    And the key "bb" turns out to belong to the workspace "wrkspc_1"
    Then in the ledger the workspaces of the runs are [1, 1, 1]
    And in the ledger the lanes of the requests are [1, 1, 3]
    And in the ledger the workspaces of the lanes are [1, 1]
    # A driver of the emptied row that was stopped meanwhile is deposed with this.
    And in the ledger the epochs of the workspaces are [0, 1]

  Scenario: A key that changes its workspace leaves what was sent where it is
    Given an open ledger
    When a run is stored under the key "aa"
    And the key "aa" turns out to belong to the workspace "wrkspc_1"
    And the key "aa" turns out to belong to the workspace "wrkspc_2"
    And a run is stored under the key "aa"
    Then in the ledger the workspaces of the runs are [1, 2]

  Scenario: Requests that were stored under a refused key go to the first key that works
    Given an open ledger
    When a run is stored under the key "aa"
    And the key "aa" is refused, and the key "bb" works
    Then in the ledger the workspaces of the runs are [2]
    And in the ledger the workspaces of the requests are [2]
    # A driver that took the leader lock with the refused key before is deposed with this.
    And in the ledger the epochs of the workspaces are [1, 0]

  Scenario: A batch that was sent under another key stays with it
    Given an open ledger
    When a run is stored under the key "aa"
    And a batch of the key "aa" is sent without an answer
    And the key "aa" is refused, and the key "bb" works
    Then in the ledger the workspaces of the requests are [1]

  Scenario: Many rows are inserted in the order of the table's columns
    Given an open ledger
    Then many rows are inserted at once as follows
      | rows | columns | stored | error   |
      | 601  | 2       | 601    |         |
      | 1    | 1       |        | binding |

  Scenario: Opening the ledger twice in a process keeps the locks of the first
    Given an open ledger
    When this process opens the ledger and closes it
    And another process opens the ledger and closes it
    Then what the ledger still writes is kept, and others read it
