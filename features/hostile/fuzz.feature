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

  Scenario Outline: A success that could not be used later is malformed when it comes: <what>
    When a success comes whose content is <content>
    Then it is malformed, in a batch and live

    Examples:
      | what                          | content                            |
      | a number out of range         | [{"type": "x", "input": 1e400}]    |
      | nested 150 deep               | [{"type": "x", "input": DEEP}]     |
      | a text that is none           | [{"type": "text", "text": ["x"]}]  |
      | an id that is no text         | [{"type": "x", "id": 5}]           |
      | a block without a type        | [{"text": "x"}]                    |
      | a lone surrogate out of sight | [{"type": "x", "input": "\ud800"}] |

  Scenario Outline: A success with something strange beside its answer is used as it is: <what>
    When a success comes with <fields>
    Then it is an answer in every form

    Examples:
      | what                        | fields                                                    |
      | a key that stands twice     | "content": [{"type": "text", "text": 5, "text": "x"}]     |
      | a text of the message's own | "text": null, "content": []                               |
      | a container that is a text  | "container": "x", "content": []                           |
      | a container out of range    | "container": {"id": "c", "n": 1e400}, "content": []       |
      | a block whose text is null  | "content": [{"type": "thinking", "text": null}]           |
      | citations that are none     | "content": [{"type": "text", "text": "", "citations": 5}] |
      | brackets within a text      | "content": [{"type": "text", "text": "BRACKETS"}]         |

  Scenario: What nothing here reads, and the SDK's types cannot hold, is a named error there
    When a success comes with "content": [], "new": 1e400
    Then its message for the SDK raises MissingResultError, and all else is there

  Scenario: A request id that no header can hold is left out
    When an error comes whose request id is "req_٣"
    Then the SDK is answered with that error, and without a request id

  Scenario Outline: A limit that cannot be one holds up no call for ever: <limit>, <remaining>
    When an answer says that the limit of requests is <limit>, with <remaining> left
    Then the next call leaves within a minute

    Examples:
      | limit | remaining |
      | 1e-9  | 0         |
      | 50    | -1e300    |
      | 1e300 | 1e-300    |
      | nan   | inf       |

  Scenario: A cookie that no header can hold breaks no later call
    Given a server that sets a cookie with the value "caf\xe1"
    When it is asked twice
    Then both calls are answered, and no cookie was sent back

  Scenario: A credential is replaced before a long message is cut
    When an error page comes that repeats the key where its message is cut
    Then no part of the key is in the message

  Scenario: Money is written exactly, below zero too
    Then nano-dollars are written in an output line as follows
      | nano        | dollars      |
      | -1500       | -0.000001500 |
      | -1000000000 | -1.000000000 |
      | 1500        | 0.000001500  |
      | 0           | 0.000000000  |
