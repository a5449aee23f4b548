Feature: What has changed since somebody looked is left as it is now

  Scenario: A key that moves to a workspace that is known already leaves its lanes behind
    Given an open ledger
    Then what a key has stored stays with its workspace when the key turns out to be of another one

  Scenario: A run whose key turns out to be of a known workspace while it is stored is sent by that workspace
    Given an open ledger
    Then a run whose key joins the row of an earlier key while it is stored is wholly in that row

  Scenario: A run that is asked again is not removed, and one that goes is removed in pieces
    Given an open ledger
    And a run of 3 requests that is wholly stored
    Then the run is removed in pieces as follows
      | wholly stored | requests at most | more | requests left | runs left |
      | yes           | 2                | no   | 3             | 1         |
      | no            | 2                | yes  | 1             | 1         |
      | no            | 2                | no   | 0             | 0         |
      | no            | 2                | no   | 0             | 0         |

  Scenario: A conversation that has gone on is neither stopped, nor continued, nor given tools, from an earlier turn
    Given an open ledger
    And a run of 3 requests that is wholly stored
    Then a turn of it that is over changes nothing

  Scenario: The high-water mark never goes back, and is not written in vain
    Given an open ledger
    Then the high-water mark is raised as follows
      | to | posts | written |
      | 0  | 0     | yes     |
      | 0  | 0     | no      |

  Scenario: A query is not taken for an earlier one that is gone
    Given an open ledger
    Then queries are read one after another as follows
      | numbers | found |
      | 100     | 100   |

  Scenario: A ledger that another process has migrated meanwhile is not migrated again
    Given an open ledger
    Then a ledger that is to be migrated from version 1 is left as it is, without a copy beside it

  Scenario: A column that refers to another table is added with its reference
    Given an open ledger
    Then columns that refer to others are added as follows
      | column | refers to  | statement                                                           |
      | batch  | batches.id | ALTER TABLE marks ADD COLUMN batch INTEGER REFERENCES batches (id) |

  Scenario: A page that the disk gives only a part of is damage
    Then errors of SQLite are understood as follows
      | error                   | the ledger is |
      | SQLITE_IOERR_SHORT_READ | damaged       |
      | SQLITE_FULL             | full          |

  Scenario Outline: A database with a table called meta is no ledger for that: <fact>
    Given an open ledger
    When its meta table has lost its <fact>
    And it is opened as a ledger
    Then the ledger error says "not a ledger of claude-batch"

    Examples:
      | fact           |
      | schema_version |
      | salt           |
