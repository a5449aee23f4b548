@long
Feature: What the documents say is so
  Every command, block of code, table and link that a reader meets is tried here.

  Scenario: a reader in a hurry finds both commands on the first screen
    Then the README's first 30 lines hold the command that runs the main job
    And the README's first 30 lines hold the command that runs all tests
    And the README's commands install extras that the package has

  Scenario: the first command reviews every module
    When the README's first command is run
    Then the README's first command has ended with exit code 0
    And the README's first command has reviewed every module, in order

  Scenario: the Python is run as it is written
    Given the README's reader has a key and a server
    When the README's Python blocks are run in order, as one program
    Then the README's Python has printed answers
    And the README's reader has paid for no request twice

  Scenario Outline: the example programs run, and asked again they cost nothing
    Given the README's reader has a key and a server
    When the README's reader runs the example <program> twice
    Then the README's reader has seen <answers> answers each time
    And the README's reader has paid for <paid> requests, none twice

    Examples:
      | program                                                               | answers | paid |
      | review.py src/claude_batch/core/ids.py src/claude_batch/core/usage.py | 2       | 2    |
      | plan.py                                                               | 3       | 6    |

  Scenario Outline: an example program that cannot go on says why in one line
    Given the README's reader has a server, and a key that it refuses
    When the README's reader tries the example <program>
    Then the README's reader is told "sending is halted (credentials)" without a traceback

    Examples:
      | program                                   |
      | review.py src/claude_batch/core/ids.py    |
      | plan.py                                   |

  Scenario: the example of invoices is tried in a sandbox of its own, without a key
    When the README's reader tries the example invoices.py --sandbox
    Then the README's reader has seen the invoices "harbour.pdf, print.pdf, sails.pdf" as objects
    And the README's reader has seen what each of their 6 fields rests on

  Scenario: the PDFs of the example of invoices are those that its program makes
    Then making the invoices anew changes none of them

  Scenario: the example of an evaluation asks and grades, and costs nothing a second time
    Given the README's reader has a key and a server
    When the README's reader runs the example evaluation/evaluate.py twice
    Then the README's reader has seen 6 verdicts and the score each time
    And the README's reader has paid for 12 requests, none twice
    When the README's reader tries the example evaluation/evaluate.py --sandbox
    Then the README's reader has seen 6 verdicts and the score each time

  Scenario: an evaluation whose questions cannot be read says so in one line
    When the README's reader tries the example evaluation/evaluate.py README.md --sandbox
    Then the README's reader is told "the questions cannot be read: 'id'" without a traceback

  Scenario: the example of a researcher with tools is tried in a sandbox of its own, without a key
    When the README's reader tries the example research.py --sandbox
    Then the README's reader has seen 3 questions answered in 3 turns each, with what the almanac says

  Scenario: every actor that is shown can be loaded
    Then the README's YAML blocks are actors
    And the documents' example actors can be loaded, each of them
    And the README's YAML shows every key of batch_processing with its default

  Scenario: the table of settings is the code's
    Then the README's environment variables are those that the code reads
    And the README's settings have the defaults of the code
    And the README's settings are keywords of Python under the same names

  Scenario: the command line is as it is shown
    Then the README's commands are those of claude-batch
    And the README's flags are taken by claude-batch run
    And the README's exit codes are those that claude-batch lists

  Scenario: links lead somewhere
    Then the documents' relative links point to files
    And the documents name no path of anybody's machine

  Scenario: a promise names a scenario that exists
    Then the documents' guarantees name scenarios of the features they link to

  Scenario: the picture of the house is the house
    Then the documents' table of rooms lists every package
    And the documents' tables are those of the ledger
    And the documents' states are those of the code
