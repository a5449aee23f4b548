@slow
Feature: The dashboard shows a fleet: its processes, who drives, and what is at the API
  Each worker is a process of its own. The dashboard is none of them, and drives nothing.

  Scenario: The ledger's page follows workers that are killed, and a run that they leave
    Given a PostgreSQL server
    And a command's API with {"latency": 3600}
    And a ledger on that server
    And a command's file "prompts.jsonl" of 3 prompts
    And two workers: --health 0
    Then one of them drives, and each says that it works
    When a command runs: submit actor.yaml prompts.jsonl
    Given a dashboard of this ledger with {"allow_actions": true}
    Then the dashboard names the 2 workers that live, and the one that drives
    And the dashboard's pages say
      | path    | words                                                               |
      | /       | 3 requests without an outcome…running                               |
      | /ledger | a process drives it pid…on…1 batch 3 requests allowed Processes   |
      | /ledger | Batches State Batches in progress 1                                 |
    When the worker that drives is killed
    Then the other one drives within 15 seconds
    And the dashboard names the 1 worker that lives, and the one that drives
    And the dashboard's pages say
      | path    | words                                                               |
      | /ledger | a process drives it pid…on…1 batch 3 requests allowed Processes   |
    And the password of the server is on no page of the dashboard
    When the worker that drives is killed
    Then the dashboard's pages say
      | path    | words                                      |
      | /ledger | no process 1 batch 3 requests allowed    |
      | /       | is parked No process drives it             |
    And no page of the dashboard says
      | path    | words      |
      | /ledger | Processes  |
    And the dashboard has written nothing to the ledger
