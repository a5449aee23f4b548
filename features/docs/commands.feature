@long
Feature: The commands on the pages work
  Each command of claude-batch in a block of shell is run, against the sandbox, with files and a run that
  stand for those that the page names.

  Scenario Outline: The commands of a page are run: <page>
    Given a reader with a key and a server
    Then the commands of <page> are understood, and do what they say

    Examples:
      | page                             |
      | README.md                        |
      | docs/how-to/command-line.md      |
      | docs/how-to/documents.md         |
      | docs/how-to/budgets.md           |
      | docs/how-to/limits.md            |
      | docs/how-to/deadlines.md         |
      | docs/how-to/caching.md           |
      | docs/how-to/retries.md           |
      | docs/how-to/unknown-sendings.md  |
      | docs/how-to/export.md            |
      | docs/how-to/observability.md     |
      | docs/how-to/tools.md             |
      | docs/how-to/ledger.md            |
      | docs/how-to/cron.md              |
      | docs/how-to/postgres.md          |
      | docs/how-to/doctor.md            |
      | docs/how-to/sandbox.md           |
      | docs/reference/command-line.md   |
      | docs/reference/prices.md         |

  Scenario: No page is left out
    Then the pages with commands are those that are run above
