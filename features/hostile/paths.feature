Feature: Paths and neighbours that mean harm reach no other file
  Ledgers, outputs and locks may lie in folders where others write too.

  Scenario: A ledger lies in the file that is named, whatever its name
    Then a ledger that is opened and backed up at a path leads to files, with their modes, as follows
      | path             | files                                               |
      | a?mode=memory.db | a?mode=memory.db 600, a?mode=memory.db.backup 600   |
      | file:a?mode=ro   | file:a?mode=ro 600, file:a?mode=ro.backup 600       |
      | a#b%41.db        | a#b%41.db 600, a#b%41.db.backup 600                 |
      | :memory:         | :memory: 600, :memory:.backup 600                   |

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
    When a command runs: ledger backup copy.db
    Then the command line exits with 0
    And the file of somebody else is as it was
    And the command line has left nothing half-written
    # Results have the mode of the user's umask, all else is the owner's alone.
    And files have the mode as follows
      | files                  | mode |
      | out.jsonl              | 644  |
      | kept/0*.json           | 644  |
      | kept/summary.json      | 644  |
      | kept/raw/results.jsonl | 644  |
      | ledger.db*             | 600  |
      | ledger.db.seat-*       | 600  |
      | state/*                | 600  |
      | state/*.json.lock      | 600  |
      | copy.db                | 600  |

  Scenario: An output that its owner has made private stays private when it is written again
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl --results-dir kept
    And the files "out.jsonl" get the mode 600
    And the files "kept/*.json" get the mode 600
    And a command runs: run actor.yaml asks.jsonl -o out.jsonl --results-dir kept
    Then the command line exits with 0
    And files have the mode as follows
      | files       | mode |
      | out.jsonl   | 600  |
      | kept/*.json | 600  |

  Scenario: The next process removes the files that a killed one has left beside its output, and nothing else
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    # Left by a killed process, being written, foreign, of another output, and a link.
    And a command's file "out/.out.jsonl.0123456789abcdef.partial" of 1 prompts
    And a command's file "out/.out.jsonl.fedcba9876543210.partial" of 1 prompts
    And "out/.out.jsonl.fedcba9876543210.partial" is being written by another process
    And a command's file "out/.out.jsonl.mine.partial" of 1 prompts
    And a command's file "out/.other.jsonl.0123456789abcdef.partial" of 1 prompts
    And a command's link "out/.out.jsonl.00000000000000ff.partial" to "../asks.jsonl"
    When a command runs: run actor.yaml asks.jsonl -o out/out.jsonl
    Then the command line exits with 0
    And the folder "out" has the files .other.jsonl.0123456789abcdef.partial, .out.jsonl.00000000000000ff.partial, .out.jsonl.fedcba9876543210.partial, .out.jsonl.mine.partial, out.jsonl

  Scenario: The next process removes what a killed one has left of the files of a folder
    Given a command's API
    And the next runs get the ids run-1a00000000
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And this program runs
      """
      import os
      os.replace = lambda *_: os._exit(0)
      with cb.ClaudeBatchProvider(**settings) as provider:
          run = provider.open_run("run-1a")
          run.set_results_dir("kept")
          run.wait_sync()
      """
    And a command runs: results RUN --results-dir kept
    Then the command line exits with 0
    And the folder "kept" has the files 000001.json, 000002.json, raw/results.jsonl, summary.json

  Scenario: An output that is mounted as a single file is refused before anything is sent
    Given this process may mount a file
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    And a command's file "more.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o "the out.jsonl"
    Then a command in a shell ends with a code and says
      | command | code | says |
      | unshare -rm sh -c 'mount --bind asks.jsonl "the out.jsonl" && claude-batch run actor.yaml more.jsonl -o "the out.jsonl"' | 2 | the out.jsonl: cannot be written: it is mounted as a single file, and cannot be replaced. Nothing was sent |

  Scenario Outline: A lock file of another user is reported with its owner: <lock>
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the files "<lock>" belong to nobody
    And a command runs: run actor.yaml asks.jsonl --new
    Then the command line exits with 3
    And the command line says
      """
      belongs to user nobody (uid 65534)
      """
    And the command line does not say: This is a bug

    Examples:
      | lock             |
      | ledger.db.seat-1 |
      | state/*.lock     |

  Scenario: A lock file that cannot be opened is reported with its owner
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the files "**" belong to nobody
    And the files "**/*" belong to nobody
    And the files "ledger.db.seat-1" belong to root
    And the user nobody runs a command: status RUN
    Then the command line exits with 2 and says
      """
      belongs to user root (uid 0) and cannot be opened: Permission denied
      """

  Scenario: A folder that cannot be read is reported before anything is paid for
    Given this process may give files away
    And a command's API
    And a command's folder named "drop"
    When the files "drop" belong to nobody
    And the files "drop" get the mode 300
    And the user nobody runs a command: results run-x -o drop/out.jsonl
    Then the command line exits with 2 and says
      """
      drop/out.jsonl: cannot be written: Permission denied. Nothing was sent
      """

  Scenario: An output of another user in a folder such as /tmp is refused before anything is paid for
    Given this process may give files away
    And a command's API
    And a command's file "shared/out.jsonl" of 1 prompts
    When the files "**" belong to nobody
    And the files "shared" belong to root
    And the files "shared" get the mode 1777
    And the user nobody runs a command: results run-x -o shared/out.jsonl
    Then the command line exits with 2 and says
      """
      shared/out.jsonl: cannot be written: Operation not permitted. Nothing was sent
      """

  Scenario: A lock file that an older version left open to others is closed
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the files "ledger.db.seat-1" get the mode 644
    And a command runs: resume RUN
    Then files have the mode as follows
      | files            | mode |
      | ledger.db.seat-1 | 600  |
