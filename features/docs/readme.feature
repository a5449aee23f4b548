@long @unmeasured
Feature: The README leads to a first run
  The two commands of the README work as they are printed, and so do the example programs.

  Scenario: a reader in a hurry finds both commands on the first screen
    Then the README's first 30 lines hold the command that runs the main job
    And the README's first 30 lines hold the command that runs all tests
    And the README has at most 200 lines

  Scenario: the first command reviews every module
    When the README's first command is run
    Then the README's first command has ended with exit code 0
    And the README's first command has reviewed every module, in order

  Scenario Outline: the example programs run, and asked again they cost nothing
    Given a reader with a key and a server
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
    Given a reader with a key and a server
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

  Scenario: the example actors can be loaded, each of them
    Then the documents' example actors can be loaded, each of them
