Feature: A setting is declared once
  The flags, the environment variables and the pages are derived from one table. Type checkers need
  the keywords in a class of their own, which is compared with the table.

  Scenario: The tables of settings and their keywords are those of the code
    Then the pages agree with the code about
      | subject                                  |
      | the tables of settings                   |
      | the keywords of settings and their types |

  Scenario: a table that was changed by hand is restored
    Given a copy of the pages whose settings' tables say "27h" for "26h"
    When the settings' tables are written into the copy
    Then the copy's settings' tables are those of the pages

  Scenario Outline: the flags of <command> are those of the table
    Then the settings' flags of "<command>" are the table's for "<groups>"

    Examples:
      | command  | groups                                        |
      | run      | all; run, submit, estimate; run, submit       |
      | submit   | all; run, submit, estimate; run, submit       |
      | estimate | all; run, submit, estimate                    |
      | resume   | all                                           |
      | cancel   | all                                           |
      | retry    | all                                           |
      | advance  | all                                           |
