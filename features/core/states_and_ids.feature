@every_python
Feature: States and ids say what they mean

  Scenario: A request is final unless it is queued, held, packed or between two turns
    Then a state of a request is final as follows
      | state      | final |
      | queued     | no    |
      | held       | no    |
      | packed     | no    |
      | continuing | no    |
      | succeeded  | yes   |
      | errored    | yes   |
      | canceled   | yes   |
      | expired    | yes   |
      | lost       | yes   |
      | refused    | yes   |
      | window_exceeded | yes   |
      | stopped    | yes   |
      | malformed  | yes   |

  Scenario: Ids have the forms that the protocol names, and those of requests an order
    Then a hundred new ids are made as follows
      | id                                | form                       | distinct | sorted |
      | a request                         | [0-9a-f]{32}               | 100      | yes    |
      | requests that are stored together | [0-9a-f]{24}000000[0-9a-f]{2} | 100   | yes    |
      | a run                             | run-[0-9a-hjkmnp-tv-z]{10} | 100      | no     |
      | an incarnation                    | [0-9a-f]{8}                | 100      | no     |

  Scenario: The requests of a batch are found by their ids, and no other
    Then a batch of rows 1 to 100 without 50, and of row 200, has the row as follows
      | id                                    | row  |
      | of row 1                              | 1    |
      | of row 49                             | 49   |
      | of row 50, which has left             | none |
      | of row 51                             | 51   |
      | of row 100                            | 100  |
      | of row 101, which is in another batch | none |
      | of row 200, in the older form         | 200  |
      | of row 91 in capitals                 | none |
      | of row 1 with an underscore           | none |
      | of another request                    | none |

  Scenario: The ids of a large batch need little memory
    Then the row numbers of 100,000 requests take less memory than a megabyte as follows
      | stored              | less |
      | together            | yes  |
      | a hundred at a time | yes  |
