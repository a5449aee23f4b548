Feature: The file of a ledger is removed or replaced while the dashboard is open
  SQLite keeps the file open that it had opened, so pages would show it, and forms would change it, until the
  dashboard ends.

  Background:
    Given a ledger with runs for the dashboard
      | run   | prompts          |
      | knots | ["Name a knot."] |
    And a dashboard of this ledger with {"allow_actions": true}

  Scenario Outline: Every page says that <trouble>
    When a ledger has trouble: <trouble>
    Then the dashboard's pages say
      | path                     | words                                                         |
      | /                        | was removed or replaced by another file…Overview…knots        |
      | /costs                   | was removed or replaced by another file…Costs                 |
      | /runs/<knots>            | was removed or replaced by another file…finished              |
      | /runs/<knots>/requests/1 | was removed or replaced by another file…Name a knot.          |

    Examples:
      | trouble                        |
      | its file is removed            |
      | its file is replaced by a copy |

  Scenario: The size of a file that was removed is not known
    When a ledger has trouble: its file is removed
    Then the dashboard's responses are
      | path    | status | words                     |
      | /ledger | 503    | The ledger cannot be read |

  Scenario: A form does not change a file that was replaced, where the change would be lost
    When a ledger has trouble: its file is replaced by a copy
    And the form "Set the budget" of / is sent with {"usd": "50"}
    Then the page that follows has the status 503 and says "removed or replaced by another file"
    And the dashboard has written nothing to the ledger
