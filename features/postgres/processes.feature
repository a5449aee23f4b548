Feature: Processes of several machines know who lives and who drives

  Background:
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server

  Scenario: A leader lock that could not be released in an outage is free again for the same process
    Given process A drives
    When the PostgreSQL server ends
    And process A stops driving
    And the PostgreSQL server starts
    Then process A can drive

  Scenario: Others wait for a process that drives, and take over when its link is cut
    Given a proxy before the PostgreSQL server
    And process A drives, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "arm_window" 0.3
    Then process B cannot drive
    When the proxy is stalled
    Then process B can drive within 5 seconds

  Scenario: A process that is cut off while it copies rows keeps others from writing no longer than its lease
    Given a proxy before the PostgreSQL server
    And process A drives, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    When process A copies rows without an end
    And the proxy is stalled
    Then process B can drive within 5 seconds

  Scenario Outline: A process that begins after another one was cut off while it copied rows can write: <user>
    Given a user of the server who may create no schema, and has the schema "claude_batch"
    And the ledger's URL is postgresql://claude@127.0.0.1:PORT/postgres<options>
    And a proxy before the PostgreSQL server
    And process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    When process A copies rows without an end
    And the proxy is stalled
    And 1.5 seconds pass
    And a command runs: budget --daily 5
    Then the command line exits with 0

    Examples:
      | user                          | options                 |
      | a plain one                   |                         |
      | one that acts as another role | ?options=-crole%3Dother |

  Scenario: A process whose event loop hangs lets another drive
    Given process A drives, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "arm_window" 0.3
    When the event loop of process A hangs for longer than a process may
    Then process B can drive within 5 seconds
    And in the ledger the counts of processes are [2]
    And process B sees process A no more within 5 seconds
    When the event loop of process A goes on
    Then process B sees process A within 5 seconds

  Scenario: A process whose heartbeat fails unexpectedly sends the next one
    Given process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    When the heartbeats of process A fail with a MemoryError for 3 seconds
    Then process B sees process A within 5 seconds

  Scenario: A process that ends keeps its leader lock until its live calls are answered
    Given process B, with "arm_window" 0.3
    And a provider that makes a live call of 4 seconds, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And an event loop hangs if it shows no sign for 1 second
    When the provider is closed during the call
    Then process B could not drive before the call was answered
    And in the ledger the states of the requests are ["succeeded"]

  Scenario Outline: A live call in progress is answered although the claim of another one fails: <fault>
    Given a proxy before the PostgreSQL server
    And a provider that makes a live call of 2 seconds, with "heartbeat" 1
    And a COMMIT that has "SET request_count=(batches.request_count" fails by "<fault>"
    When a run of 1 prompts is submitted
    And the run is waited for
    Then the fault has happened
    And in the ledger the states of the requests are ["succeeded", "succeeded"]

    Examples:
      | fault       |
      | lose_answer |
      | lose_commit |

  Scenario: A process whose connections are all in use is alive again once some are free
    Given process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process B, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    When all connections of process A are in use for 3 seconds
    Then process B sees process A within 5 seconds

  Scenario: A process that goes on after it was taken for dead cannot finish a run that was removed
    Given a proxy before the PostgreSQL server
    And process A, with "heartbeat" 0.3, "arm_window" 0.3 and "take_over" 1
    And process A has stored one request of a run
    And process B, with "arm_window" 0.3
    When the proxy is stalled
    And process B removes what dead processes left, within 5 seconds
    And the proxy is restored
    And process A stores one more request of the run
    Then the error is a LedgerError that says
      """
      another process removed the requests
      """
    And in the ledger the states of the requests are []

  Scenario: A driver that loses its leader lock before the answer to a POST leaves the API's id to the next one
    Given the API lists a batch only after 1h, and answers its POST after 3s
    And a command's file "prompts.jsonl" of 3 prompts
    When another process takes the leader lock during the POST: run actor.yaml prompts.jsonl -o out.jsonl --settling 1s --poll-interval 0.1s
    Then the command line exits with 0
    And the API has processed 3 requests, none twice

  Scenario Outline: A pass whose leader lock another process takes ends with code <code>: <command>
    Given a command's API with {"latency": 30}
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: submit actor.yaml prompts.jsonl --poll-interval 0.1s
    And another process takes the leader lock while the API answers slowly: <command>
    Then the command line exits with <code> and says
      """
      <words>
      """

    Examples:
      | command                        | code | words                                     |
      | advance                        | 0    | another process drives this ledger        |
      | ledger recover --even-if-whole | 3    | another process has taken over the ledger |

  Scenario: Settings that decide what counts as sent must be the same in all processes
    Given process A, with "settling" 1800
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      with other settings: settling 30m there and 15m here; nothing was changed
      """
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --settling 30m
    Then the command line exits with 0
    When process A stops running
    And a command runs: run actor.yaml prompts.jsonl -o out.jsonl --settling 20m
    Then the command line exits with 0

  Scenario: A lease is longer than a POST that it allows
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --arm-window 30s
    Then the command line exits with 2 and says
      """
      a heartbeat of 3s and an arm window of 30s need a take-over of at least 33s, and it is 10s
      """
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --heartbeat 0s
    Then the command line exits with 2 and says
      """
      the time between two heartbeats must be more than 0s
      """
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --arm-window 30s --take-over 1m
    Then the command line exits with 0

  Scenario: Commits wake all processes, and heartbeats none
    Given process A
    And process B
    And process A watches the ledger directly
    When process B sends heartbeats for 3 seconds
    Then process A was woken 0 times
    When process B commits
    Then process A was woken 1 time
    When process A commits
    Then process A was woken 1 time

  Scenario: If notices do not arrive, a process looks every second
    Given process A
    And process A watches the ledger behind a pooler that drops notices
    When process A waits for 3 seconds
    Then process A was woken 2 to 4 times

  Scenario: A process that was killed is dead at once for others on the same machine
    Given another process that drives, and is killed
    And process A
    Then process A can drive
    Given another process that drives, and is stopped
    And process B
    Then process B cannot drive

  Scenario: The ledger's times are its server's, on a machine whose clock is wrong
    Given the clock of this machine is 5 hours ahead
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --deadline 1h
    Then the command line exits with 0
    And the times of runs, requests and batches in the ledger are within 10 minutes of its server's

  Scenario: Ages are by the server's clock, on a machine whose clock is wrong
    Given the clock of this machine is 5 hours ahead
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line says
      """
      RUN is stored: 3 requests
      """
    Given a dashboard of this ledger
    Then the dashboard's pages say
      | path | words                      |
      | /    | finished…3 of 3…s ago      |
      | /    | Spent today $0.0…3 results |
    When a command runs: status
    Then the command line prints
      """
      3 succeeded of 3
      """
    And the command line does not print: 5h
