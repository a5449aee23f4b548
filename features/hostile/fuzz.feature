Feature: Whatever a server sends ends in an answer or in a named error

  `nox -s fuzz` plays 100,000 mutated answers; here are a few thousand, and what they have found.

  @slow
  Scenario: Mutated answers end in named errors alone, and a fault in the checks is found
    Then mutated answers are read, and end in named errors, or in a case that can be played again, as follows
      | fault                        | answers | failures |
      | none                         | 4000    | 0        |
      | text is not checked          | 3000    | 1        |
      | blocks are not checked       | 3000    | 1        |
      | credentials are not replaced | 3000    | 1        |

  Scenario: A success that could not be used later is malformed when it comes
    Then a success with these fields is decoded as follows
      | what                          | fields                                                  | disposition |
      | a number out of range         | "content": [{"type": "x", "input": 1e400}]              | malformed   |
      | nested 150 deep               | "content": [{"type": "x", "input": DEEP}]               | malformed   |
      | a text that is none           | "content": [{"type": "text", "text": ["x"]}]            | malformed   |
      | an id that is no text         | "content": [{"type": "tool_use", "id": 5, "name": "x"}] | malformed   |
      | a block without a type        | "content": [{"text": "x"}]                              | malformed   |
      | a lone surrogate out of sight | "content": [{"type": "x", "input": "\ud800"}]           | malformed   |

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

  Scenario: A value that claude-batch does not read, and the SDK's types cannot hold, is a named error there
    Then a success with these fields is read with the SDK's types as follows
      | fields                       | text | tokens | kind                 | says            |
      | "content": [], "new": 1e400  |      | 87     | MalformedAnswerError | …out of range…  |
      | "content": [], "new": 1e300  |      | 87     | Message              |                 |

  Scenario: A request id that no header can hold is left out
    Then the SDK is answered with an error that came with a request id as follows
      | request id | status | header |
      | req_٣      | 400    |        |
      | req_3      | 400    | req_3  |

  Scenario: A limit that cannot be one holds up no call for ever
    Then after an answer with such a limit of requests the next call leaves within a minute, as follows
      | limit | remaining | leaves |
      | 1e-9  | 0         | yes    |
      | 50    | -1e300    | yes    |
      | 1e300 | 1e-300    | yes    |
      | nan   | inf       | yes    |

  Scenario: A cookie that no header can hold breaks no later call
    Then calls after an answer with a cookie are made as follows
      | cookie | answered | cookies |
      | café   | 2        | 0       |
      | cafe   | 2        | 0       |

  Scenario: A credential is replaced before a long message is cut
    Then an error page that repeats the key has a message as follows
      | letters before | blanks before | begins     | has the key |
      | 1              | 0             | …x…        | no          |
      | 180            | 0             | …xxx…      | no          |
      | 1              | 1980          | …x…        | no          |
      | 1              | 2040          | …x…        | no          |
      | 1              | 2200          | …x…        | no          |
      | 1              | 2360          | …x…        | no          |

  Scenario: Money is written exactly, below zero too
    Then nano-dollars are written as follows
      | nano           | exact           | short         | rounded    |
      | -1500          | -0.000001500    | -$0.0000015   | -$0.000002 |
      | -1000000000    | -1.000000000    | -$1           | -$1.0000   |
      | 1500           | 0.000001500     | $0.0000015    | $0.000002  |
      | 0              | 0.000000000     | $0            | $0.00      |
      | 20500000000    | 20.500000000    | $20.50        | $20.50     |
      | 1234567890     | 1.234567890     | $1.23456789   | $1.2346    |
      | 12345000000000 | 12345.000000000 | $12,345       | $12,345.00 |
      | -12345678      | -0.012345678    | -$0.012345678 | -$0.0123   |
