Feature: A live success that breaks the API's format was paid for: it is kept, and counted

  Background:
    Given a server that means harm, before an API

  Scenario Outline: It ends its request in a MalformedAnswerError, and is in the ledger: <how>
    Given it answers live calls <how>
    When a prompt is asked live through the ledger
    Then the malformed answer has the server's bytes, and so has the ledger
    And its price counts as <cost>
    When a prompt is asked live through the ledger
    Then the error is a MalformedAnswerError
    And the server was asked once

    Examples:
      | how                             | cost        |
      | without content                 | known       |
      | with a string as content        | known       |
      | with a number as text           | known       |
      | with a lone surrogate           | known       |
      | with bytes that are no UTF-8    | known       |
      | with fewer than no tokens       | not known   |
      | without usage                   | not known   |
      | nested 200,000 deep             | not known   |
      | deep, and with a line within    | not known   |

  Scenario: A single call that is malformed is sent again by a call with another key
    Given it answers live calls without content
    And a batch provider with {"mode": "live"}
    When "hello" is asked with the key "k"
    Then every call fails with MalformedAnswerError
    And the error is a MalformedAnswerError that says
      """
      To send the request again, repeat the call with another key, which is billed again
      """

  Scenario Outline: An answer whose usage cannot be read is not reported as one without a price: <how>
    Given it answers live calls <how>
    When a prompt is asked live through the ledger
    And a command runs: cost
    Then the command line prints
      """
      all runs: cost unknown
      1 answer of unknown cost, because the usage cannot be read
      """
    And the command line does not say: without a price
    When a command runs: cost --json
    Then the command line's status as JSON has
      | field            | value |
      | unpriced         | {}    |
      | unreadable_usage | 1     |

    Examples:
      | how                   |
      | without usage         |
      | without output tokens |

  Scenario: An answer with carriage returns is one line of the output for every reader
    Given it answers live calls with carriage returns
    And a command's folder
    And a command's file "asks.jsonl" of 1 prompts
    When a command runs: run --model claude-haiku-4-5 --mode live asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 1 answers in order to "out.jsonl"

  Scenario Outline: A provider without a ledger raises it with the body: <how>
    Given it answers live calls <how>
    When a prompt is asked of a live provider
    Then the malformed answer has the server's bytes
    And the server was asked once

    Examples:
      | how                          |
      | without content              |
      | with a lone surrogate        |
      | with bytes that are no UTF-8 |
      | nested 200,000 deep          |

  Scenario Outline: A success that may not be the API's stays unknown: <what>
    Given it answers live calls with <what>
    When a prompt is asked live through the ledger
    Then the error is a SubmissionUnknownError that says
      """
      http_200: the server answered 200 with something that is not a Message
      """
    And the server was asked once
    When a prompt is asked of a live provider
    Then the error is a LiveRequestError
    And the error's fields are
      | field         | value |
      | may_be_billed | true  |
    And the server was asked once

    Examples:
      | what                        |
      | the page of a proxy         |
      | half a Message              |
      | an object that is no Message |
      | an error in a success       |

  Scenario: A server that answers with pages of a proxy gets no call after the third one
    Given a command's folder
    And it answers live calls with the page of a proxy
    And a command's file "asks.jsonl" of 5 requests that use {"input_tokens": 10, "output_tokens": 200}
    When a command runs: run --model claude-haiku-4-5 --mode live --live-concurrency 1 asks.jsonl
    Then the command line exits with 4 and says
      """
      sending is halted (refused): the server answered 200 with something that is not a Message
      """
    When a command runs: status RUN
    Then the command line prints
      """
      3 lost, 2 queued of 5
      """
