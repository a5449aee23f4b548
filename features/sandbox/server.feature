@every_python
Feature: The sandbox is a server, a command and a thread

  Scenario: Health, log and clock
    Given a sandbox with the settings
      """
      {"clock_offset": "-10m"}
      """
    When the sandbox is called with GET "/sandbox/healthz"
    Then the sandbox's answer has the fields
      | field | value |
      | ok    | true  |
    When the sandbox is called with GET "/v1/messages/batches?limit=3&beta=true"
      | header         | value     |
      | anthropic-beta | some-beta |
    And the sandbox is called with GET "/sandbox/log"
    Then the sandbox's answer has the fields
      | field                    | value                  |
      | 0.path                   | "/v1/messages/batches" |
      | 0.headers.anthropic-beta | "some-beta"            |
    And the sandbox's answer contains no "sk-test"
    When the sandbox is called with GET "/sandbox/clock"
    Then the sandbox's answer has the fields
      | field  | value  |
      | offset | -600.0 |
    When the sandbox is called with DELETE "/sandbox/log"
    Then the sandbox's log has the calls
      | route | status | fault |
    When the sandbox is called with POST "/sandbox/clock"
      """
      {"offset": 7000, "advance": 200}
      """
    Then the sandbox's answer has the fields
      | field  | value  |
      | offset | 7200.0 |
    When the sandbox is called with GET "/sandbox/clock"
    Then the sandbox's answer has the fields
      | field  | value  |
      | offset | 7200.0 |
    When the sandbox is called with POST "/sandbox/clock"
      """
      {"forward": 1}
      """
    Then the sandbox answers 400 invalid_request_error saying "unknown field `forward`"

  Scenario: As a process it prints its address, takes every option and ends cleanly
    Then a process of the sandbox with a responder runs as follows
      | options                                                                                                       | signal  | prints                                     | answer      | code | and then |
      | --port 0 --latency 50ms --seed 7 --expires-after 24h --results-kept 29d                                       | SIGINT  | sandbox listening on http://127.0.0.1:PORT | echo: hello | 0    |          |
      | --port 0 --listed-after 50ms --queue-limit 1000 --clock-offset -5m --any-id --counts live --cancel-latency 25s | SIGTERM | sandbox listening on http://127.0.0.1:PORT | echo: hello | 0    |          |
      | --port 0 --latency 50ms                                                                                       | SIGHUP  | sandbox listening on http://127.0.0.1:PORT | echo: hello | 0    |          |

  Scenario: Wrong usage exits with 2 and one plain message
    Then the sandbox command exits as follows
      | options                           | plan          | code | message                         |
      | --port 0 --latency soon           | {}            | 2    | …'soon' is not a duration…      |
      | --port 0 --faults /nowhere/plan   | {}            | 2    | …No such file or directory…     |
      | --port 0 --faults PLAN            | {             | 2    | …not valid JSON…                |
      | --port 0 --faults PLAN            | []            | 2    | …a fault plan is a JSON object… |
      | --port 0 --faults PLAN            | {"rulez": []} | 2    | …unknown field `rulez`…         |
      | --port 0 --responder nothing      | {}            | 2    | …write module:function…         |
      | --port 0 --responder nothing:much | {}            | 2    | …No module named 'nothing'…     |
      | --port 0 --responder json:nothing | {}            | 2    | …no attribute 'nothing'…        |
      | --port 0 --responder json:__doc__ | {}            | 2    | …is not a plain function…          |
      | --port TAKEN                      | {}            | 2    | …127.0.0.1:…: Address already in use. Choose another address with --host or --port; --port 0 takes a free port… |
      | --port TAKEN --clock-offset 1e20  | {}            | 2    | …clock_offset: the clock must stay between the years 1970 and 9000… |
      | --port TAKEN --clock-offset later | {}            | 2    | …'later' is not a duration…     |
      | --port TAKEN --admin-token=       | {}            | 2    | …--admin-token or CLAUDE_BATCH_SANDBOX_TOKEN is empty; give a value, or leave it out… |
      | --port TAKEN --clock-offset nan   | {}            | 2    | …clock_offset: the clock must stay between the years 1970 and 9000… |
      | --port 0 --queue-limit -5         | {}            | 2    | …Invalid value for '--queue-limit': -5 is not in the range x>=0… |
      | --port 99999                      | {}            | 2    | …Invalid value for '--port': 99999 is not in the range 0<=x<=65535… |

  Scenario: Without the extra the command names the package to install
    Then the sandbox command without a module exits as follows
      | module    | code | message                                                            |
      | starlette | 1    | …the sandbox needs starlette: pip install 'claude-batch[sandbox]'… |
      | uvicorn   | 1    | …the sandbox needs uvicorn: pip install 'claude-batch[sandbox]'…   |
      | msgspec   | 1    | …import of msgspec halted…                                         |

  Scenario: Durations are read with and without a unit
    Then the sandbox reads durations as follows
      | text | seconds | error             |
      | 0.5  | 0.5     |                   |
      | .5   | 0.5     |                   |
      | 50ms | 0.05    |                   |
      | 2s   | 2       |                   |
      | 10m  | 600     |                   |
      | 24 h | 86400   |                   |
      | 29d  | 2505600 |                   |
      | -1   |         | is not a duration |
      | soon |         | is not a duration |
      |      |         | is not a duration |

  Scenario: Settings that cannot be used are refused at the start
    Then the sandbox starts with settings as follows
      | settings                                | error                 |
      | {"faults": {"rules": [{"route": "x"}]}} | fault plan            |
      | {"responder": "nothing"}                | write module:function |
      | {"latencies": 1}                        | latencies             |
      | {"latency": "soon"}                     | is not a duration     |
      | {"clock_offset": "-soon"}               | is not a duration     |
      | {"counts": "none"}                      | neither 'zero' nor 'live' |
      | {"queue_limit": -5}                     | queue_limit: -5 is less than 0 |

  Scenario: The server in a thread says what it cannot do
    Then the sandbox server tells what it is not

  Scenario: It ends at once, whatever hangs
    Given a sandbox with the fault
      """
      {"route": "list", "action": {"type": "hang"}}
      """
    When a client of the sandbox sends
      """
      GET /v1/messages/batches HTTP/1.1
      host: x
      """
    Then the sandbox's rules have fired
      | seen | fired |
      | 1    | 1     |
    And the sandbox that is stopped drops that client at once

  Scenario Outline: It can listen on another address
    Given a sandbox with the settings
      """
      <settings>
      """
    When the sandbox's clock moves on by 60 seconds
    And the sandbox is called with GET "/v1/messages/batches"
    Then the sandbox answers 200

    Examples:
      | settings                                        |
      | {"host": "::1"}                                 |
      | {"host": "0.0.0.0"}                             |
      | {"host": "::"}                                  |
      | {"host": "0.0.0.0", "admin_token": "the-token"} |
