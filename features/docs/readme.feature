@long
Feature: The README leads to a first run
  The two commands of the README work as they are printed, and so do the example programs.

  Scenario: a reader in a hurry finds both commands on the first screen
    Then the first lines of the README have a text, as follows
      | lines | text                                     | found |
      | 30    | && .venv/bin/claude-batch run --sandbox  | yes   |
      | 30    | && .venv/bin/nox                         | yes   |
    And pages have at most so many lines, as follows
      | file      | most | holds |
      | README.md | 200  | yes   |

  Scenario: the first command reviews every module
    Then the README's first command reviews every module, in order

  Scenario Outline: the example programs run, and asked again they cost nothing
    Given a reader with a key and a server
    When the README's reader runs the example <program> twice
    Then the README's reader has seen <answers> lines like "^Sandbox answer"
    And the reader has paid for <paid> requests, none twice

    Examples:
      | program                                                                | answers | paid |
      | review.py src/claude_batch/core/ids.py src/claude_batch/core/states.py | 2       | 2    |
      | plan.py                                                                | 3       | 6    |

  Scenario Outline: an example program that cannot go on says why in one line
    Given a reader with a key and a server
    And a command's environment has ANTHROPIC_API_KEY = sk-ant-invalid
    When the README's reader tries the example <program>
    Then the README's reader is told "sending is halted (credentials)" without a traceback

    Examples:
      | program                                   |
      | review.py src/claude_batch/core/ids.py    |
      | plan.py                                   |

  Scenario Outline: an example program that takes arguments prints its usage: <program>
    When the README's reader tries the example <program> --help
    Then the README's reader has seen 1 lines like "^usage: "

    Examples:
      | program                            |
      | review.py                          |
      | invoices.py                        |
      | research.py                        |
      | evaluation/evaluate.py             |
      | from/async_batch_llm_context.py    |
      | from/async_batch_llm_middleware.py |
      | from/async_batch_llm_progress.py   |
      | from/async_batch_llm_rate_limit.py |
      | from/async_batch_llm_retry.py      |
      | from/batch_manager.py              |
      | from/batchata_basic.py             |
      | from/batchata_structured.py        |

  Scenario: the example of invoices is tried in a sandbox of its own, without a key
    When the README's reader tries the example invoices.py --sandbox
    Then the README's reader has seen 3 lines like "^(harbour|print|sails)\.pdf: \d{4}-\d\d-\d\d \d+\.\d\d EUR$"
    And the README's reader has seen 6 lines like "^  \w+: harbour\.pdf, page 1$"
    And the README's reader has seen 6 lines like "^  \w+: print\.pdf, page 1$"
    And the README's reader has seen 6 lines like "^  \w+: sails\.pdf, page 1$"

  Scenario: the PDFs of the example of invoices are those that its program makes
    Then the PDFs of invoices are made of their texts as follows
      | invoice | same |
      | harbour | yes  |
      | print   | yes  |
      | sails   | yes  |

  Scenario: the example of an evaluation asks and grades, and costs nothing a second time
    Given a reader with a key and a server
    When the README's reader runs the example evaluation/evaluate.py twice
    Then the README's reader has seen 6 lines like "^\w+: (right|wrong) \("
    And the README's reader has seen 1 lines like "^\d of 6 right, 0 without a verdict$"
    And the reader has paid for 12 requests, none twice
    When the README's reader tries the example evaluation/evaluate.py --sandbox
    Then the README's reader has seen 6 lines like "^\w+: (right|wrong) \("
    And the README's reader has seen 1 lines like "^\d of 6 right, 0 without a verdict$"

  Scenario: an evaluation whose questions cannot be read says so in one line
    When the README's reader tries the example evaluation/evaluate.py README.md --sandbox
    Then the README's reader is told "the questions cannot be read: 'id'" without a traceback

  Scenario: the example of a researcher with tools is tried in a sandbox of its own, without a key
    When the README's reader tries the example research.py --sandbox
    # Each answer has what a tool has looked up, and the almanac's words.
    Then the README's reader has seen 3 lines like "^\w+ \(3 turns\): .*"depth":.*high water at"

  Scenario: the example actors can be loaded, each of them
    Then the actors of the examples are loaded, and are the same when they are written and read, as follows
      | files                      | actors                                         | same |
      | examples/actors/*.yaml     | examples/extractor, local/planner, local/summary, examples/reviewer | yes |
      | examples/evaluation/*.yaml | examples/judge, examples/student               | yes  |
      | examples/researcher/*.yaml | examples/researcher                            | yes  |
