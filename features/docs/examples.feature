@long
Feature: What older libraries do in their own examples takes no more lines here
  `examples/from` has the examples of their READMEs and of their repositories, rewritten. The
  number of the original's lines of code is that of its last version, without its imports of dotenv.

  Scenario Outline: <program> runs
    Given a command's folder
    And a reader with a key and a server
    And a command's 100 invoices of one page, asked about in "asks.jsonl"
    When the README's reader tries the example from/<program>
    Then the README's reader has seen <count> lines like "<line>"
    And the API was called <batches> times by POST /v1/messages/batches

    Examples: batchata
      | program                                                                       | count | line                              | batches |
      | batchata_basic.py README.md CONTRIBUTING.md                                   | 2     | (README\|CONTRIBUTING).md Sandbox | 1       |
      | batchata_anthropic.py                                                         | 3     | ^  Key points: Sandbox            | 1       |
      | batchata_structured.py examples/invoices/harbour.pdf examples/invoices/sails.pdf | 8   | ^  \w+: .* \(page 1\)$            | 1       |
      | batchata_files.py                                                             | 6     | ^  - INVOICE #INV-2024-00         | 3       |

    Examples: BatchManager
      | program                   | count | line                         | batches |
      | batch_manager.py inv/*.pdf| 200   | ^  Sandbox .*\$1.00 \(page 1 | 3       |

    Examples: async-batch-llm
      | program                                                               | count | line                    | batches |
      | async_batch_llm_retry.py [[sandbox:errored:overloaded_error:once]]Ann | 1     | ^0: .*, attempt 2$      | 2       |
      | async_batch_llm_middleware.py Knot Sail                               | 4     | ^(Starting\|Success: S) | 1       |
      | async_batch_llm_rate_limit.py Knot Sail                               | 2     | ^[01] Sandbox           | 0       |
      | async_batch_llm_progress.py Knot Sail                                 | 3     | ^[01] Sandbox\|100.0 % | 1       |
      | async_batch_llm_context.py README.md CONTRIBUTING.md                  | 2     | ^File: .*(README\|CONTRIBUTING).md$ | 1 |

  Scenario: Each program is as short as its original, and none is left out
    Then programs have no more lines of code than their originals, as follows
      | program | original | holds |
      | from/batchata_basic.py | 9 | yes |
      | from/batchata_anthropic.py | 41 | yes |
      | from/batchata_structured.py | 41 | yes |
      | from/batchata_files.py | 79 | yes |
      | from/batch_manager.py | 32 | yes |
      | from/async_batch_llm_retry.py | 21 | yes |
      | from/async_batch_llm_middleware.py | 21 | yes |
      | from/async_batch_llm_rate_limit.py | 22 | yes |
      | from/async_batch_llm_progress.py | 9 | yes |
      | from/async_batch_llm_context.py | 28 | yes |
    And the programs of examples/from are those that are run above
