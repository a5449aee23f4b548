@every_python
Feature: A signal that comes while a command begins ends it with one line, and nothing was stored
  A module that Python loads at its start sends the signal to its own process, exactly when the
  command is about to import another one.

  Scenario Outline: <signal> at the import of <module> by: <command>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command gets <signal> as it imports <module>: <command>
    Then the command line exits with 3 and says "interrupted"
    And the command line has said one line
    And the command line has sent nothing
    And the command line's ledger has 0 runs

    Examples:
      | signal  | module                          | command                              |
      | SIGINT  | claude_batch.cli.app            | run actor.yaml asks.jsonl            |
      | SIGINT  | click                           | --help                               |
      | SIGINT  | click                           | run actor.yaml asks.jsonl            |
      | SIGTERM | click                           | run actor.yaml asks.jsonl            |
      | SIGHUP  | click                           | run actor.yaml asks.jsonl            |
      | SIGINT  | claude_batch.cli.status_command | status                               |
      | SIGTERM | claude_batch.cli.run_delivery        | submit actor.yaml asks.jsonl         |
      | SIGINT  | pydantic                        | submit actor.yaml asks.jsonl         |
      | SIGINT  | claude_batch.providers.batch    | submit actor.yaml asks.jsonl         |
      | SIGTERM | sqlalchemy                      | submit actor.yaml asks.jsonl         |
      | SIGINT  | httpx2                          | submit actor.yaml asks.jsonl         |
      | SIGTERM | claude_batch.lifecycle.engine   | run actor.yaml asks.jsonl            |
      | SIGTERM | claude_batch.sandbox.server     | run --sandbox actor.yaml asks.jsonl  |

  Scenario Outline: A command that is interrupted at an import names the next command: <command>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command gets SIGINT as it imports claude_batch.providers.batch: <command>
    Then the command line exits with 3 and says "<words>"
    And the command line has said one line

    Examples:
      | command                                            | words |
      | run actor.yaml asks.jsonl                          | interrupted; everything stored before is kept. To go on, repeat the command |
      | run actor.yaml asks.jsonl --new --ledger other.db  | `claude-batch status --ledger other.db` lists the run if it was stored; then continue it with `claude-batch resume --ledger other.db`, otherwise repeat the command |

  Scenario Outline: A command that was started with Ctrl-C ignored goes on: at the import of <module>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command that ignores SIGINT gets SIGINT as it imports <module>: run actor.yaml asks.jsonl
    Then the command line exits with 0 and says "finished: 2 succeeded of 2"

    Examples: The second one is imported for the first call, when an interrupt would park the run
      | module    |
      | click     |
      | httpcore2 |

  Scenario: A signal that comes while a command ends prints no traceback
    Given a command's API
    When a command gets SIGINT at its exit: status
    Then the command line does not say: Traceback
