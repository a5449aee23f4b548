Feature: A worker's probes tell an orchestrator when to restart it, and when it cannot send

  Scenario: A worker answers its probes until it ends
    Given a reader with a key and a server
    When a worker is started with probes on a free port
    Then its probes answer as follows
      | path      | status | text                                |
      | /healthz  | 200    | ok                                  |
      | /readyz   | 200    | ok                                  |
      | /         | 404    | the probes are /healthz and /readyz |
    And its probes answer as follows
      | method | path     | status | text |
      | HEAD   | /healthz | 200    |      |
      | HEAD   | /readyz  | 200    |      |
      | HEAD   | /        | 404    |      |
    When callers of its probes reset their connections
    When a ledger has trouble: its account has no credit
    # A restart would not help.
    Then its probes answer as follows
      | path      | status | text                                        |
      | /healthz  | 200    | ok                                          |
      | /readyz   | 503    | sending is halted (billing)…                |
    Then it ends at SIGTERM with 0 and says "the worker has ended"

  Scenario: A worker that has never reached the API is not ready
    Given a reader with a key and a server
    When a worker is started with probes on a free port and --base-url http://127.0.0.1:1
    Then its probes answer as follows
      | path     | at last | status | text                                  |
      | /readyz  | yes     | 503    | http://127.0.0.1:1 cannot be reached… |
      | /healthz | no      | 200    | ok                                    |
    And it ends at SIGTERM with 0 and says "the worker has ended"

  Scenario: A worker says once that runs of another base URL wait, which it cannot send
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --base-url http://localhost:PORT
    And a worker is started with probes on a free port
    Then its probes answer as follows
      | path     | status | text |
      | /readyz  | 200    | ok   |
    And it ends at SIGTERM with 0 and says "1 run waits for another base URL, http://localhost:"

  Scenario: A worker names a run of another base URL that is stored while it works
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a worker is started with probes on a free port
    And a command runs: submit actor.yaml asks.jsonl --base-url http://localhost:PORT
    And the worker has said "1 run waits for another base URL, http://localhost:"
    And a command runs: submit actor.yaml asks.jsonl --base-url http://localhost:PORT --new
    And the worker has said "1 run waits for another base URL" 2 times
    Then it ends at SIGTERM with 0 and says "the worker has ended"

  Scenario: A gateway names a run of another base URL that is stored while it works
    Given a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a gateway is started in the place of a worker
    And a command runs: submit actor.yaml asks.jsonl --base-url http://localhost:PORT
    Then it ends at SIGTERM with 0 and says "1 run waits for another base URL, http://localhost:"

  Scenario: A worker says once that runs of another key's workspace wait
    Given a command's API with {"workspaces": {"sk-other": "wrkspc_other"}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs: submit actor.yaml asks.jsonl --new
    And a command's key is changed to "sk-other"
    And a worker is started with probes on a free port
    And the worker has said "(1 more run there)"
    Then it ends at SIGTERM with 0 and says "waits in the workspace of another key (wrkspc_01SandboxDefault); use that key"

  Scenario: A worker without a ledger is alive, but not ready
    Then probes of such a ledger answer as follows
      | ledger           | healthz | readyz | text                                 |
      | answers          | 200     | 200    | ok                                   |
      | cannot be read   | 200     | 503    | it cannot be read                    |
      | does not answer  | 200     | 503    | the ledger has not answered for 3 s  |

  Scenario: Callers that never end their request hold no threads of the probes
    Given a limit of 2 seconds to send a probe
    And a limit of 5 callers of probes
    Then callers that send a byte now and then hold threads of the probes as follows
      | callers | seconds | threads | healthz |
      | 3       | 0.5     | 3       | 200     |
      | 8       | 0.5     | 5       | 200     |
      | 3       | 3.5     | 0       | 200     |

  Scenario: A port that is taken is refused in one line
    Given a reader with a key and a server
    When a worker is started with probes on the port of the server
    Then it ends with 2 and says "Address already in use"

  Scenario: A worker says that the account has halted sending, and what to run
    Given a command's API with {"faults": {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}}
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --no-preflight --max-wait 1s --ledger other.db
    And a worker is started with probes on a free port and --ledger other.db
    Then its probes answer as follows
      | path      | status | text                         |
      | /readyz   | 503    | sending is halted (billing)… |
    When a command runs: doctor --ledger other.db
    Then the command line prints
      """
      Correct the cause, then run: claude-batch resume --ledger
      """
    And it ends at SIGTERM with 0 and says "Every request stays queued. Correct the cause, then run: claude-batch resume --ledger other.db"

  Scenario: A worker whose ledger's file was removed ends with the reason
    Given a reader with a key and a server
    When a worker is started with probes on a free port
    Then its probes answer as follows
      | path      | status | text                                                      |
      | /readyz   | 200    | ok                                                        |
    When a ledger has trouble: its file is removed
    Then it ends with 2 and says "was removed or replaced by another file"
