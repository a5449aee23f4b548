Feature: Paths and neighbours that mean harm reach no other file
  Ledgers, outputs and locks may lie in folders where others write too.

  Scenario Outline: A ledger lies in the file that is named, whatever its name: <name>
    Given a command's folder
    When a ledger is opened and backed up at the path "<name>"
    Then the folder has but files called "<name>", all of mode 0600

    Examples:
      | name                |
      | a?mode=memory.db    |
      | file:a?mode=ro      |
      | a#b%41.db           |
      | :memory:            |

  Scenario: A ledger's URL cannot make SQLite open something else
    Given a command's folder
    When a command runs: ledger show --ledger "sqlite:///a.db?uri=true&mode=memory"
    Then the command line exits with 2 and says
      """
      `uri` is not supported in a ledger's URL
      """

  Scenario: No temporary file can be foretold, and no link in its place is followed
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And links at the foreseeable names of temporary files, to a file of somebody else
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --results-dir kept
    Then the command line exits with 0
    And the file of somebody else is as it was
    And the files out.jsonl, kept/000001.json, kept/raw/results.jsonl, kept/summary.json have the mode of the user's umask
    When a command runs: ledger backup copy.db
    Then the command line exits with 0
    And the file of somebody else is as it was
    And no temporary file is left
    And the ledger's files, its locks, its mark and copy.db are readable by their owner alone

  Scenario: What a killed process has left beside its output is removed by the next one, and nothing else
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a temporary file of a killed process, and others beside out.jsonl
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And only the temporary file of the killed process is gone

  Scenario Outline: A lock file of another user is reported with its owner: <which>
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the <which> lock belongs to another user
    And a command runs: run actor.yaml asks.jsonl --new
    Then the command line exits with 3
    And the command line says
      """
      belongs to user nobody (uid 65534)
      """
    And the command line does not say: This is a bug

    Examples:
      | which |
      | seat  |
      | mark  |

  Scenario: A lock file that cannot be opened is reported with its owner
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And everything but the seat lock is given to another user
    And that user runs a command: status RUN
    Then that user is told "belongs to user root (uid 0) and cannot be opened: Permission denied"

  Scenario: A lock file that an older version left open to others is closed
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the seat lock has the mode 0644
    And a command runs: resume RUN
    Then the seat lock has become the owner's alone
