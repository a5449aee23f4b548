@long @unmeasured
Feature: What older libraries do in their own examples takes no more lines here
  `examples/from` has the examples of their READMEs and of their repositories, rewritten. The
  number of the original's lines of code is that of its last version, without its imports of dotenv.

  Scenario Outline: <program> runs, and is as short as its original
    Given a reader with a key and a server
    And a folder of 100 invoices, one page each
    When the README's reader tries the example from/<program>
    Then the README's reader has seen <count> lines like "<line>"
    And the API was called <batches> times by POST /v1/messages/batches
    And the example from/<program> has at most <original> lines of code

    Examples: batchata
      | program                                                                       | count | line                              | batches | original |
      | batchata_basic.py README.md CONTRIBUTING.md                                   | 2     | (README\|CONTRIBUTING).md Sandbox | 1       | 9        |
      | batchata_anthropic.py                                                         | 3     | ^  Key points: Sandbox            | 1       | 41       |
      | batchata_structured.py examples/invoices/harbour.pdf examples/invoices/sails.pdf | 8   | ^  \w+: .* \(page 1\)$            | 1       | 41       |
      | batchata_files.py                                                             | 6     | ^  - INVOICE #INV-2024-00         | 3       | 79       |

    Examples: BatchManager
      | program                   | count | line                         | batches | original |
      | batch_manager.py INVOICES | 200   | ^  Sandbox .*\$1.00 \(page 1 | 3       | 32       |

    Examples: async-batch-llm
      | program                                                               | count | line                    | batches | original |
      | async_batch_llm_retry.py [[sandbox:errored:overloaded_error:once]]Ann | 1     | ^0: .*, attempt 2$      | 2       | 21       |
      | async_batch_llm_middleware.py Knot Sail                               | 4     | ^(Starting\|Success: S) | 1       | 21       |
      | async_batch_llm_rate_limit.py Knot Sail                               | 2     | ^[01] Sandbox           | 0       | 22       |
      | async_batch_llm_progress.py Knot Sail                                 | 3     | ^[01] Sandbox\|100.0 % | 1       | 9        |
      | async_batch_llm_context.py README.md CONTRIBUTING.md                  | 2     | ^File: .*(README\|CONTRIBUTING).md$ | 1 | 28 |

  Scenario: no example is left out
    Then the programs of examples/from are those that are run above
