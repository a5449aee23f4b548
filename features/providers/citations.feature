Feature: Answers that cite their documents

  Scenario: An answer lists what it cites
    Given an API
    And a batch provider
    And the documents
      | file | content |
      | sky.txt | text The sky is blue. |
    When "What does it say?" about "sky.txt" is asked for as text in every way, with citations
    Then every answer cites
      | text | title | place |
      | The sky is blue. | sky.txt | characters 0 to 16 |

  Scenario: A shape and citations together give the object, and each field's citations
    Given an API
    And a batch provider
    And the documents
      | file | content |
      | receipt.txt | text Receipt 7 |
    When "What does it say?" about "receipt.txt" is asked for as Receipt in every way, with citations
    Then every answer cites
      | field | text | title | place |
      | number   | Receipt 7 | receipt.txt | characters 0 to 9 |
      | issued   | Receipt 7 | receipt.txt | characters 0 to 9 |
      | total    | Receipt 7 | receipt.txt | characters 0 to 9 |
      | currency | Receipt 7 | receipt.txt | characters 0 to 9 |
      | paid     | Receipt 7 | receipt.txt | characters 0 to 9 |
      | tags     | Receipt 7 | receipt.txt | characters 0 to 9 |
      | note     | Receipt 7 | receipt.txt | characters 0 to 9 |
    And every answer is an object of Receipt

  Scenario: A PDF's fields are cited by page
    Given an API
    And a batch provider
    And the documents
      | file | content |
      | receipt.pdf | pdf |
    When "What does it say?" about "receipt.pdf" is asked for as Receipt in every way, with citations
    Then every answer cites
      | field | text | title | place |
      | number   | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | issued   | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | total    | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | currency | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | paid     | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | tags     | The first page of receipt.pdf. | receipt.pdf | page 1 |
      | note     | The first page of receipt.pdf. | receipt.pdf | page 1 |
    And every answer is an object of Receipt

  Scenario: The lines of an order are objects, and each of their fields has its citations
    Given an API
    And a batch provider
    And the documents
      | file | content |
      | order.txt | text Order 7 |
    When "What does it say?" about "order.txt" is asked for as Order in every way, with citations
    Then every answer cites
      | field | text | title | place |
      | number         | Order 7 | order.txt | characters 0 to 7 |
      | seller.name    | Order 7 | order.txt | characters 0 to 7 |
      | seller.vat     | Order 7 | order.txt | characters 0 to 7 |
      | items[0].what  | Order 7 | order.txt | characters 0 to 7 |
      | items[0].price | Order 7 | order.txt | characters 0 to 7 |
      | items[0].marks | Order 7 | order.txt | characters 0 to 7 |
      | items[1].what  | Order 7 | order.txt | characters 0 to 7 |
      | items[1].price | Order 7 | order.txt | characters 0 to 7 |
      | items[1].marks | Order 7 | order.txt | characters 0 to 7 |
      | payment.kind   | Order 7 | order.txt | characters 0 to 7 |
      | payment.number | Order 7 | order.txt | characters 0 to 7 |
      | payment.bank   | Order 7 | order.txt | characters 0 to 7 |
      | grid[0]        | Order 7 | order.txt | characters 0 to 7 |
      | grid[1]        | Order 7 | order.txt | characters 0 to 7 |
    And every answer is an object of Order
