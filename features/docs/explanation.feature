Feature: The explanations agree with the code

  Scenario: A promise names a scenario that exists
    Then the documents' guarantees name scenarios of the features they name

  Scenario: The architecture is that of the package
    Then the documents' table of rooms lists every package
    And the documents' tables are those of the ledger
    And the documents' states are those of the code
