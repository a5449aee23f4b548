Feature: Answers that cite their documents

  Scenario: An answer lists what it cites
    Given an API
    And a batch provider
    When a question about a cited text "The sky is blue." titled "Sky" is asked
    Then the answer cites "The sky is blue." of "Sky", characters 0 to 16

  Scenario: A shape and citations together give the object, and each field's citations
    Given an API
    And a batch provider
    When a question about a cited text "Receipt 7" titled "R" is asked for as Receipt in every way
    Then every answer is an object of Receipt
    And every field of every answer cites "Receipt 7" of "R"

  Scenario: A PDF's fields are cited by page
    Given an API
    And a batch provider
    And the documents
      | file        | content |
      | receipt.pdf | pdf     |
    When "What was paid?" about "receipt.pdf" is asked for as Receipt, with citations
    Then every answer is an object of Receipt
    And every field cites page 1 of "receipt.pdf"
