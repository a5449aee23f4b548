Feature: A command names what its machine lacks

  Scenario Outline: A command names what its machine lacks, and sends nothing: <what>
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs in a Python that begins with "<code>": run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      <message>
      """
    And the command line has sent nothing

    Examples:
      | what     | code                                                     | message |
      | RETURNING | import sqlite3; sqlite3.sqlite_version_info = (3, 34, 1) | is too old: a ledger in a file needs 3.35 or later. Use a Python that has a newer SQLite |
      | a home for the ledger | import os; os.getuid = lambda: 4242; del os.environ['HOME'], os.environ['CLAUDE_BATCH_LEDGER'] | the default ledger is in a home directory that does not exist. Set HOME, or CLAUDE_BATCH_LEDGER and CLAUDE_BATCH_STATE_DIR |
      | a home for the mark | import os; os.getuid = lambda: 4242; del os.environ['HOME'], os.environ['CLAUDE_BATCH_STATE_DIR'] | the default folder of the ledger's high-water mark is in a home directory that does not exist. Set HOME |
      | a home of that name | import os; os.environ['CLAUDE_BATCH_LEDGER'] = '~nobody4242/ledger.db' | the ledger ~nobody4242/ledger.db is in a home directory that does not exist |
      | a home for the prices | import os; os.environ['CLAUDE_BATCH_PRICES'] = '~nobody4242/prices.yaml' | ~nobody4242/prices.yaml: the prices cannot be read |
      | the module sqlite3 | import sys; sys.modules['_sqlite3'] = None | this Python was built without its module sqlite3 |
      | the module ssl | import sys; sys.modules['_ssl'] = None | this Python was built without its module ssl |
      | the current directory | import os; os.getcwd = lambda: os.stat('') | the current directory was deleted; change to another one |
      | Linux and macOS | import signal, sys; del signal.SIGHUP; sys.platform = 'win32' | error: claude-batch needs Linux or macOS; on Windows, use WSL |

  Scenario: The doctor reports a SQLite that is too old
    Given a command's API
    When a command runs in a Python that begins with "import sqlite3; sqlite3.sqlite_version_info = (3, 34, 1)": doctor
    Then the command line exits with 2
    And the command line prints
      """
      fault    versions: SQLite
      """
