Feature: A request more costs three rows, and neither a transaction nor a call of its own

  The work of a run of 3,000 prompts, less that of a run of 1,000, is the work of 2,000 requests. Counts depend on no
  machine, so they find a statement more for each request where measured seconds would not.

  Scenario: A thousand prompts more are a few transactions and API calls, and three rows each
    Given an API
    When the work of a run of 1000 prompts is counted
    And the work of a run of 3000 prompts is counted
    Then a thousand prompts more take at most
      | work               | times |
      | write transactions | 5     |
      | writing statements | 50    |
      | reading statements | 500   |
      | API calls          | 5     |

  Scenario: Resuming a run takes no statement for each answer that it has
    Given an API
    When the work of resuming a run of 510 prompts is counted, of which 10 lack
    And the work of resuming a run of 2510 prompts is counted, of which 10 lack
    Then a thousand prompts more take at most
      | work               | times |
      | reading statements | 50    |
      | writing statements | 5     |

  Scenario: A poll takes one list call and one transaction, however many batches wait
    Given an API that takes 3600 seconds for a batch
    When 3 batches wait at the API, and one pass is counted
    And 20 batches wait at the API, and one pass is counted
    Then none of it grows with their number
    And in the ledger the lists that accepted batches keep are [null]

  Scenario: Small batches that end together are collected by the same statements, however many they are
    Given an API that takes 3600 seconds for a batch
    When 3 batches end at the same time, and the pass that collects them is counted
    And 60 batches end at the same time, and the pass that collects them is counted
    Then none of it grows with their number

  Scenario: More runs in one process take no more statements each
    Given an API that takes 3600 seconds for a batch
    When 4 runs are stored, sent, collected and read in one process, and counted
    And 12 runs are stored, sent, collected and read in one process, and counted
    And 48 runs are stored, sent, collected and read in one process, and counted
    Then each run takes as many statements, however many others there are

  Scenario: The end of a run wakes its own caller, however many others wait
    Given an API
    When 2 runs are waited for, one of them ends, and one look is counted
    And 20 runs are waited for, one of them ends, and one look is counted
    Then none of it grows with their number

  Scenario: A call that joins a long run of an earlier process does not read all its answers
    Given an API
    Then calls that wait in a run of 1300 answers read at most 502 of them

  Scenario: Delivering answers asks one question for all runs whose callers wait
    When callers wait for calls of 5 runs, and one delivery is counted
    And callers wait for calls of 30 runs, and one delivery is counted
    Then none of it grows with their number
