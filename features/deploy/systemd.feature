Feature: The units of deploy/systemd run the commands as the pages say
  No systemd runs them here: the commands are started with the environment that it would give them.

  Scenario: systemd finds no fault in them, and they may do little
    Then systemd-analyze finds no fault in the units, and an exposure of at most 2.0

  Scenario: Their commands and variables exist, none of them has a secret, and they may do little
    Then the services, after a change, have problems as follows
      | service | this                  | becomes               | problem                                          |
      | worker  |                       |                       |                                                  |
      | gateway |                       |                       |                                                  |
      | nightly |                       |                       |                                                  |
      | resume  |                       |                       |                                                  |
      | worker  | /bin/claude-batch     | /bin/python           | it starts …/bin/python                           |
      | worker  | claude-batch worker   | claude-batch workers  | …there is no command 'workers'…                  |
      | gateway | --allow-host          | --allow-hosts         | …No such option…--allow-hosts…                   |
      | nightly | -o %S                 | --oh %S               | …No such option…--oh…                            |
      | resume  | ProtectHome=yes       | ProtectHome=no        | ProtectHome is no                                |
      | worker  | UMask=0077            | # no UMask            | UMask is not set                                 |
      | worker  | CLAUDE_BATCH_STATE    | CLAUDE_BATCH_STATES   | nothing reads the variable CLAUDE_BATCH_STATES…  |
      | worker  | Environment=          | Environment=ANTHROPIC_API_KEY=sk-ant-1 | a secret is not in the file that only root reads |
      | worker  | File=                 | File=postgresql://    | a secret is not in the file that only root reads |

  Scenario: A service starts again if that helps, by the exit codes of the reference
    Then the services start again as follows
      | end     | worker | gateway | nightly | resume |
      | 0       | no     | no      | no      | no     |
      | 1       | yes    | yes     | no      | no     |
      | 2       | no     | no      | no      | no     |
      | 3       | yes    | yes     | yes     | yes    |
      | 4       | no     | no      | no      | no     |
      | SIGKILL | yes    | yes     | yes     | yes    |
      | SIGTERM | no     | no      | no      | no     |

  Scenario: The nightly run is killed, starts again, and pays for nothing twice
    Given a command's API with {"latency": 2}
    And the files that the units name, with 3 prompts
    When the service nightly starts
    And it has sent a batch, and is ended by SIGKILL
    Then it starts again
    When the service nightly starts
    Then it ends with 0
    And it does not start again
    And the command line has written 3 answers in order to "state/claude-batch/answers.jsonl"
    And the API has processed 3 requests, none twice

  Scenario: The machine stops in the nightly run, and continues it when it starts
    Given a command's API with {"latency": 2}
    And the files that the units name, with 3 prompts
    When the service nightly starts
    And it has sent a batch, and is ended by SIGTERM
    Then it ends with 3
    When the service resume starts
    Then it ends with 0
    And the command line has written 3 answers in order to "state/claude-batch/answers.jsonl"
    And the API has processed 3 requests, none twice

  Scenario: A wrong file ends the nightly run for good
    Given a command's API
    And the files that the units name, with 0 prompts
    When the service nightly starts
    Then it ends with 2
    And it does not start again

  Scenario: A worker answers, ends with the machine, and waits for a database that is away
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server
    And the files that the units name, with 3 prompts
    When the service worker starts
    And a command runs: submit etc/reviewer.yaml srv/prompts.jsonl
    Then the run is over within 30 seconds
    When it has sent a batch, and is ended by SIGTERM
    Then it ends with 0
    And it does not start again
    When the PostgreSQL server ends
    And the service worker starts
    Then it ends with 3
    And it starts again

  Scenario: A gateway answers callers of its name, and ends with the machine
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server
    And the files that the units name, with 3 prompts
    When a command runs: gateway --tokens state/claude-batch/tokens --new-token ann
    And the service gateway starts
    Then it answers a call of "gateway.example.com" with the new token, and refuses one of "gateway.test"
    When it is ended by SIGTERM
    Then it ends with 0
    And it does not start again
