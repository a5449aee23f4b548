Feature: A caller whose calls wait for each other is warned once
  Each of them waits for a batch of its own, one after another. That is a loop of awaited calls, or a
  framework that runs a few calls at a time.

  Scenario: The warning names the cause and the remedy, and is not repeated
    Given an API for the batched client
    Then callers who make calls are warned as follows
      | caller                  | calls | at a time | warning                                                 |
      | respond                 | 8     | 1         | 3 batches in a row had at most 1 call each, …gather…    |
      | client                  | 5     | 1         | …at most 1 call each, …docs/how-to/frameworks.md…       |
      | client_sync in threads  | 24    | 6         | …at most 6 calls each, …raise the framework's…          |
      | respond in a gateway    | 5     | 1         | calls come a few at a time, …call the gateway…          |

  Scenario: Few calls, many at a time, turns of a conversation and live calls are no reason
    Given an API for the batched client
    Then callers who make calls are warned as follows
      | caller                | calls | at a time | warning |
      | respond               | 3     | 1         |         |
      | respond               | 165   | 33        |         |
      | client in turns       | 6     | 1         |         |
      | respond live          | 6     | 1         |         |
      | respond after a while | 6     | 1         |         |
