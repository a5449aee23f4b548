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

  Scenario: The lines of an order are objects, and each of their fields has its citations
    Given an API
    And a batch provider
    When a question about a cited text "Order 7" titled "O" is asked for as Order in every way
    Then every answer is an object of Order
    And every answer has citations for number, seller.name, seller.vat, items[0].what, items[0].price, items[0].marks, items[1].what, items[1].price, items[1].marks, payment.kind, payment.number, payment.bank, grid[0], grid[1]
