@slow @long
Feature: A server that means harm, or is broken, costs one line, one batch or one call

  Background:
    Given a server that means harm, before an API

  Scenario Outline: A success that breaks the API's format ends its own request: <how>
    Given it gives the second of three results <how>
    When three prompts are run
    Then the command line exits with 1
    And the first and the third answer are delivered, and the second is "malformed_answer"
    And results gives the same answers
    And nothing was sent twice

    Examples:
      | how                          |
      | without content              |
      | with a string as content     |
      | with a number as text        |
      | with bytes that are no UTF-8 |
      | with 10 ** 16 tokens         |
      | with fewer than no tokens    |
      | with half a token            |
      | with a lone surrogate        |
      | nested 200,000 deep          |
      | without a message            |
      | with an unknown type         |

  Scenario: Every view of a run shows its malformed answers
    Given a command's folder
    And it gives the second of three results with fewer than no tokens
    When three prompts are run
    Then the first and the third answer are delivered, and the second is "malformed_answer"
    When a command runs: results RUN -o o.csv --results-dir folder
    Then the command line exits with 1
    And the rows of "o.csv" have
      | id    | ok    | error_type       | says       |
      | one   | true  |                  | prompt one |
      | two   | false | malformed_answer |            |
      | three | true  |                  | prompt     |
    And the folder "folder" has the files 000001-one.json, 000002-two.json, 000003-three.json, raw/results.jsonl, summary.json
    When a command runs: cost RUN
    Then the command line exits with 0
    When a command runs: status RUN
    Then the command line prints
      """
      1 malformed, 2 succeeded of 3
      """

  Scenario: A result line that is too long costs its own request alone
    Given it gives the second of three results with a text of a megabyte
    And a limit of 300000 bytes in a result that is kept
    And a batch provider with {"missing_after": 1}
    When a run of these prompts is submitted
      | prompt       |
      | prompt one   |
      | prompt two   |
      | prompt three |
    And the results are read in order
    Then 2 results are answers and 1 are errors
    And result 2 failed with MissingResultError
    And the API has processed 3 requests, none twice

  Scenario Outline: A malformed success is an error with its bytes, and is asked again on order alone: <how>
    Given it gives the second of three results <how>
    And a batch provider with {"max_attempts": 1}
    When a run of these prompts is submitted
      | prompt       |
      | prompt one   |
      | prompt two   |
      | prompt three |
    And the results are read in order
    Then 2 results are answers and 1 are errors
    And result 2 failed with MalformedAnswerError
    And the error is a MalformedAnswerError that says
      """
      billed
      """
    And the error's fields are
      | field   | value     |
      | problem | <problem> |
      | raw     | <raw>     |
    # Its usage can be read, so it is priced like the two others.
    And the run's cost becomes what the API's bill of 3 answers comes to
    When the server means no harm any more
    And the same run is submitted again
    Then it is the same run
    And the API has processed 3 requests, none twice
    When the provider is closed
    And a command runs: status
    And a command runs: retry RUN --only malformed
    Then the command line exits with 0
    And the command line does not say: found answers
    When another provider opens the run
    And the results are read in order
    Then every result is an answer
    And the API has processed 4 requests in all

    Examples:
      | how                  | problem       | raw                       |
      | without content      | "…content…"   | "…\"type\": \"succeeded\"…" |
      | with an unknown type | "…completed…" | "…\"type\": \"completed\"…" |

  Scenario Outline: A strange success whose meaning is certain is understood: <how>
    Given it gives the second of three results <how>
    When three prompts are run
    Then the command line exits with 0
    And nothing was sent twice

    Examples:
      | how              |
      | with 12.0 tokens |
      | without a model  |

  Scenario Outline: A failure is understood, whatever its error looks like: <how>
    Given it gives the second of three results <how>
    When three prompts are run
    Then the command line exits with 1
    And the first and the third answer are delivered, and the second is "invalid_request_error"
    And results gives the same answers
    And nothing was sent twice

    Examples:
      | how                       |
      | with a list as details    |
      | with a string as details  |
      | with an error nested once |

  Scenario: Counts of a batch that are written as floats or strings are understood
    Given it answers the first 1000 retrieve calls with counts as floats and strings
    When three prompts are run
    Then the command line exits with 0
    And nothing was sent twice

  Scenario Outline: A missing result is not sent again if the counts do not prove that it is unpaid: <what>
    Given the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1, 2, 3, 4, 5],
                  "action": {"type": "missing_lines", "after_lines": 1, "count": 2}}]}
      """
    And it answers the first 1000 retrieve calls with <what>
    When three prompts are run
    Then the command line exits with 0
    And nothing was sent twice

    Examples:
      | what                          |
      | no counts                     |
      | null counts                   |
      | counts below zero             |
      | counts of a batch in progress |

  Scenario: A batch whose counts do not add up is read again, and then proves a failure
    Given the API has the faults
      """
      {"rules": [{"route": "results", "nth": [1, 2, 3], "action": {"type": "missing_lines", "count": 1}}],
       "requests": [{"contains": "prompt", "outcome": "expired", "once": true}]}
      """
    And it answers the first 1000 retrieve calls with old counts at first
    When three prompts are run
    Then the command line exits with 0

  Scenario: A batch that counts more outcomes than requests is read again, and then hides no success
    Given the API has the faults
      """
      {"requests": [{"contains": "prompt", "outcome": "expired", "once": true}]}
      """
    And it answers the first 1000 retrieve calls with 3 successes too many at first
    When three prompts are run
    Then the command line exits with 0

  Scenario Outline: A new batch without readable counts is accepted: <what>
    Given it answers the first 1000 create calls with <what>
    And a batch provider with {"settling": 3600, "max_wait": 30}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then every result is an answer
    And the API has processed 3 requests, none twice

    Examples:
      | what              |
      | no counts         |
      | null counts       |
      | counts below zero |

  Scenario Outline: An id that is none never becomes a path: <id>
    Given it gives every new batch the id <id>
    When three prompts are run
    Then the command line exits with 0
    And no request went anywhere but to the batch endpoints
    And nothing was sent twice

    Examples:
      | id                         |
      | with ../ and a question    |
      | with control characters    |
      | of five million characters |

  Scenario: An id that another batch has already is no id, and nothing is sent twice for it
    Given it gives every new batch the id of the first one
    When two prompts are run with --max-requests 1 --max-wait 20s
    Then the command line exits with 1
    And the first answer is delivered, and the second is "submission_unknown"
    When the server means no harm any more
    And the run is resumed
    Then nothing was sent twice

  Scenario Outline: A body that cannot be read is requested again: <what>
    Given it answers the first 3 <calls> calls with <what>
    When three prompts are run
    Then the command line exits with 0
    And nothing was sent twice

    Examples:
      | calls    | what                       |
      | list     | JSON nested 200,000 deep   |
      | retrieve | JSON nested 200,000 deep   |
      | list     | an error nested deep       |
      | list     | a date of the year 99999   |
      | retrieve | a date of the year 99999   |
      | list     | a wait of 1e400 seconds    |
      | list     | counts of 10 ** 30         |
      | retrieve | counts below zero          |
      | retrieve | another batch's id         |
      | results  | a stream of somebody's gzip |

  Scenario Outline: A body that does not end is cut off, in bounded memory: <what>
    Given it answers the first <count> <calls> calls with <what>
    When three prompts are run
    Then the command line exits with 0
    And it used less than 400 MB of memory
    And nothing was sent twice

    Examples:
      | count | calls    | what                          |
      | 1     | list     | a gigabyte of zeros, compressed |
      | 1     | list     | an error of a gigabyte, compressed |
      | 1     | list     | a page that repeats itself    |
      | 1     | results  | a line that does not end      |
      | 1     | results  | lines that do not end         |

  Scenario Outline: --max-wait ends the command, whatever the server does: <what>
    Given it answers the first 1000 <calls> calls with <what>
    When three prompts are run with --max-wait 3s
    Then the command line exits with 3

    Examples:
      | calls    | what                        |
      | list     | a byte now and then         |
      | retrieve | a byte now and then         |
      | results  | a byte now and then         |
      | list     | a 100 Continue now and then |
      | list     | pages that do not end       |

  Scenario Outline: A credential that the server echoes is neither shown nor kept: <what>
    Given it answers the first 1000 <calls> calls with <what>
    When three prompts are run with --max-wait 3s --mode <mode>
    Then the key is neither on the screen nor in the ledger

    Examples:
      | calls   | mode  | what                           |
      | list    | batch | a 401 that has the key         |
      | list    | batch | a page that has the key        |
      | create  | batch | a redirect to a URL with the key |
      | results | batch | errors that have the key       |
      | results | batch | texts that have the key        |
      | live    | live  | a 400 that has the key         |

  Scenario Outline: A gateway's key in a header of one's own is neither shown nor kept: <mode>
    Given a command's environment has ANTHROPIC_CUSTOM_HEADERS = X-Gateway-Key: gw-open-sesame-42
    And it answers the first 1000 <calls> calls with a 400 that has the gateway's key
    When three prompts are run with --max-wait 3s --mode <mode>
    Then the gateway's key is neither on the screen nor in the ledger

    Examples:
      | calls  | mode  |
      | list   | batch |
      | create | batch |
      | live   | live  |

  Scenario: A base URL with a password is used, and not kept
    When three prompts are run with --base-url http://ali:open-sesame-42@HOST
    Then the command line exits with 0
    And the password is neither on the screen nor in the ledger

  Scenario: A key that leaves this machine unencrypted is warned of once
    Then clients of these URLs warn as follows
      | urls                                                                       | warnings | says                       |
      | ["http://gateway.example", "http://127.0.0.1:9", "http://gateway.example"] | 1        | …//gateway.example is not… |
      | ["https://gateway.example"]                                                | 0        |                            |
