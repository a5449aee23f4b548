@every_python
Feature: Live calls leave as fast as the API allows, and no faster
  The pace is pure: these scenarios give it the time.

  Scenario: without any answer only the bound of the caller holds
    Given a pace, and callers that have at most 3 calls under way
    When 5 calls ask to leave at second 0
    Then 3 of them left, and the others wait for a call to end
    When a call is answered at second 1
    And 2 calls ask to leave at second 1
    Then 1 of them left, and the others wait for a call to end

  Scenario: what is left of a minute's requests is waited for
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit | remaining |
      | requests | 60    | 2         |
    And 4 calls ask to leave at second 0
    Then 2 of them left, and the others wait 1 seconds
    When 2 calls ask to leave at second 1
    Then 1 of them left, and the others wait 1 seconds

  Scenario: calls that left before a limit was known may not be counted in what is left
    Given a pace, and callers that have at most 8 calls under way
    When 3 calls ask to leave at second 0
    And a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit | remaining |
      | requests | 60    | 4         |
    And 4 calls ask to leave at second 0
    Then 1 of them left, and the others wait 1 seconds

  Scenario: the tokens of a call are guessed before it, and corrected after it
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name         | limit | remaining |
      | input-tokens | 6000  | 1500      |
    And 2 calls of 4000 bytes ask to leave at second 0
    Then 1 of them left, and the others wait 5 seconds
    When a call is answered at second 0 with 100 input and 0 output tokens
    And 1 call of 4000 bytes asks to leave at second 0
    Then 1 of them left

  Scenario: the length of answers is learned from the last ones
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with 300 output tokens and the limits
      | name          | limit | remaining |
      | output-tokens | 600   | 600       |
    And 4 calls ask to leave at second 0
    Then 2 of them left, and the others wait 30 seconds

  Scenario: a request that is larger than a whole limit leaves when the limit is free
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name         | limit | remaining |
      | input-tokens | 600   | 0         |
    And 1 call of 40000 bytes asks to leave at second 0
    Then 0 of them left, and the others wait 60 seconds
    When 1 call of 40000 bytes asks to leave at second 60
    Then 1 of them left

  Scenario: a limit is free again when the API says so, even if others were quicker than thought
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit | remaining | reset in |
      | requests | 6     | 0         | 4        |
    And 1 call asks to leave at second 0
    Then 0 of them left, and the others wait 5 seconds
    When 6 calls ask to leave at second 5
    Then 6 of them left

  Scenario: less that is left than thought is believed, more is not
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit | remaining |
      | requests | 60    | 1         |
    And a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit | remaining |
      | requests | 60    | 50        |
    And 1 call asks to leave at second 0
    Then 0 of them left, and the others wait 1 seconds

  Scenario: where one limit holds for all tokens it is kept too
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name   | limit | remaining |
      | tokens | 600   | 0         |
    And 1 call of 40 bytes asks to leave at second 0
    Then 0 of them left, and the others wait 1 seconds

  Scenario Outline: headers that say nothing are passed over
    Given a pace, and callers that have at most 100 calls under way
    When a call leaves at second 0, and is answered at second 0 with the limits
      | name     | limit   | remaining   |
      | requests | <limit> | <remaining> |
    And 3 calls ask to leave at second 0
    Then 3 of them left

    Examples:
      | limit | remaining |
      | none  | 0         |
      | many  | 0         |
      | 0     | 0         |
      | inf   | 0         |
      | 60    | none      |
      | 60    | few       |

  Scenario: after a 429 all pause together, and start again one by one
    Given a pace, and callers that have at most 8 calls under way
    When 8 calls ask to leave at second 0
    And 8 calls are refused at second 1 with retry-after 10
    And 8 calls ask to leave at second 2
    Then 0 of them left, and the others wait 9 seconds
    When 8 calls ask to leave at second 11
    Then 1 of them left, and the others wait for a call to end
    When a call is answered at second 12
    And 8 calls ask to leave at second 12
    Then 2 of them left, and the others wait for a call to end
    When 2 calls are answered at second 13
    And 8 calls ask to leave at second 13
    Then 4 of them left, and the others wait for a call to end
    When 4 calls are answered at second 14
    And 8 calls ask to leave at second 14
    Then 4 of them left, and the others wait for a call to end

  Scenario: a refusal without retry-after pauses longer each time, and an answer ends that
    Then after each of these calls the next one waits as follows
      | calls                                                                          | seconds                  |
      | refused refused refused refused refused refused refused refused                | 1 2 4 8 16 32 60 60      |
      | refused refused refused refused answered refused refused                       | 1 2 4 8 0 1 2            |

  Scenario: late refusals and answers of calls that left before a pause do not count for what follows
    Given a pace, and callers that have at most 4 calls under way
    When 4 calls ask to leave at second 0
    And 1 call is refused at second 1 with retry-after 5
    And 1 call is refused at second 2 with retry-after none
    And 1 call is answered at second 3
    And 4 calls ask to leave at second 4
    Then 0 of them left, and the others wait for a call to end
    When 1 call is answered at second 5
    And 4 calls ask to leave at second 5
    Then 0 of them left, and the others wait 1 seconds
    When 4 calls ask to leave at second 6
    Then 1 of them left, and the others wait for a call to end

  Scenario: a late refusal does not extend the pause that a function has decided
    Given a pace, and callers that have at most 4 calls under way
    When 4 calls ask to leave at second 0
    And a call is refused at second 1, and a function ends the pause at second 3
    And 3 calls are refused at second 2 with retry-after 60
    And 2 calls ask to leave at second 2
    Then 0 of them left, and the others wait 1 seconds

  Scenario: a call that fails otherwise makes room, and one that never left takes nothing
    Then after each of these calls the next one waits as follows
      | left of 60 a minute | calls                | seconds |
      | 2                   | unused unused unused | 0 0 0   |
      | 2                   | failed failed        | 0 1     |
      | 2                   | failed unused failed | 0 0 1   |

  Scenario: against a server with limits calls lose neither time nor a turn, and a refusal starts no stampede
    Then calls of a pace, at most 50 under way, are answered as follows
      | calls | a minute | left | for others | refused | seconds | at once after a refusal |
      | 1000  | 600      | 60   | 0          | 0       | 96      | 0                       |
      | 500   | 600      | 20   | 0.5        | 27      | 98      | 1                       |

  Scenario: one pace serves all calls of a process to one model with one key
    Then a call has the pace of one to http://a with the key k and the model m as follows
      | server   | key   | model | when                        | has it |
      | http://a | k     | m     | meanwhile                   | yes    |
      | http://b | k     | m     | meanwhile                   | no     |
      | http://a | other | m     | meanwhile                   | no     |
      | http://a | k     | n     | meanwhile                   | no     |
      | http://a | k     | m     | in a forked child           | no     |
      | http://a | k     | m     | once nobody has it any more | no     |

  Scenario: A client forgets the paces that were not used for longest, but none of a call under way
    Given a limit of 3 paces that a client remembers
    Then a client has paces of models as follows
      | calls     | under way | paces |
      | a b       |           | a b   |
      | a b c d   |           | b c d |
      | a b c a d |           | c a d |
      | a b c d   | a         | a c d |

  Scenario: The user's own limits hold in every minute
    Then after the calls of a log one more waits as follows
      | log                      | second | requests | tokens | bytes | max tokens | wait |
      | []                       | 0      | 1        |        | 4     | 10         | 0    |
      | [[0, 2, 0]]              | 10     | 2        |        | 4     | 10         | 50   |
      | [[0, 2, 0]]              | 60     | 2        |        | 4     | 10         | 0    |
      | [[0, 1, 0], [5, 1, 0]]   | 10     | 2        |        | 4     | 10         | 50   |
      | [[0, 1, 0], [5, 2, 0]]   | 10     | 2        |        | 4     | 10         | 55   |
      | [[0, 9, 0]]              | 10     |          | 100    | 4     | 10         | 0    |
      | [[0, 1, 80]]             | 10     |          | 100    | 40    | 10         | 0    |
      | [[0, 1, 80]]             | 10     |          | 100    | 44    | 10         | 50   |
      | [[0, 1, 80], [9, 1, 20]] | 10     | 5        | 100    | 40    | 10         | 50   |
      | []                       | 0      |          | 100    | 4     | 4000       | 0    |
      | [[0, 1, 1], [9, 1, 1]]   | 10     |          | 100    | 4     | 4000       | 59   |

  Scenario: A call's tokens are corrected by its answer, and a call that is not sent counts nothing
    Then after calls of 40 bytes and at most 80 tokens another one waits for 100 tokens a minute, as follows
      | answers                    | it waits |
      | []                         | no       |
      | [[10, 20]]                 | no       |
      | [[10, 20], null]           | no       |
      | [[10, 20], null, [10, 40]] | yes      |
