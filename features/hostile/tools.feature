@slow @long
Feature: A ledger does not choose the code that runs

  Functions that answer a model's calls are named in the ledger, and so by whoever wrote it.

  Scenario: A function that only the ledger names is not imported; its run waits, others go on
    Given an API
    And a ledger whose run calls a function of somebody else's file
    And that ledger has an ordinary run too
    When it is driven until nothing goes on
    Then nothing of that file has run here
    And the ordinary run is answered, and the other one waits between two turns
    Given a command's environment has COLUMNS = 1000
    When a command runs: status RUN
    Then the command line prints
      """
      :tide
      repeat the program or command that made the run
      claude-batch resume RUN --allow-tools-from-ledger
      """
    When a command runs: advance
    Then the command line exits with 3 and says
      """
      RUN: its conversations wait for tools that this process does not have: only the ledger names the tool
      """
    When a command runs: resume RUN
    Then the command line exits with 3 and says
      """
      parked: the conversations of RUN wait for tools that this process does not have: only the ledger names the tool
      """
    And nothing of that file has run here

  Scenario Outline: The user's word allows it
    Given an API
    And a ledger whose run calls a function of somebody else's file
    And a command's environment has <variable> = <value>
    When a command runs: resume RUN <flag>
    Then the command line exits with 0 and says
      """
      RUN finished: 1 succeeded
      """
    And that file has run here once

    Examples:
      | flag                      | variable                             | value   |
      | --allow-tools-from-ledger | CLAUDE_BATCH_ALLOW_TOOLS_FROM_LEDGER | nothing |
      |                           | CLAUDE_BATCH_ALLOW_TOOLS_FROM_LEDGER | true    |

  Scenario Outline: A function that the ledger names is compared before it is imported
    Given an API
    And a ledger whose run calls a function of somebody else's file
    And that file <change>
    When a command runs: resume RUN --allow-tools-from-ledger
    Then the command line exits with 3 and says
      """
      <words>
      """
    And nothing of that file has run here

    Examples:
      | change                                    | words                                      |
      | has been changed since                    | its file has changed since the run was made  |
      | is gone, and another one is on the path   | its file has changed since the run was made  |
      | is gone                                   | there is no such module here               |
      | was stored by a version without digests   | the version that stored the run did not note its file |
      | is named by its path                      | write it as module:function                |

  Scenario: An actor file that names the function is the user's word too
    Given an API
    And a ledger whose run calls a function of somebody else's file
    When its actor file is loaded here, and the run is waited for
    Then the run's answer has "the tide is high"
    And that file has run here once

  Scenario: A function that is offered later is found then
    Given an API
    And a ledger whose run calls a function of somebody else's file
    When it is driven until nothing goes on
    And its actor file is loaded here, and the run is waited for
    Then the run's answer has "the tide is high"

  Scenario Outline: A list of tools that cannot be read stops one run, and no other
    Given an API
    And a ledger whose run calls a function of somebody else's file
    And the ledger says of its tools <what>
    And that ledger has an ordinary run too
    When it is driven until nothing goes on
    Then the ordinary run is answered, and the other one waits between two turns
    When a command runs: status RUN
    Then the command line exits with 0 and says
      """
      """
    When a command runs: resume RUN --allow-tools-from-ledger
    Then the command line exits with 3 and says
      """
      the ledger's list of its tools cannot be read
      """
    And nothing of that file has run here

    Examples:
      | what                      |
      | 'no JSON'                 |
      | '{"name": 5}'             |
      | '[{"function": "os:abort"}]' |
      | '[' * 200000              |
      | 5                         |
      | b'\xff\xfe'               |

  Scenario: Asking and estimating run no tool of another run
    Given an API
    And a ledger whose run calls a function of somebody else's file
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: estimate --model claude-haiku-4-5 asks.jsonl --offline
    And a command runs: submit --model claude-haiku-4-5 asks.jsonl
    And a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then nothing of that file has run here
