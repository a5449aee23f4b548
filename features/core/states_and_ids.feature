@every_python
Feature: States and ids say what they mean

  Scenario: A request is final unless it is queued, held, packed or between two turns
    Then the request states that are not final are "queued, held, packed, continuing"

  Scenario: Ids have the forms that the protocol names
    Then 100 new ids are distinct and have the form
      | id          | form                       |
      | request     | [0-9a-f]{32}               |
      | run         | run-[0-9a-hjkmnp-tv-z]{10} |
      | incarnation | [0-9a-f]{8}                |
    And request ids are in the order in which they were made
