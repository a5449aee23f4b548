Feature: Whatever a server sends ends in an answer or in a named error

  `nox -s fuzz` plays 100,000 mutated answers; here are a few thousand, and what they have found.

  @slow
  Scenario: Mutated answers end in named errors alone
    When 4000 mutated answers are read
    Then nothing but named errors came out

  Scenario Outline: A fault in the checks is found: <fault>
    Given a border where <fault>
    When 3000 mutated answers are read
    Then a case is reported, with what plays it again
    And that case fails again by itself

    Examples:
      | fault                        |
      | text is not checked          |
      | blocks are not checked       |
      | credentials are not replaced |

  Scenario: A success that could not be used later is malformed when it comes
    Then a success with these fields is decoded as follows
      | what                          | fields                                        | disposition |
      | a number out of range         | "content": [{"type": "x", "input": 1e400}]    | malformed   |
      | nested 150 deep               | "content": [{"type": "x", "input": DEEP}]     | malformed   |
      | a text that is none           | "content": [{"type": "text", "text": ["x"]}]  | malformed   |
      | an id that is no text         | "content": [{"type": "x", "id": 5}]           | malformed   |
      | a block without a type        | "content": [{"text": "x"}]                    | malformed   |
      | a lone surrogate out of sight | "content": [{"type": "x", "input": "\ud800"}] | malformed   |

  Scenario: A success with something strange beside its answer is used as it is
    Then a success with these fields is decoded as follows
      | what                        | fields                                                    | disposition |
      | a key that stands twice     | "content": [{"type": "text", "text": 5, "text": "x"}]     | final       |
      | a text of the message's own | "text": null, "content": []                               | final       |
      | a container that is a text  | "container": "x", "content": []                           | final       |
      | a container out of range    | "container": {"id": "c", "n": 1e400}, "content": []       | final       |
      | a block whose text is null  | "content": [{"type": "thinking", "text": null}]           | final       |
      | citations that are none     | "content": [{"type": "text", "text": "", "citations": 5}] | final       |
      | brackets within a text      | "content": [{"type": "text", "text": "BRACKETS"}]         | final       |

  Scenario: What nothing here reads, and the SDK's types cannot hold, is a named error there
    When a success comes with "content": [], "new": 1e400
    Then its message for the SDK raises MissingResultError, and all else is there

  Scenario: A request id that no header can hold is left out
    When an error comes whose request id is "req_٣"
    Then the SDK is answered with that error, and without a request id

  Scenario: A limit that cannot be one holds up no call for ever
    Then after an answer with such a limit of requests the next call leaves within a minute, as follows
      | limit | remaining | leaves |
      | 1e-9  | 0         | yes    |
      | 50    | -1e300    | yes    |
      | 1e300 | 1e-300    | yes    |
      | nan   | inf       | yes    |

  Scenario: A cookie that no header can hold breaks no later call
    Given a server that sets a cookie with the value "caf\xe1"
    When it is asked twice
    Then both calls are answered, and no cookie was sent back

  Scenario: A credential is replaced before a long message is cut
    When an error page comes that repeats the key where its message is cut
    Then no part of the key is in the message

  Scenario: Money is written exactly, below zero too
    Then nano-dollars are written as follows
      | nano           | exact           | short         | rounded    |
      | -1500          | -0.000001500    | -$0.0000015   | -$0.000002 |
      | -1000000000    | -1.000000000    | -$1           | -$1.0000   |
      | 1500           | 0.000001500     | $0.0000015    | $0.000002  |
      | 0              | 0.000000000     | $0            | $0.000000  |
      | 20500000000    | 20.500000000    | $20.50        | $20.50     |
      | 1234567890     | 1.234567890     | $1.23456789   | $1.2346    |
      | 12345000000000 | 12345.000000000 | $12,345       | $12,345.00 |
      | -12345678      | -0.012345678    | -$0.012345678 | -$0.0123   |
