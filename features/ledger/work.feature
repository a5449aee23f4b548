Feature: A request more costs three rows, and neither a transaction nor a call of its own

  The work of a run of 3,000 prompts, less that of a run of 1,000, is the work of 2,000 requests. Counts depend on no
  machine, so they find a statement more for each request where measured seconds would not.

  Scenario: A thousand prompts more are a few transactions and API calls, and three rows each
    Given an API
    When the work of a run of 1000 prompts is counted
    And the work of a run of 3000 prompts is counted
    Then a thousand prompts more take at most
      | work               | times |
      | write transactions | 5     |
      | writing statements | 50    |
      | reading statements | 500   |
      | API calls          | 5     |
