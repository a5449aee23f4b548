@both_backends
Feature: Submission sends nothing twice, and knows what it does not know

  Scenario: The newest batches are listed before each create
    Given an API
    And a batch provider
    When a run of 3 prompts is submitted
    And the run is waited for
    Then the API's fields are
      | field       | value        |
      | log.2.route | "list"       |
      | log.2.query | "limit=1000" |
      | log.3.route | "create"     |
      | log.4.route | "retrieve"   |

  Scenario: If the list cannot be read, nothing is sent
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "list", "nth": [2], "action": {"type": "error", "status": 400}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then all 2 are answered
    And no batch was posted more than once
    And the API has processed 2 requests, none twice

  Scenario Outline: An answer that may hide a success makes the sending unknown: <action>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": <action>}]}
      """
    And a batch provider with {"max_wait": 2, "poll_interval": 0.05, "settling": 3600}
    When a run of 4 prompts is submitted
    Then a batch of the run becomes unknown
    And the status says "it is unknown whether the API accepted"
    And no batch was posted more than once
    When the run is waited for
    Then the error is a BatchTimeoutError
    And the API has seen 0 batches
    And the status shows 4 requests packed

    Examples:
      | action                                          |
      | {"type": "drop_before"}                         |
      | {"type": "error", "status": 500}                |
      | {"type": "error", "status": 529, "json": false} |

  Scenario: An unknown sending does not stop the others
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_before"}}]}
      """
    And a batch provider with {"max_requests": 2, "max_wait": 3, "settling": 3600}
    When a run of 4 prompts is submitted
    And the run is waited for
    Then the error is a BatchTimeoutError
    And the status shows 2 requests succeeded
    And the API has processed 2 requests, none twice

  Scenario Outline: A definite no is sent again: <action>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": <action>}]}
      """
    And a batch provider
    When 3 prompts are asked at once
    Then all 3 are answered
    And the API has processed 3 requests, none twice
    And the API was called 2 times by POST /v1/messages/batches

    Examples:
      | action                                             |
      | {"type": "error", "status": 429, "retry_after": 1} |
      | {"type": "error", "status": 529}                   |

  Scenario: A connection that breaks during the upload is a definite no
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_before", "after_bytes": 70000}}]}
      """
    And a batch provider
    When a run of large prompts of 20 MB is stored without driving
    And the provider resumes
    And the results are read in order
    Then every result is an answer
    And the API has paid for each once

  Scenario: A batch that is too large is split in two
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "proxy_413"}}]}
      """
    And a batch provider
    When a run of 5 prompts is submitted
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And the API has seen 2 batches
    And the API has processed 5 requests, none twice

  Scenario: A single request that is too large fails, and says so
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "proxy_413"}}]}
      """
    And a batch provider
    When 1 prompts are asked at once
    Then outcome 1 is a BatchRequestError that was errored with request_too_large

  Scenario: A 400 that names a request fails that one, the others go on
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": 400,
        "message": "requests.1.params: something is wrong with it"}}]}
      """
    And a batch provider
    When a run of 3 prompts is submitted
    And the results are read in order
    Then 2 results are answers and 1 are errors
    And result 2 failed with BatchRequestError
    And the error is a BatchRequestError that says
      """
      something is wrong with it
      """

  Scenario Outline: A fault that waiting cannot mend halts sending: <action>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": <action>}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then every call fails with AccountHaltedError
    And the error is a AccountHaltedError that says
      """
      <words>
      """
    And the API was called 1 times by POST /v1/messages/batches

    Examples:
      | action                                                               | words     |
      | {"type": "redirect", "location": "http://127.0.0.1:1/elsewhere"}      | elsewhere |
      | {"type": "error", "status": 404}                                     | not_found |
      | {"type": "error", "status": 429, "details": {"error_code": "enforced_spend_limit_reached"}} | spend_limit |
      | {"type": "error", "status": 400, "details": {"error_code": "organization_on_hold"}} | permission |

  Scenario: If the user profile of a batch cannot be billed, its requests fail, and sending goes on
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "times": 1, "action": {"type": "error", "status": 402,
        "message": "that customer has reached its limit",
        "details": {"error_code": "linked_organization_spend_limit_reached"}}}]}
      """
    And a limit of 2 requests of a refused batch that fail together
    And a batch provider
    When a run of 4 prompts is submitted
    And the results are read in order
    Then 0 results are answers and 4 are errors
    And result 1 failed with BatchRequestError
    And the error is a BatchRequestError that says
      """
      that customer has reached its limit
      """
    And the API was called 1 times by POST /v1/messages/batches
    And in the ledger the numbers of requests that each transaction finished are [2, 2]
    When 2 prompts are asked at once
    Then all 2 are answered

  Scenario: A process that dies while the requests of a batch fail leaves the others to the next one
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 403,
        "details": {"error_code": "user_profile_not_billable"}}}]}
      """
    And a limit of 2 requests of a refused batch that fail together
    When a process with {"poll_interval": 0.05} asks a run of 5 prompts, and dies at between_refused
    Then in the ledger the states of the requests are ["errored", "errored", "packed", "packed", "packed"]
    When this process opens that run
    And the results are read in order
    Then 0 results are answers and 5 are errors
    And in the ledger the numbers of requests that each transaction finished are [2, 2, 1]
    And the API was called 2 times by POST /v1/messages/batches

  Scenario: A 400 that names no request is bisected, and fails the one that it means
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 3, 4], "action":
        {"type": "error", "status": 400, "message": "one of these is not valid"}}]}
      """
    And a batch provider
    When a run of 6 prompts is submitted
    And the results are read in order
    Then 5 results are answers and 1 are errors
    And result 4 failed with BatchRequestError
    And the API has processed 5 requests, none twice

  Scenario: Halves that are refused for different reasons are bisected on
    Given an API
    And the API has the faults
      """
      {"rules": [
        {"route": "create", "nth": [1, 2], "action":
          {"type": "error", "status": 400, "message": "one of these is not valid"}},
        {"route": "create", "nth": [3], "action":
          {"type": "error", "status": 400, "message": "one of these is too long"}}]}
      """
    And a batch provider
    When a run of 4 prompts is submitted
    And the results are read in order
    Then there are 4 results in the order of the prompts
    And the API was called 7 times by POST /v1/messages/batches

  Scenario: A half whose other half was sent on when a halt was lifted is judged alone
    Given an API
    And the API has the faults
      """
      {"rules": [
        {"route": "create", "nth": [1, 2, 5], "action":
          {"type": "error", "status": 400, "message": "one of these is not valid"}},
        {"route": "create", "nth": [3], "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider with {"probe_interval": 0.3}
    When a run of 4 prompts is stored without driving
    Then the status shows 3 requests succeeded
    And the status shows 1 requests errored
    And the API was called 7 times by POST /v1/messages/batches

  Scenario: If both halves are refused alike, it is not the requests' fault
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action":
        {"type": "error", "status": 400, "message": "the body is not valid"}}]}
      """
    And a batch provider
    When 2 prompts are asked at once
    Then every call fails with AccountHaltedError
    And the error is a AccountHaltedError that says
      """
      not valid
      """
    And the API was called 3 times by POST /v1/messages/batches
    When the API has no faults any more
    And the provider resumes
    Then the API has processed 2 requests, none twice

  Scenario: A halted account is probed with one request, and only then with the rest
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1, 2], "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider with {"probe_interval": 0.3}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
      | prompt 1 |
      | prompt 2 |
      | prompt 3 |
      | prompt 4 |
    Then the status shows 5 requests succeeded
    And the API's batches have 1 and 4 requests
    And the API was called 4 times by POST /v1/messages/batches

  Scenario Outline: A probe that is refused because of its request fails only that one, and the next probe waits: <what>
    Given an API
    And the API has the faults
      """
      {"rules": [
        {"route": "create", "nth": [1], "action": {"type": "error", "status": 402}},
        {"route": "create", "action": {<refusal>}}]}
      """
    And a batch provider with {"probe_interval": 1}
    When a run of 6 prompts is stored without driving
    And the provider resumes
    Then the status shows 1 requests errored
    When 0.5 seconds pass
    Then the status shows 5 requests packed
    And the run's state becomes halted
    And the API was called 2 times by POST /v1/messages/batches

    Examples:
      | what         | refusal                                                                                    |
      | its customer | "type": "error", "status": 403, "details": {"error_code": "user_profile_not_billable"}     |
      | its fields   | "type": "error", "status": 400, "message": "requests.0.params: something is wrong with it" |
      | its size     | "type": "proxy_413"                                                                        |

  Scenario: Probes that are refused come at growing intervals
    Then a halt at second 1000 stands as follows
      | interval | refusals | second  | minutes | stands |
      | 5m       | 1        | 1000    | 5       | yes    |
      | 5m       | 2        | 1000    | 10      | yes    |
      | 5m       | 3        | 1000    | 20      | yes    |
      | 5m       | 4        | 1000    | 40      | yes    |
      | 5m       | 5        | 1000    | 60      | yes    |
      | 5m       | 6        | 1000    | 60      | yes    |
      | 5m       | 6        | 4599    | 60      | yes    |
      | 5m       | 6        | 4600    | 60      | no     |
      | 5m       | 6        | -171800 | 60      | no     |
      | 2h       | 3        | 8199    | 120     | yes    |
      | 2d       | 1        | 1000    | 1440    | yes    |

  Scenario: A full queue is waited out
    Given an API with {"queue_limit": 3, "latency": 0.5}
    And a batch provider with {"max_requests": 3}
    When a run of 6 prompts is submitted
    And the results are read in order
    Then there are 6 results in the order of the prompts
    And the API has processed 6 requests, none twice

  Scenario: A halted account goes on in the next process
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    Then the run's state becomes halted
    When the API has no faults any more
    And the provider is closed
    And another provider opens the run
    And the results are read in order
    Then there are 1 results in the order of the prompts

  Scenario: Resuming lifts a halt
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    Then the run's state becomes halted
    When the API has no faults any more
    And the provider resumes
    And the results are read in order
    Then there are 1 results in the order of the prompts

  Scenario Outline: A halt is probed by itself after a while: <status>
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "error", "status": <status>}}]}
      """
    And a batch provider with {"probe_interval": 0.5}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
      | prompt 1 |
    Then the status shows 2 requests succeeded
    And the API's batches have 1 and 1 requests

    Examples:
      | status |
      | 401    |
      | 402    |

  Scenario: The disk that takes longer than the window sends nothing
    Given an API
    And a batch provider with {"arm_window": 0, "max_wait": 1.5}
    When 1 prompts are asked at once
    Then every call fails with BatchTimeoutError
    And the API has processed 0 requests, none twice

  Scenario Outline: A batch that a dead process was sending is sent again, unless its tail may have left: <point>
    Given an API
    When a process with {"poll_interval": 0.05} asks a run of 1 prompts, and dies at <point>
    And this process opens that run
    And the provider resumes
    Then a batch of the run becomes <state>
    And the API has processed <processed> requests, none twice

    Examples:
      | point        | state     | processed |
      | after_intent | collected | 1         |
      | before_armed | collected | 1         |
      | after_armed  | unknown   | 0         |

  Scenario: Requests under other API versions, betas or profiles travel in other batches
    Given an API
    And a batch provider with {"linger": 0.6}
    When requests with these fields are asked, many at once synchronously
      | params                                                                                                                  |
      | {"max_tokens": 10, "messages": [{"role": "user", "content": "plain"}]}                                                  |
      | {"max_tokens": 10, "messages": [{"role": "user", "content": "plain too"}]}                                              |
      | {"max_tokens": 10, "temperature": 0.5, "messages": [{"role": "user", "content": "warm"}]}                               |
      | {"max_tokens": 10, "betas": ["files-api-2025-04-14"], "messages": [{"role": "user", "content": "beta"}]}                |
    Then 4 results are answers and 0 are errors
    And the creates of batches have these fields in any order
      | headers.anthropic-version | headers.anthropic-beta |
      | 2026-10-21                |                        |
      | 2026-10-21                | files-api-2025-04-14   |
      | 2023-06-01                |                        |

  Scenario: An unreachable server is reported, and nothing is lost
    Given a server that nobody runs
    And a batch provider
    When a run of these prompts is submitted
      | prompt |
      | kept   |
    Then there is no error
    And the status shows 1 requests queued

  Scenario: A request that was cancelled after it was packed is not sent
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    And it is packed, and cancelled before it is sent
    And the ledger is advanced
    Then the status shows 1 requests canceled
    And the API has processed 0 requests, none twice

  Scenario: Only the live part of a packed batch is sent
    Given an API
    And a batch provider with {"drive": false}
    When two runs are packed together, and one is cancelled before the batch is sent
    And everything that is due is advanced until the run is finished
    Then the API has processed 1 requests, none twice

  Scenario: The API's id of a batch is written again until it is stored, unless it never can be
    Then writes of what was paid for are tried as follows
      | fault       | tries |
      | full        | 2     |
      | busy        | 2     |
      | unreachable | 2     |
      | version     | 1     |

  Scenario: A request that was posted ten thousand times is not posted again
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt   |
      | prompt 0 |
    And the ledger's requests are changed to
      | sendings |
      | 9999     |
    And the ledger is advanced
    Then the run's state becomes halted
    And the status says "9999 times"
    And the API has processed 0 requests, none twice
    And in the ledger the states of the batches are ["packed"]

  Scenario: A sending that another process has repeated is neither armed nor recorded under its old number
    Given an API
    When this program runs
      """
      from claude_batch.core.settings import default_ledger
      from claude_batch.ledger import submissions
      from claude_batch.ledger.store import Deposed, Ledger, Leader
      from claude_batch.lifecycle.packer import pack_due

      with cb.ClaudeBatchProvider(drive=False, **settings) as provider:
          provider.store(asker, ["one"])
      ledger = Ledger(default_ledger(None))

      def step(work):
          try:
              with ledger.write(leader) as tx:
                  print(work(tx))
          except Deposed:
              print("deposed")

      with ledger.write() as tx:
          leader = Leader(1, submissions.begin_epoch(tx, 1))
      [batch], _ = pack_due(ledger, leader, ledger.now() + 1)

      def intend(tx):
          return submissions.intend(tx, batch, snapshot=[], server_time=1.0, now=1.0)

      def record(remote):
          step(lambda tx: submissions.mark_submitted(tx, batch, remote, now=1.0, next_check=1.0))

      step(intend)
      step(lambda tx: submissions.settle_interrupted(tx, 1, now=1.0))
      step(lambda tx: submissions.mark_armed(tx, batch, 1, 1.0))
      step(intend)
      step(lambda tx: submissions.mark_armed(tx, batch, 1, 1.0))
      step(lambda tx: submissions.mark_armed(tx, batch, 2, 1.0))
      record("msgbatch_2")
      record("msgbatch_2")
      record("msgbatch_1")
      ledger.close()
      """
    Then the program has printed
      """
      1
      []
      deposed
      2
      deposed
      None
      True
      True
      deposed
      """
