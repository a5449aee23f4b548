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
      | id          | form                       | distinct | sorted |
      | request     | [0-9a-f]{32}               | 100      | yes    |
      | run         | run-[0-9a-hjkmnp-tv-z]{10} | 100      | no     |
      | incarnation | [0-9a-f]{8}                | 100      | no     |
