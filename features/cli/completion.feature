Feature: Shells complete commands, flags, files, runs and the ids of requests

  Background:
    Given a command's API
    And a command's file "asks.jsonl"
      """
      {"id": "anna", "prompt": "a"}
      {"id": "anton-2", "prompt": "b"}
      {"id": "$(touch broken)", "prompt": "c"}
      {"id": "a*", "prompt": "d"}
      {"id": "a b", "prompt": "e"}
      {"id": "-h", "prompt": "f"}
      {"id": "a\nplain,x", "prompt": "g"}
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl

  Scenario Outline: <shell> offers the words that fit, and no id that it would change or run
    Then the Tab key offers in <shell>
      | typed                     | offered       |
      | sta                       | status        |
      | status --w                | --watch       |
      | status r                  | RUN           |
      | status x                  |               |
      | show RUN an               | anna, anton-2 |
      | show RUN                  | anna, anton-2 |
      | show run-nosuchrun        |               |
      | completion z              | zsh           |
      | run ask                   | (file)        |
      | run actor.yaml a.jsonl -o | (file)        |
      | results RUN --results-dir | (dir)         |
      | status --ledger no.db run |               |

    Examples:
      | shell |
      | bash  |
      | zsh   |
      | fish  |

  Scenario Outline: The script of <shell> works in <shell>
    Then the script for <shell> completes, if this machine has the shell
      | typed       | words         |
      | show RUN an | anna, anton-2 |
      | canc        | cancel        |
      | run ask     | (files)       |

    Examples:
      | shell |
      | bash  |
      | zsh   |
      | fish  |

  Scenario: Tab neither creates a ledger nor says what is wrong with one
    Given a command's file "ledger.txt"
      """
      no ledger
      """
    Then the Tab key offers in bash
      | typed                          | offered |
      | status --ledger ledger.txt run |         |
      | status --ledger new.db run     |         |
    And the command line has left no "new.db"

  Scenario: Each argument that is a file, a folder, a run or a request in the help is completed as such
    Then what the help calls by a name is completed in every command as follows
      | name      | as       |
      | FILE      | files    |
      | OUT       | files    |
      | PATH\|URL | files    |
      | INPUT     | files    |
      | DIR       | folders  |
      | RUN       | runs     |
      | KEY       | requests |

  Scenario: A shell that is not known is bad usage
    When a command runs: completion tcsh
    Then the command line exits with 2 and says
      """
      'tcsh' is not one of 'bash', 'zsh', 'fish'
      """
