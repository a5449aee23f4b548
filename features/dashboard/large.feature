Feature: A run of a million requests opens as fast as a small one
  What grows with a run is read by an index that holds it, or not at all.

  Scenario: Pages of a run read its failures by its batches, and its requests by their positions
    Given the ledger's statements are recorded
    And a ledger with runs for the dashboard
      | run     | prompts                                                                     |
      | knots   | ["Name a knot.", "[[sandbox:errored:invalid_request_error]] fail"]          |
    And a dashboard of this ledger
    Then the dashboard's responses are
      | path                        | status | words         |
      | /                           | 200    | knots         |
      | /runs/<knots>               | 200    | Failures      |
      | /runs/<knots>?after=0       | 200    | knots-2       |
      | /runs/<knots>?state=errored | 200    | knots-2       |
      | /runs/<knots>?key=knots-1   | 200    | knots-1       |
      | /runs/<knots>/requests/1    | 200    | Name a knot.  |
      | /actors/tests%2Fasker       | 200    | knots         |
      | /costs                      | 200    | tests/asker   |
      | /ledger                     | 200    | Schema        |
    And no recorded statement scans params, results, calls or digests
    And the recorded statements with "coalesce(requests.run_id" read results by ix_results_batch
    And the recorded statements with "requests.attempts, requests.size" read requests by sqlite_autoindex_requests_1
    # Unfinished runs are found by their open requests, which their status counts too.
    And the recorded statements with "count(*) AS count_1" and "requests.finished IS NOT NULL" read requests by ix_requests_finished or ix_requests_queued or ix_requests_held or ix_requests_continuing

  Scenario: Many small batches are added up together
    Given the ledger's statements are recorded
    And a ledger with runs for the dashboard, and {"max_requests": 1}
      | run     | prompts |
      | letters | <many>  |
    And a dashboard of this ledger
    Then the dashboard's pages say
      | path | words             |
      | /    | today…120 results |
    And the dashboard's fields are
      | field                                      | value |
      | reader.snapshot.costs.__len__              | 1     |
      | reader.snapshot.statuses.0.batches.0       |       |
    And the recorded statements with "results.output_tokens >=" ran at most 3 times
    And the recorded statements with "results.output_tokens >=" read results by ix_results_batch
