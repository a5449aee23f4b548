Feature: A setting is declared once
  The flags, the environment variables and the pages are derived from one table. Type checkers need
  the keywords in a class of their own, which is compared with the table.

  Scenario: The tables of settings and their keywords are those of the code
    Then the pages agree with the code about
      | subject                                  |
      | the tables of settings                   |
      | the keywords of settings and their types |

  Scenario: a table that was changed by hand is restored
    Then in a copy of the pages the settings' tables that say "27h" for "26h" are rewritten

  Scenario: The flags of a command are those of the table
    Then a command's flags, compared with the table's groups, are as follows
      | command  | groups                                  | missing | unknown |
      | run      | all; run, submit, estimate; run, submit | []      | []      |
      | submit   | all; run, submit, estimate; run, submit | []      | []      |
      | estimate | all; run, submit, estimate              | []      | []      |
      | resume   | all                                     | []      | []      |
      | cancel   | all                                     | []      | []      |
      | retry    | all                                     | []      | []      |
      | advance  | all                                     | []      | []      |
