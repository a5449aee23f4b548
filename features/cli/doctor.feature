Feature: claude-batch doctor checks an installation, and what the API itself sends

  # Without a key

  Scenario: All is well, without a key and without a ledger
    Given a command's API
    And a command's environment lacks ANTHROPIC_API_KEY
    When a command runs: doctor
    Then the command line exits with 0
    And the command line prints
      """
      ok       versions: claude-batch 0.1.0, Python 
      ok       ledger: none at 
      ok       sync: a file was written and synced in 
      answers with HTTP 401, as it must without a key
      ok       clock: agrees with the server's
      ok       key: none is set; sending needs one
      0 faults, 0 warnings
      """
    And the command line has left no "../ledger.db"

  Scenario: A ledger is checked, and neither it nor a file beside it is changed
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And a command runs and changes no file: doctor
    Then the command line exits with 0
    And the command line prints
      """
      ok       integrity: SQLite found no damage
      ok       schema: schema version 
      ok       mark: the ledger has every sending that it counts
      ok       driver: no process drives the ledger now
      0 faults, 0 warnings
      """

  Scenario: A ledger that a process drives is checked with what is in its log
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command runs while another process holds its leader lock: doctor
    Then the command line exits with 0
    And the command line prints
      """
      ok       driver: 1 process drives the ledger now
      """

  Scenario Outline: Trouble with a ledger: <trouble>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a ledger has trouble: <trouble>
    And a command runs and changes no file: doctor
    Then the command line exits with <code>
    And the command line prints
      """
      <line>
      """

    Examples:
      | trouble                        | code | line |
      | its pages are overwritten | 2 | cannot be read: database disk image is malformed |
      | an index of it is gone | 2 | fault    integrity: |
      | its header is overwritten      | 2    | fault    ledger: the ledger |
      | its file is empty              | 0    | ok       ledger: none at |
      | it is another program's        | 2    | is not a ledger of claude-batch |
      | a later version wrote it       | 2    | fault    schema: schema version 99, but this claude-batch writes |
      | an earlier version wrote it    | 0    | ok       schema: schema version 1; the next command migrates it |
      | its mark counts more           | 4    | fault    mark: the ledger has forgotten sendings that |
      | its mark is from the future    | 0    | warning  mark: it was written 2h in the future |
      | its mark cannot be read        | 2    | fault    mark: the ledger's high-water mark |
      | its account has no credit      | 4    | fault    sending: halted at http://127.0.0.1: |
      | it waits for its recovery      | 4    | until the ledger is recovered |

  Scenario Outline: Files that this user may not use are named with their owner: <files>
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And the files "**" belong to nobody
    And the files "**/*" belong to nobody
    And the files "<files>" belong to root
    And the files "<files>" get the mode <mode>
    And the user nobody runs a command: doctor --ledger <ledger>
    Then the command line exits with 2
    And the command line prints
      """
      fault    <check>
      belongs to user root (uid 0)
      """
    And the command line does not say: This is a bug

    Examples:
      | files      | mode | ledger        | check   |
      | ledger.db  | 644  | ledger.db     |         |
      | ledger.db  | 600  | ledger.db     | ledger: |
      | state      | 755  | ledger.db     | mark:   |
      | state      | 700  | state/none.db | ledger: |

  Scenario: A ledger in a folder of another user is reported by the commands that read it
    Given this process may give files away
    And a command's API
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: submit actor.yaml asks.jsonl --ledger state/ledger.db
    And the files "**" belong to nobody
    And the files "state" belong to root
    And the files "state" get the mode 700
    And the user nobody runs a command: status --ledger state/ledger.db
    Then the command line exits with 2 and says
      """
      cannot be opened: Permission denied
      """

  Scenario Outline: A key is tried with a call that is not billed: <key>
    Given a command's API
    And a command's environment has ANTHROPIC_API_KEY = <key>
    When a command runs: doctor
    Then the command line exits with <code>
    And the command line prints
      """
      <line>
      """

    Examples:
      | key           | code | line                                             |
      | sk-good       | 0    | ok       key: the API accepts it, in workspace wrkspc_ |
      | sk-invalid    | 4    | fault    key: HTTP 401: API key is invalid.      |
      | sk with space | 1    | fault    key: the API key contains characters that no key has |

  Scenario: A clock that is wrong is a warning with its size
    Given a command's API with {"clock_offset": -300}
    When a command runs: doctor
    Then the command line exits with 0
    And the command line prints
      """
      warning  clock: 
       ahead of the server's
               Set the clock
      0 faults, 1 warning
      """

  Scenario Outline: An API that cannot be used: <url>
    Given a command's API
    When a command runs: doctor --base-url <url>
    Then the command line exits with 1
    And the command line prints
      """
      fault    api: 
      <words>
      1 fault, 0 warnings
      """

    Examples:
      | url                       | words |
      | http://127.0.0.1:9        | cannot be reached: the connection was refused |
      | http://name.invalid       | cannot be reached: its name cannot be resolved |
      | https://127.0.0.1:PORT     | cannot be reached: TLS failed |
      | http://127.0.0.1:PORT/v1   | Leave out /v1 at the end of the base URL |
      | http://127.0.0.1:PORT/v9   | answers with HTTP 404 where the Message Batches API answers with 401 |

  Scenario Outline: The doctor reports a named thing that cannot be used: <words>
    Given a command's API
    When a command runs: doctor <words>
    Then the command line exits with <code>
    And the command line prints
      """
      <line>
      """

    Examples:
      | words                       | code | line                                                  |
      | --base-url http://host:port | 1    | fault    api: the base URL cannot be used: Invalid port: 'port'; correct --base-url |
      | --ledger mysql://host/x     | 2    | fault    ledger: mysql://host/x: a ledger is named by |

  Scenario Outline: A setting of the environment cannot be used: <name>
    Given a command's API
    And a command's environment has <name> = <value>
    When a command runs: doctor --base-url https://api.invalid
    Then the command line exits with 1
    And the command line prints
      """
      fault    api: <words>
      """
    Given a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl --base-url https://api.invalid
    Then the command line exits with 2 and says
      """
      error: <words>
      """

    Examples:
      | name                     | value                | words                                             |
      | ALL_PROXY                | socks5://127.0.0.1:9 | ALL_PROXY names a SOCKS proxy                     |
      | HTTPS_PROXY              | foo://127.0.0.1:9    | HTTPS_PROXY cannot be used                        |
      | SSL_CERT_FILE            | /nonexistent         | the certificates of SSL_CERT_FILE cannot be read  |
      | ANTHROPIC_CUSTOM_HEADERS | X-Name: Jörg         | line 1 of ANTHROPIC_CUSTOM_HEADERS cannot be sent |

  Scenario: A proxy that does not answer is named with the variables that may name it
    Given a command's API
    And a command's environment has HTTPS_PROXY = http://127.0.0.1:9
    When a command runs: doctor --base-url https://api.invalid
    Then the command line exits with 1
    And the command line prints
      """
      cannot be reached: the connection was refused
      through the proxy 127.0.0.1:9
      the proxy is named by HTTPS_PROXY, HTTP_PROXY or ALL_PROXY
      """

  Scenario: A server in trouble is a warning, because it passes
    Given a command's API with {"faults": {"rules": [{"route": "list", "action": {"type": "error", "status": 529}}]}}
    When a command runs: doctor
    Then the command line exits with 0
    And the command line prints
      """
      warning  api: 
       answers with HTTP 529: Overloaded
      """

  Scenario: The findings as JSON
    Given a command's API
    When a command runs: doctor --json
    Then the command line exits with 0
    And the command line's status as JSON has
      | field    | value |
      | faults   | 0 |
      | warnings | 0 |

  # With --live

  Scenario: The sandbox as the service differs in nothing, and nothing is left there
    Given a command's API with {"latency": 2}
    When a command runs: doctor --live --yes -o report.md
    Then the command line exits with 0 and says
      """
      two batches with 4 requests are sent to http://127.0.0.1:
      , for at most $0.00
      the report is in report.md
      """
    And the command line prints
      """
      0 differences from the sandbox in 20 responses and lines
      """
    And the API has no batch
    And a report "report.md" can be published

  Scenario: The report as JSON
    Given a command's API with {"latency": 2}
    When a command runs: doctor --live --yes --json -o report.json
    Then the command line exits with 0
    And the command line's status as JSON has
      | field                               | value |
      | live.differences                    | [] |
      | live.unseen                         | [] |
      | live.failure                        | "" |
      | live.service.create.status          | 200 |
      | live.service.early results.status   | 404 |
    And a report "report.json" can be published

  Scenario: Every difference is named: of fields, types, formats, headers and statuses
    Given a command's API with {"latency": 2}
    And a service in between that changes
      | call         | what                         | value |
      | create       | archived_at                  | absent |
      | create       | priority                     | "high" |
      | retrieve     | request_counts.expired       | "0" |
      | list         | has_more                     | null |
      | cancel       | cancel_initiated_at          | "2026-08-14T09:12:33Z+" |
      | results      | result.message.usage.seconds | 1.5 |
      | results      | header content-type          | "text/html" |
      | create       | header retry-after           | "7" |
      | early        | status                       | 409 |
      | early        | error.message                | "Come back later." |
    When a command runs: doctor --live --yes
    Then the command line exits with 1
    And the command line prints
      """
      differs  create: field archived_at: the service does not send it, the sandbox sends null
      differs  create: field priority: the service sends text, the sandbox does not send it
      differs  create: header retry-after: the service sends digits, the sandbox does not send it
      differs  batch in progress: field request_counts.expired: the service sends digits, the sandbox sends integer
      differs  list: field has_more: the service sends null, the sandbox sends boolean
      differs  batch canceling: field cancel_initiated_at: the service sends text, the sandbox sends time ending in
      differs  line doctor-text: field result.message.usage.seconds: the service sends number, the sandbox does not send it
      differs  results: header content-type: the service sends text/html, the sandbox sends
      differs  early results: status: the service sends 409, the sandbox sends 404
      differs  early results: field error.message: the service sends "Come back later.", the sandbox sends
      """

  Scenario: A batch that ends at once is no difference
    Given a command's API with {"latency": 0}
    When a command runs: doctor --live --yes
    Then the command line exits with 0
    And the command line prints
      """
      note     early results: the batch had ended already
      note     early delete: the batch had ended already
      0 differences from the sandbox in 
      """
    And the API has no batch

  Scenario: A service that echoes the key, ids and an address spoils no report
    Given a command's API with {"latency": 2}
    And a service in between that changes
      | call     | what                   | value |
      | early    | error.message          | "sk-ant-marked-for-the-search-0123456789 of 5a9db0c5-0000-4000-8000-000000000000, msgbatch_01Ab2Cd3Ef4Gh5" |
      | create   | type                   | "sk-ant-marked-for-the-search-0123456789" |
      | create   | note                   | "http://127.0.0.1:8000/x" |
      | retrieve | header anthropic-trace | "req_01Ab2Cd3Ef4" |
      | results  | result.type            | "failed" |
    When a command runs: doctor --live --yes -o report.md
    Then the command line exits with 1
    And the command line prints
      """
      the service sends "[credential] of …, msgbatch_…"
      create: field note: the service sends url
      batch in progress: header anthropic-trace: the service sends id req_…
      line doctor-text: field result.type: the service sends "failed"
      """
    And a report "report.md" can be published

  Scenario: Texts are reported by their formats alone
    Then the format of a text is as follows
      | text                                 | format                  |
      | 2026-08-14T09:12:33.123456+00:00     | time ending in +00:00   |
      | 2026-08-14T09:12:33Z                 | time ending in Z        |
      | msgbatch_01Re5SxVd8Kw2Zm7Tq4Yb9Nc    | id msgbatch_…           |
      | not_available                        | text                    |
      | claude-haiku-4-5                     | model without a date    |
      | claude-haiku-4-5-20251001            | model with a date       |
      | 5a9db0c5-0000-4000-8000-000000000000 | uuid                    |
      | https://api.anthropic.com/v1         | url                     |
      | 20000                                | digits                  |
      | a secret                             | text                    |

  Scenario Outline: Nothing is sent without a confirmation, a price or a key: <words>
    Given a command's API
    And a command's environment has ANTHROPIC_API_KEY = <key>
    When a command runs: doctor --live <words>
    Then the command line exits with 2 and says
      """
      <said>
      """
    And the command line has sent nothing

    Examples:
      | words                      | key     | said |
      |                            | sk-test | there is no terminal to confirm it on. Repeat with --yes. Nothing was sent |
      | --yes --model claude-none  | sk-test | claude-none has no known price |
      | --yes                      | nothing | no API key |

  Scenario: Without the sandbox there is nothing to compare with
    Given a command's API
    When a command runs, where no sandbox is installed: doctor --live --yes
    Then the command line exits with 2 and says
      """
      --live compares the API with the sandbox
      """
    And the command line has sent nothing

  Scenario Outline: A flag that only --live uses is refused without it: <flag>
    Given a command's API
    When a command runs: doctor --<flag>
    Then the command line exits with 2 and says
      """
      <says>
      """

    Examples:
      | flag                   | says                 |
      | yes                    | --yes needs --live   |
      | model claude-haiku-4-5 | --model needs --live |
      | wait 5m                | --wait needs --live  |
      | output report.md       | --output needs --live |

  Scenario: A refused key halts before anything is created
    Given a command's API
    And a command's environment has ANTHROPIC_API_KEY = sk-invalid-key-0123456789
    When a command runs: doctor --live --yes
    Then the command line exits with 4
    And the command line prints
      """
      ended    the first batch was refused: 401 authentication_error
      0 differences from the sandbox in 0 responses and lines
      """
    And the API has no batch

  Scenario: Batches that do not end in time are left, with the way to remove them
    Given a command's API with {"latency": 600, "cancel_latency": 0.1}
    When a command runs: doctor --live --yes --wait 1s
    Then the command line exits with 3 and says
      """
      is left at the API (in_progress). To remove it:
      /cancel -H "x-api-key: $ANTHROPIC_API_KEY"
        curl -X DELETE http://127.0.0.1:
      """
    And the command line prints
      """
      note     batch ended: it has not ended in time
      ended    a batch has not ended in time
      """
    And the API has 1 batch

  Scenario: An interruption says what is left
    Given a command's API with {"latency": 600, "cancel_latency": 600}
    When a command's process gets SIGTERM once 2 batches are created: doctor --live --yes
    Then the command line exits with 3 and says
      """
      is left at the API (canceling)
      """

  Scenario: A lost answer may have made a batch, which is said
    Given a command's API with {"faults": {"rules": [{"route": "create", "action": {"type": "drop_after"}}]}}
    When a command runs: doctor --live --yes
    Then the command line exits with 3 and says
      """
      there may be one more batch at the API, whose requests are named doctor-
      """

  Scenario Outline: A service that means harm is survived: <calls> calls get <what>
    Given a server that means harm, before an API
    And it answers the first 99 <calls> calls with <what>
    When a command runs: doctor --live --yes --wait 1s --poll-interval 100ms
    Then the command line exits with <code>
    And the command line does not say: This is a bug

    Examples:
      | calls    | what                            | code |
      | create   | JSON nested 200,000 deep        | 3    |
      | create   | another batch's id              | 3    |
      | create   | an error nested deep            | 3    |
      | list     | JSON nested 200,000 deep        | 1    |
      | list     | a page that repeats itself      | 0    |
      | retrieve | counts of 10 ** 30              | 1    |
      | retrieve | a stream of somebody's gzip     | 3    |
      | results  | JSON nested 200,000 deep        | 1    |
