@every_python
Feature: Answers in a shape: asked for as a schema, and validated

  Scenario: Every way of asking gives validated objects
    Given an API
    And a batch provider
    When "an invoice" is asked for as Invoice in every way
    Then every answer is an object of Invoice
    And the API was asked for a schema and for no tool

  Scenario: A live actor gives them too
    Given an API
    And a live actor
    When "an invoice" is asked for as Invoice, live
    Then every answer is an object of Invoice

  Scenario: What does not validate is a failed result beside the others, after a resume too
    Given an API whose model answers as it is told
    And a batch provider
    When a run of these prompts is submitted as Picky
      | prompt                                     |
      | say: {"number": "12", "total": 3.5}        |
      | say: {"number": "twelve", "total": 3.5}    |
      | say: {"number": "12", "total": "a lot"}    |
      | say: sorry                                 |
    Then the run's results are
      | is                                         |
      | {"number": "12", "total": 3.5}             |
      | number: Value error, has other characters  |
      | total: Input should be a valid number      |
      | Invalid JSON                               |
    And another provider's results of the run, read as Flat, are
      | is                                         |
      | {"number": "12", "total": 3.5}             |
      | {"number": "twelve", "total": 3.5}         |
      | total: Input should be a valid number      |
      | Invalid JSON                               |

  Scenario: An answer that was cut short says so
    Given an API
    And a batch provider
    When "an invoice" is asked for as Invoice, with at most 10 tokens
    Then the answer is no valid output, since "it was truncated (max_tokens)", and its text is there

  Scenario: A shape that the API cannot take is refused before anything is stored
    Given an API
    And a batch provider
    Then asking for Book is refused, and nothing was stored

  Scenario: The same key asked for another shape is another request
    Given an API
    And a batch provider
    When "an invoice" is asked for as Invoice with the key "k"
    And "an invoice" is asked for as Flat with the key "k"
    Then every call fails with KeyConflictError
