@every_python
Feature: States and ids say what they mean

  Scenario: a request is final unless it is queued, held, packed or between two turns
    Then the request states that are not final are "queued, held, packed, continuing"

  Scenario: ids have the forms that the protocol names
    Then 100 new request ids are 32 hex digits, distinct and in order
    And 100 new run ids are distinct, and people can type them
    And an incarnation is 8 hex digits, and two differ
