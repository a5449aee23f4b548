Feature: A ledger on PostgreSQL

  Background:
    Given a PostgreSQL server
    And a command's API
    And a ledger on that server

  Scenario: A run is stored there and answered, and no message has the server's password
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    When a command runs: status
    And a command runs: ledger show
    Then the command line prints
      """
      requests: 3 succeeded
      """
    And the password of the server was never said
    And no file has the password of the server

  Scenario: A message names no password of a URL that was typed
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs with the ledger's URL as LEDGER: run actor.yaml prompts.jsonl --max-wait 0.05s -o out.jsonl --ledger LEDGER
    Then the command line exits with 3 and says
      """
      continue with: claude-batch resume RUN --ledger 'postgresql://claude:***@127.0.0.1
      """
    And the password of the server was never said
    When a command runs with the ledger's URL as LEDGER: ledger copy LEDGER other.db
    Then the command line exits with 2 and says
      """
      there is no ledger in a file postgresql://claude:***@127.0.0.1
      """
    And the password of the server was never said

  Scenario Outline: A command that only reads creates no ledger: <command>
    When a command runs: <command>
    Then the command line exits with <code>
    When a command runs: doctor
    Then the command line prints
      """
      yet; `claude-batch run` creates it
      """

    Examples:
      | command     | code |
      | status      | 0    |
      | advance     | 0    |
      | ledger show | 2    |

  Scenario: A schema with the tables of another program is refused, with the remedy
    Given a command's file "prompts.jsonl" of 1 prompts
    And the server runs: CREATE SCHEMA claude_batch; CREATE TABLE claude_batch.other (id int)
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      it was not changed. Name another schema, with ?schema=NAME in the URL
      """
    When a command runs: status
    Then the command line exits with 2 and says
      """
      is a database, but not a ledger of claude-batch
      """
    When a command runs: doctor
    Then the command line exits with 2
    And the command line prints
      """
      is a database, but not a ledger of claude-batch
      """

  Scenario: A worker says which schema it cannot work in
    When a command runs: worker --schema other --ledger ledger.db
    Then the command line exits with 2 and says
      """
      --schema other: ledger.db is a file; only a ledger on PostgreSQL has a schema
      """
    When a command runs: worker --schema other --ledger postgresql://nobody@nowhere/db?schema=this
    Then the command line exits with 2 and says
      """
      --schema other: the ledger's URL names another schema: this
      """

  Scenario: The same command goes on with a run that another process left
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: submit actor.yaml prompts.jsonl
    And a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice

  Scenario Outline: A ledger that cannot be used is refused with its cause, and without the password
    Given the ledger's URL is <url>
    When a command runs: ledger show
    Then the command line exits with <code> and says
      """
      <words>
      """
    And the password of the server was never said

    Examples:
      | url                                              | code | words                                  |
      | postgresql://claude:PASSWORD@127.0.0.1:1/db           | 3    | Connection refused                     |
      | postgresql://claude:PASSWORD@127.0.0.1:PORT/nowhere   | 2    | "nowhere" does not exist               |
      | postgresql://claude:PASSWORD@127.0.0.1:port/db        | 2    | the ledger's URL cannot be read        |
      | postgresql://127.0.0.1:1/db?password=PASSWORD    | 3    | Connection refused                     |
      | mysql://u:PASSWORD@127.0.0.1:1/db                | 2    | a path, or a URL of SQLite or PostgreSQL |
      | postgresql://claude:PASSWORD@127.0.0.1:PORT/db?sslmode=require | 2 | does not support SSL       |
      | postgresql://claude:PASSWORD@127.0.0.1:PORT/db?sslmode=never   | 2 | invalid sslmode value      |
      | postgresql://claude:PASSWORD@/db?service=nowhere               | 2 | definition of service      |
      | postgresql://claude:PASSWORD@127.0.0.1:99999/db                | 2 | invalid port number        |
      | postgresql://claude:PASSWORD@/db?host=one&port=1,2             | 2 | number of hosts and ports  |

  Scenario Outline: A password is shown nowhere, although it is not encoded: <url>
    Given the ledger's URL is <url>
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with <code>
    And the password of the server was never said
    When a command runs: ledger backup copy.dump
    Then the command line exits with 2 and says
      """
      <words>
      """
    And the password of the server was never said
    And no file has the password of the server

    Examples:
      | url                                                                 | code | words                                              |
      | postgresql://claude:a?PASSWORD@127.0.0.1:PORT/postgres              | 0    | postgresql://claude:***@127.0.0.1                  |
      | postgresql://claude:a#PASSWORD@127.0.0.1:PORT/postgres              | 0    | postgresql://claude:***@127.0.0.1                  |
      | postgresql://claude@127.0.0.1:PORT/postgres?sslpassword=PASSWORD    | 0    | postgresql://claude@127.0.0.1                      |
      | postgresql://claude:a@PASSWORD@127.0.0.1:PORT/postgres              | 2    | the ledger's URL has an @ in its password          |
      | postgresql://claude:PASSWORD@127.0.0.1:PORT/postgres?schema=My+Team | 0    | '--schema="My Team"' --file=copy.dump postgresql:// |

  Scenario Outline: A message that names the command to type next leaves the password of --ledger out: <words>
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs with the server's URL in place of URL: <words>
    Then the command line exits with <code> and says
      """
      <message>
      """
    And the password of the server was never said

    Examples:
      | words                                                       | code | message                                                |
      | submit actor.yaml prompts.jsonl --ledger URL                | 0    | claude-batch resume RUN --ledger 'postgresql://claude:***@ |
      | worker --schema other --ledger mysqlURL                     | 2    | --schema other: mysqlpostgresql://claude:***@          |

  Scenario: A second provider of the process, with other settings, is refused without the password
    When two providers of the ledger have different settings
    Then the error is a ActorConfigurationError that says
      """
      claude:***@
      """
    And the error does not have the password of the server

  Scenario Outline: The session's encoding is UTF-8, whatever the role has: <encoding>
    Given the server's user has the encoding <encoding>
    And a command's file "prompts.jsonl"
      """
      {"key": "größe Ж", "prompt": "漢字"}
      """
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --label Ж漢
    Then the command line exits with 0
    When a command runs: status
    Then the command line prints
      """
      Ж漢
      """

    Examples:
      | encoding  |
      | LATIN1    |
      | SQL_ASCII |

  Scenario: A schema that exists needs no right to create one
    Given a user of the server who may create no schema, and has the schema "claude_batch"
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0

  Scenario Outline: The schema has any name that the server can store: <name>
    Given the ledger's URL is postgresql://claude:PASSWORD@127.0.0.1:PORT/postgres?schema=<name>
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    When a command runs: ledger show
    Then the command line prints
      """
      requests: 1 succeeded
      """

    Examples:
      | name                                                            |
      | My%20%25s%22%27.a                                               |
      | abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk |

  Scenario: A longer name of a schema is refused, because the server would cut it
    Given the ledger's URL is postgresql://u@h/db?schema=abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl
    When a command runs: status
    Then the command line exits with 2 and says
      """
      names a schema of more than 63 bytes
      """

  Scenario Outline: A worker's schema is added to the options of its URL
    Given the ledger's URL is <url>
    Then a worker's URL with the schema "other" is <with it>

    Examples:
      | url                                    | with it                                              |
      | postgresql://u:a?b@h/db                | postgresql://u:a?b@h/db?schema=other                 |
      | postgresql:///db?host=one&host=two     | postgresql:///db?host=one&host=two&schema=other      |
      | postgresql://h/db?user=a%40b           | postgresql://h/db?user=a%40b&schema=other            |

  Scenario: A database that is not UTF-8 is refused
    Given the ledger's URL is that of a database in LATIN1
    When a command runs: ledger show
    Then the command line exits with 2 and says
      """
      its encoding is LATIN1, and UTF8 is needed; nothing was changed
      """

  Scenario: A standby is refused until it is promoted
    Given a standby of it
    And the ledger's URL is that of the standby
    When a command runs: ledger show
    Then the command line exits with 3 and says
      """
      is on a standby, which cannot be written
      """

  Scenario: A user without rights on the schema is told which right may be missing
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Given a user of the server who may create no schema, and has the schema "other"
    When a command runs: status
    Then the command line exits with 2 and says
      """
      the user may lack the right USAGE on the schema claude_batch, so grant it
      """

  Scenario: A user without the right TEMPORARY on the database is told so, by doctor too
    Given a command's file "prompts.jsonl" of 1 prompts
    And a user of the server who may create no schema, and has the schema "claude_batch"
    And the server runs: REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 2 and says
      """
      permission denied to create temporary tables in database "postgres". Everything stored before is kept; grant the user what it lacks, such as TEMPORARY on the database
      """
    When a command runs: doctor
    Then the command line exits with 2
    And the command line prints
      """
      its user may not create temporary tables
      """

  Scenario: A server whose settings forbid writing is reported with the setting, by doctor too
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Given the server's settings are {"default_transaction_read_only": "on"}
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --new
    Then the command line exits with 3 and says
      """
      its setting default_transaction_read_only forbids writing. Name the primary, or correct the setting
      """
    When a command runs: doctor
    Then the command line exits with 2
    And the command line prints
      """
      fault    access: its setting default_transaction_read_only forbids writing
      """

  Scenario: Doctor reports that a user may only read a ledger on a server
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Given a user of the server who may create no schema, and has the schema "other"
    And the server runs: GRANT USAGE ON SCHEMA claude_batch TO other
    And the server runs: GRANT SELECT ON ALL TABLES IN SCHEMA claude_batch TO other
    When a command runs: doctor
    Then the command line exits with 2
    And the command line prints
      """
      fault    access: its user may not write its tables
      """

  Scenario Outline: A server that may forget commits is a warning: <settings>
    Given a standby of it
    And the server's settings are {<settings>}
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      <words>
      """
    When a command runs: doctor
    Then the command line prints
      """
      <words>
      """

    Examples:
      | settings                                                       | words                                  |
      | "synchronous_commit": "off", "synchronous_standby_names": "*"  | synchronous_commit is off              |
      | "synchronous_commit": "local", "synchronous_standby_names": "*" | a standby is replicated asynchronously |
      | "synchronous_standby_names": ""                                | a standby is replicated asynchronously |

  Scenario: Time-outs of the server do not end what takes long
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Given the server's settings are {"statement_timeout": "1s", "transaction_timeout": "1s"}
    And to store results in the ledger takes 1.5 seconds
    When a command runs: run actor.yaml prompts.jsonl -o again.jsonl --new --max-wait 10s
    Then the command line exits with 0
    And the command line does not say: timeout

  Scenario: A driver goes on as soon as its server has room again
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    And the server has no room for batches for 3 seconds while a command runs: run actor.yaml prompts.jsonl -o again.jsonl --new
    Then the command line exits with 0 and says
      """
      No space left on device. Everything stored before is kept; give the server what it lacks
      """
    And the command line has written 3 answers in order to "again.jsonl"

  Scenario: A function that judges an answer keeps no transaction open
    Given the server's settings are {"idle_in_transaction_session_timeout": "1s"}
    And a batch provider with {"validation_attempts": 2, "max_wait": 15}
    When the actor is asked for a Deliberate: "an invoice"
    Then the answer's text has "word"

  Scenario: A large batch is judged soon, although the server's statistics do not have it
    Given the server's settings are {"autovacuum": "off"}
    And a command's file "few.jsonl" of 100 prompts
    And a command's file "many.jsonl" of 8000 prompts
    When a command runs: run actor.yaml few.jsonl -o few-out.jsonl
    And the server gathers statistics
    And a command runs: run actor.yaml many.jsonl -o out.jsonl
    Then the command line exits with 0
    And the server has read each request and each result fewer than 100 times

  Scenario: Equal requests are found soon, although the server's statistics do not have them
    Given the server's settings are {"autovacuum": "off"}
    And a command's file "few.jsonl" of 100 prompts
    And a command's file "many.jsonl" of 4000 prompts, each 3 times
    When a command runs: run actor.yaml few.jsonl -o few-out.jsonl
    And the server gathers statistics
    And a command runs: run actor.yaml many.jsonl -o out.jsonl --dedupe
    Then the command line exits with 0
    And the server has read each request and each result fewer than 100 times

  Scenario: A live answer is stored soon, although the server's statistics do not have its run
    Given the server's settings are {"autovacuum": "off"}
    And a command's file "few.jsonl" of 100 prompts
    And a command's file "many.jsonl" of 800 prompts
    When a command runs: run actor.yaml few.jsonl -o few-out.jsonl
    And the server gathers statistics
    And a command runs: run actor.yaml many.jsonl -o out.jsonl --mode live --live-concurrency 50
    Then the command line exits with 0
    And the server has read each request and each result fewer than 2500 times

  Scenario: A server with a synchronous standby causes no warning
    Given a standby of it
    And the server's settings are {"synchronous_standby_names": "*"}
    And a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line does not say: may lose sendings

  Scenario: doctor looks at the server, and creates nothing there
    When a command runs: doctor
    Then the command line prints
      """
      yet; `claude-batch run` creates it
      """
    And the server has no ledger
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    And a command runs: doctor
    Then the command line exits with 0
    And the command line prints
      """
      0 processes drive the ledger now
      """

  Scenario: A backup is the server's own business
    Given a command's file "prompts.jsonl" of 1 prompts
    When a command runs: submit actor.yaml prompts.jsonl
    And a command runs: ledger backup copy.dump
    Then the command line exits with 2 and says
      """
      pg_dump --format=custom --schema=claude_batch --file=copy.dump
      """
    When a command runs: ledger backup
    Then the command line exits with 2 and says
      """
      pg_dump --format=custom --schema=claude_batch --file=ledger.20
      """

  Scenario: A standby that has lost commits sends nothing before it is recovered, and then nothing twice
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o first.jsonl
    Given a standby of it
    And the standby has everything and is detached
    And a command's file "more.jsonl"
      """
      "the fourth"
      "the fifth"
      """
    When a command runs: run actor.yaml more.jsonl -o more-out.jsonl
    And the PostgreSQL server crashes, and the standby is promoted
    And the ledger's URL is that of the standby
    And a command runs: submit actor.yaml more.jsonl
    Then the command line says
      """
      is on another server than before, or on a standby that was promoted
      """
    And the API has processed 5 requests, none twice
    When a command runs until it need not be repeated: ledger recover --settling 1ms
    Then the command line exits with 0 and says
      """
      has the answers to 2 requests that this ledger does not have; submit them again
      """

  Scenario: A schema that was restored in its place sends nothing before it is recovered, and then nothing twice
    Given a command's file "prompts.jsonl" of 3 prompts
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml prompts.jsonl -o first.jsonl
    And the API has no faults any more
    And a command's ledger may send at once
    And the ledger's schema is dumped, and restored after a command runs: run actor.yaml prompts.jsonl -o first.jsonl
    Then the command line exits with 0
    # As in a new container.
    When a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/elsewhere
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      is on another server than before, or on a standby that was promoted, or was restored
      """
    When a command runs until it need not be repeated: ledger recover --settling 1ms
    Then the command line exits with 0 and says
      """
      was adopted, with 3 requests of this ledger
      """
    When a command runs: resume
    Then the command line exits with 0
    And the API has processed 3 requests, none twice

  Scenario: A schema that is restored as it was before its first driver sends nothing before it is recovered
    When this program runs
      """
      with cb.ClaudeBatchProvider(drive=False) as provider:
          provider.store(asker, ["one"])
      """
    And the ledger's schema is dumped, and restored after a command runs: resume
    Then the command line exits with 0
    # As in a new container.
    When a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/elsewhere
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      is on another server than before, or on a standby that was promoted, or was restored
      """
    And the API has processed 1 requests, none twice

  Scenario: A promoted standby is recovered, although no process has noticed the promotion before
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o first.jsonl
    Given a standby of it
    And the standby has everything and is detached
    When the PostgreSQL server crashes, and the standby is promoted
    And the ledger's URL is that of the standby
    And a command runs until it need not be repeated: ledger recover --settling 1ms
    Then the command line exits with 0 and says
      """
      the ledger is recovered and may send again
      """
    Given a command's file "more.jsonl"
      """
      "the fourth"
      """
    When a command runs: run actor.yaml more.jsonl -o more-out.jsonl --poll-interval 0.1s
    Then the command line exits with 0

  Scenario: A recovery is continued in another container, which has no high-water mark
    Given a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o first.jsonl
    And a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/one
    And a command runs: ledger recover --even-if-whole --settling 15m
    Then the command line exits with 3
    When a command's environment has CLAUDE_BATCH_STATE_DIR = the folder/another
    And both clocks go 1 hours on
    And a command runs: ledger recover --settling 15m
    Then the command line exits with 0 and says
      """
      the ledger is recovered and may send again
      """

  Scenario: A schema that was dumped within a recovery finds what was sent after it
    Given a command's file "prompts.jsonl" of 3 prompts
    And a command's API with {"latency": 3600}
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 529}}]}
      """
    When a command runs: submit actor.yaml prompts.jsonl -o first.jsonl
    And the API has no faults any more
    And a command's ledger may send at once
    And a command runs: ledger recover --even-if-whole --settling 15m
    Then the command line exits with 3
    When both clocks go 1 hours on
    And both clocks go 1 hours on
    And the ledger's schema is dumped, and restored after a command runs: ledger recover --settling 15m, then: submit actor.yaml prompts.jsonl -o first.jsonl
    Then the command line exits with 0
    When a command runs: ledger recover --settling 15m
    Then the command line exits with 3 and says
      """
      cannot be recovered: it is still processing
      """
    When both clocks go 2 hours on
    And a command runs: ledger recover --settling 15m
    Then the command line exits with 0
    When a command runs: resume
    Then the command line exits with 0
    And the API has processed 3 requests, none twice

  Scenario: A recovery that a standby's promotion interrupts blames no other process, and is repeated
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs: run actor.yaml prompts.jsonl -o first.jsonl
    Given a standby of it
    And the standby has everything and is detached
    When a command recovers the ledger while the standby takes the server's place
    Then the command line exits with 3 and says
      """
      another server has the ledger
      """
    When a command runs until it need not be repeated: ledger recover --settling 1ms
    Then the command line exits with 0 and says
      """
      the ledger is recovered and may send again
      """

  Scenario: A worker that keeps driving while a standby takes its server's place sends nothing before the ledger is recovered
    Given a proxy before the PostgreSQL server
    And two workers: --health 0
    And a standby of it
    Then one of them drives, and each says that it works
    When the standby has everything and is detached
    And the standby takes the place of the server within an instant
    Then sending is halted within 10 seconds, because the ledger may have forgotten sendings

  Scenario: A live call in progress is answered although a standby takes its server's place
    Given a proxy before the PostgreSQL server
    And a standby of it
    And a provider that makes a live call of 4 seconds, with "heartbeat" 1
    When the standby has everything and is detached
    And the standby takes the place of the server within an instant
    And a run of 1 prompts is stored at once
    Then in the ledger the states of the requests come to be ["succeeded", "queued"]

  Scenario Outline: A COMMIT whose answer is lost loses nothing and repeats nothing
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    And a COMMIT that has "<statement>" fails by "<fault>"
    When a command runs until it need not be repeated: run actor.yaml prompts.jsonl -o out.jsonl --settling 1s
    Then the fault has happened
    And the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice
    And in the ledger the counts of runs are [1]

    Examples:
      | statement           | fault       |
      | INSERT INTO runs    | lose_answer |
      | SET state           | lose_answer |
      | remote_id           | lose_answer |
      | SET armed           | lose_answer |
      | COPY staged_results | lose_answer |

  Scenario: A run that is submitted again keeps its contexts, although the COMMIT had no answer
    Given a proxy before the PostgreSQL server
    And an API
    And a batch provider
    And a COMMIT that has "INSERT INTO contexts (request_seq, value) SELECT" fails by "lose_answer"
    When a run with the contexts ["old", "older", null] is submitted
    And a run with the contexts ["new", null, "newest"] is submitted
    Then the fault has happened
    And both are one run, whose contexts in another process are ["new", null, "newest"]

  Scenario: A batch whose id is noted again and again is collected once
    Given a proxy before the PostgreSQL server
    And an API
    And a batch provider
    And a COMMIT that has "remote_id=" fails by "lose_answer"
    And a COMMIT that has "remote_id=" fails by "lose_answer"
    And a COMMIT that has "remote_id=" fails by "lose_answer"
    When a run of 3 prompts is stored at once
    Then the fault has happened
    When 2 seconds pass
    Then in the ledger the states of the batches are ["collected"]
    And the API was called 1 times by GET *results

  Scenario Outline: Live calls whose claim had no answer were not sent, and are sent then: <fault>
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    And a COMMIT that has "SET request_count=(batches.request_count" fails by "<fault>"
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --mode live
    Then the fault has happened
    And the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice

    Examples:
      | fault       |
      | lose_answer |
      | lose_commit |

  Scenario Outline: A live call is settled once, although the COMMIT of its end fails: <end>, <fault>
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    And the API answers live calls with the first {"type": "error", "status": 529}
    And a COMMIT that has "<words>" fails by "<fault>"
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl --mode live --budget 1
    Then the fault has happened
    And the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice
    And what 0 calls can cost live is kept, and nothing is reserved
    And the budgets account for the API's bill

    Examples:
      | end     | words                                      | fault       |
      | answer  | spent=(charges.spent +                     | lose_answer |
      | answer  | spent=(charges.spent +                     | lose_commit |
      | refusal | SET request_count=(batches.request_count - | lose_answer |
      | refusal | SET request_count=(batches.request_count - | lose_commit |

  Scenario Outline: A call whose COMMIT had no answer is asked once when its caller asks again: <fault>
    Given a proxy before the PostgreSQL server
    And an API
    And a batch provider
    And a COMMIT that has "INSERT INTO requests" fails by "<fault>"
    When the actor is asked in vain: "hello"
    Then the fault has happened
    When the actor is asked: "hello"
    Then the API has processed 1 requests, none twice

    Examples:
      | fault       |
      | lose_answer |
      | lose_commit |

  Scenario Outline: A call is taken over although the COMMIT of an earlier take-over had no answer: <fault>
    Given a proxy before the PostgreSQL server
    And an API that takes 2 seconds for a batch
    And a batch provider
    When "hello" is asked in the background
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the caller of "hello" leaves
    Then in the ledger the processes that wait for calls come to be [null]
    Given a COMMIT that has ", taken=" fails by "<fault>"
    When the actor is asked in vain: "hello"
    Then the fault has happened
    When the actor is asked: "hello"
    Then the API has processed 1 requests, none twice

    Examples:
      | fault       |
      | lose_answer |
      | lose_commit |

  Scenario Outline: A command goes on if its link breaks while it stores <what>: <fault>
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    And a COMMIT that has "<words>" fails by "<fault>"
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the fault has happened
    And the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice

    Examples:
      | what         | words            | fault       |
      | a run        | INSERT INTO runs | lose_answer |
      | a run        | INSERT INTO runs | lose_commit |
      | its requests | request_count=   | lose_answer |
      | its requests | request_count=   | lose_commit |
      | its end      | SET digest=      | lose_answer |
      | its end      | SET digest=      | lose_commit |

  Scenario: What a rerun sends again is reported although the answer to its COMMIT is lost
    Given a proxy before the PostgreSQL server
    And a command's environment has CLAUDE_BATCH_MAX_ATTEMPTS = 1
    And a command's file "asks.jsonl"
      """
      "[[sandbox:expired:once]] prompt 1"
      """
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 1
    Given a COMMIT that has "SET digest=" fails by "lose_answer"
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the fault has happened
    And the command line exits with 0 and says
      """
      1 failed request is sent again (1 expired)
      """

  Scenario Outline: A command goes on if its link breaks while it reads <what>
    Given a command's API with {"latency": 3}
    And a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    And a COMMIT that has "<words>" fails by "lose_answer"
    When a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the fault has happened
    And the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"

    Examples:
      | what         | words                     |
      | its progress | batches.ended - coalesce  |
      | its results  | THEN results.raw          |
      | its costs    | sum(results.web_searches) |

  Scenario Outline: A command that begins while its server restarts waits for it: <words>
    Given a proxy before the PostgreSQL server
    And a command's file "prompts.jsonl" of 3 prompts
    When the next 3 connections to the PostgreSQL server are refused: <words>
    And a command runs: run actor.yaml prompts.jsonl -o out.jsonl
    Then the command line exits with <code>
    And the API has been paid <paid> times, never twice for the same

    Examples:
      | words                                            | code | paid |
      | the database system is starting up               | 0    | 3    |
      | the database system is not accepting connections | 3    | 0    |

  Scenario: The server restarts while a run waits
    Given a command's API with {"latency": 3}
    And a ledger on that server
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs while the server restarts "immediate": run actor.yaml prompts.jsonl -o out.jsonl --settling 1s
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice

  @slow
  Scenario Outline: A command that is ended while its server is down ends within seconds: <command>
    Given a command's API with {"latency": 60}
    When this program runs
      """
      import os, signal, subprocess, sys, time
      import psycopg

      with cb.ClaudeBatchProvider(drive=False) as provider:
          provider.store(asker, ["one"])
      command = subprocess.Popen(
          [sys.executable, "-m", "claude_batch", *"<command>".split()],
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
      )
      said = ""
      while "<ready>" not in said:
          said += command.stdout.readline() or sys.exit(said)
      with psycopg.connect(os.environ["CLAUDE_BATCH_LEDGER"]) as connection:
          ((pid,),) = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchall()
      os.kill(int(pid.split()[0]), signal.SIGQUIT)
      time.sleep(2)
      begun = time.monotonic()
      command.terminate()
      said = command.stdout.read()
      print(command.wait(), "<words>" in said or said)
      print(time.monotonic() - begun < 15 or said)
      """
    Then the program has printed
      """
      <code> True
      True
      """

    Examples:
      | command                       | ready      | code | words                                                |
      | resume                        | at the API | 3    | parked; continue with: claude-batch resume run-      |
      | worker                        | works on   | 0    | another worker, or the next one, continues its runs  |
      | dashboard --port 0 --no-open  | listening  | 0    |                                                      |

  Scenario Outline: A run waits while its server refuses connections: <why>
    Given a proxy before the PostgreSQL server
    And a command's API with {"latency": 3}
    And a command's file "prompts.jsonl" of 3 prompts
    When a command runs and loses its connections, and the next 20 are refused with "<why>": run actor.yaml prompts.jsonl -o out.jsonl --settling 1s
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has processed 3 requests, none twice

    Examples:
      | why                                      |
      | sorry, too many clients already          |
      | das Datenbanksystem startet gerade       |
      | role "claude" is not permitted to log in |

  Scenario: A worker answers what another process asks, and probes; the next takes over when it is killed
    Given two workers: --health 0
    Then one of them drives, and each says that it works
    When the worker that drives is killed
    Then the other one drives within 15 seconds
    When a command runs: ledger show
    Then the command line prints
      """
      drives workspace 1
      """

  Scenario: A worker that was stopped for too long waits again, and takes over when the other one is killed
    Given two workers: --health 0 --heartbeat 1s --take-over 6s
    Then one of them drives, and each says that it works
    When the worker that drives is stopped until the other one drives
    And the worker that drives is killed
    Then the other one drives within 15 seconds

  Scenario: The workers of a ledger without a run are named
    Given two workers: --health 0
    Then one of them drives, and each says that it works
    When a command runs: status
    Then the command line prints
      """
      no runs yet
      """
    And the command line prints
      """
      : drives workspace 1
      """
    And the command line prints
      """
      : waits
      """

  Scenario: Workers share the tool calls of a run, whichever of them drives, and each call runs once
    Given a command's file "counted.py"
      """
      import os, time


      def look(city: str) -> str:
          "Look at a city."
          with open("calls.txt", "a") as file:
              file.write(f"{os.getpid()}\n")
          time.sleep(1)
          return city
      """
    And a command's file "tools.yaml"
      """
      name: tests/looker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: true
      tools: ["counted:look"]
      """
    And a command's file "asks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      "Look at Bonn [[sandbox:tools]]"
      "Look at Köln [[sandbox:tools]]"
      "Look at Hamm [[sandbox:tools]]"
      """
    And two workers: --tools counted --concurrency 1 --schema claude_batch
    When a command runs: submit tools.yaml asks.jsonl
    Then the run is over within 60 seconds
    And the tool has run 4 times, in 2 workers
    When a command runs: status
    Then the command line prints
      """
      : drives workspace 1
      """
    When a command runs: worker --tools nowhere_to_be_found
    Then the command line exits with 2 and says
      """
      tool nowhere_to_be_found: it cannot be imported
      """

  Scenario Outline: A tool runs once, although the COMMIT that notes its start fails by <fault>
    Given a proxy before the PostgreSQL server
    And a command's file "counted.py"
      """
      def look(city: str) -> str:
          "Look at a city."
          with open("calls.txt", "a") as file:
              file.write("1\n")
          return city
      """
    And a command's file "tools.yaml"
      """
      name: tests/looker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: true
      tools: ["counted:look"]
      """
    And a command's file "asks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      """
    And a COMMIT that has "INTO tool_calls" fails by "<fault>"
    When a command runs: run tools.yaml asks.jsonl -o out.jsonl --max-wait 20s
    Then the fault has happened
    And the command line exits with 0
    And the tool has run 1 times, in 1 workers

    Examples:
      | fault       |
      | lose_answer |
      | lose_commit |

  Scenario Outline: A worker that is killed inside a tool: <what becomes of the call>
    Given a command's file "slow.py"
      """
      import os, time
      import claude_batch as cb


      @cb.tool(repeatable=<repeatable>)
      def look(city: str) -> str:
          "Look at a city."
          with open("calls.txt", "a") as file:
              file.write(f"{os.getpid()}\n")
          time.sleep(4)
          return city
      """
    And a command's file "tools.yaml"
      """
      name: tests/looker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: true
      tools: ["slow:look"]
      """
    And a command's file "asks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      """
    And two workers: --tools slow
    When a command runs: submit tools.yaml asks.jsonl
    And the worker that runs a tool is killed
    Then the run is over within 60 seconds
    And the tool has run <times> times, in <times> workers
    When a command runs: status --json
    Then the command line prints
      """
      "<state>": 1
      """

    Examples:
      | repeatable | what becomes of the call | times | state     |
      | True       | another worker runs it   | 2     | succeeded |
      | False      | it is interrupted        | 1     | stopped   |
