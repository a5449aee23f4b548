Feature: No statement of a run reads a large table from end to end

  Scenario: Every table of requests is read by an index or a row number
    Given an API
    And a batch provider with {"max_requests": 40}
    And the ledger's statements are recorded
    When a run of 100 prompts is submitted
    And the run is waited for
    And the results are read in order
    And 3 prompts are answered by respond_all, as they come
    Then no recorded statement scans requests, params, results, calls or digests

  Scenario: Judging a batch reads no row of its results
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When a run of 100 prompts is submitted
    And the run is waited for
    Then the recorded statements with "results.outcome" and "results.disposition" and "count(*)" read results by the covering ix_results_batch
    And the recorded statements with "results.outcome" and "results.disposition" and "DISTINCT" read results by the covering ix_results_batch

  Scenario: A page of results in the order of completion begins where the last one ended
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When a run of 100 prompts is submitted
    And the run is waited for
    And 3 prompts are answered by respond_all, as they come
    Then the recorded statements with "ORDER BY requests.finished" and "requests.finished = " read requests by ix_requests_finished (run_id=? AND finished=? AND rowid>?)

  Scenario: A pass does not read every run of the ledger to leave out those that are not packed
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When a run of 3 prompts is submitted
    And the run is waited for
    Then the recorded statements with "AS first_due" read runs by ix_runs_unpackable or sqlite_autoindex_runs_1

  Scenario: Sending a batch does not read every run of the ledger to find those that were cancelled
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When a run of 3 prompts is submitted
    And the run is waited for
    Then the recorded statements with "SET state" and "runs.cancelled IS NOT NULL" read runs by sqlite_autoindex_runs_1

  Scenario: A queue of jobs asks every two seconds what there is to do, and reads no request that has ended
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When a run of 3 prompts is submitted
    And the run is waited for
    And a queue of jobs asks what there is to do
    Then no recorded statement scans requests, params, results, calls or digests
    And the recorded statements with "EXISTS" and "'queued'" read requests by ix_requests_queued or ix_requests_held or ix_requests_continuing or ix_requests_batch

  Scenario: What was answered since is looked for in the runs that have something new
    Given an API
    And a batch provider
    And the ledger's statements are recorded
    When prompts 0 to 0 are asked in a run
    And prompts 1 to 1 are asked in a run
    And prompts 2 to 2 are asked in a run
    And prompts 3 to 3 are asked in a run
    Given a batch provider with {"reuse": true}
    When prompts 3 to 4 are asked in a run
    And prompts 4 to 5 are asked in a run
    And prompts 5 to 6 are asked in a run
    And prompts 6 to 7 are asked in a run
    Then the recorded statements with "coalesce(conversations.first_params" ran at most 16 times
    And the API has processed 8 requests, none twice

  Scenario: A run's progress reads the costs of its batches together
    Given an API
    And a batch provider with {"max_requests": 1}
    And the ledger's statements are recorded
    When a run of 100 prompts is submitted
    And the run is waited for
    Then the progress's cost is that of the run's report
    And the recorded statements with "results.cost IS NULL" ran at most 9 times
    And the recorded statements with "sum(results.cost)" and "results.batch_id IN" read results by ix_results_batch

  Scenario: Live runs that a budget holds are asked for together, not one after another
    Given an API
    And the ledger's statements are recorded
    And a batch provider with {"mode": "live", "drive": false, "daily_budget_usd": "0.000001"}
    When a run of 1 prompts is stored without driving
    And a run of 2 prompts is stored without driving
    And a run of 3 prompts is stored without driving
    And a run of 4 prompts is stored without driving
    And a run of 5 prompts is stored without driving
    And the ledger is advanced
    Then the run's state becomes held
    And the recorded statements with "requests.run_id NOT IN (?" ran at most 2 times

  Scenario: A live call under a budget does not read all collected batches of the ledger
    Given an API
    And a batch provider with {"mode": "live", "daily_budget_usd": "1", "actor_budget_usd": "1"}
    And the ledger's statements are recorded
    When a run of 1 prompts is submitted
    And the run is waited for
    Then the recorded statements with "charges.run_id IS NULL" and "batches.day" read batches by ix_batches_day
    And the recorded statements with "charges.run_id IS NULL" and "runs.actor IN" read batch_runs by ix_batch_runs_run

  Scenario: A client's retry reads of all calls only those that equal it
    Given the ledger's statements are recorded
    And a gateway over the sandbox
    When the gateway is called as follows
      | call | prompt | after | headers                          |
      | A    | one    |       |                                  |
      | B    | one    | A     | {"x-stainless-retry-count": "1"} |
      | C    | two    | B     |                                  |
      | D    | two    | C     |                                  |
    Then the calls have ended with
      | call | status | request |
      | A    | 200    | 1       |
      | B    | 200    | 1       |
      | C    | 200    | 2       |
      | D    | 200    | 3       |
    And no recorded statement scans params, results, calls or digests
    And the recorded statements with "calls.digest IN" read calls by ix_calls_digest
