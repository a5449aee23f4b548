Feature: A request's page shows each block of its prompt and its answer

  Background:
    Given an API whose answers have blocks of several kinds
    And a ledger with a prompt that has blocks of every kind
    And a dashboard of this ledger

  Scenario: Texts, documents, pictures, tools and their results, and what the model thought
    Then the dashboard's pages say
      | path                     | words                        |
      | /runs/<blocks>/requests/1 | Be brief.                   |
      | /runs/<blocks>/requests/1 | a plain text of a document  |
      | /runs/<blocks>/requests/1 | image/png                   |
      | /runs/<blocks>/requests/1 | weather                     |
      | /runs/<blocks>/requests/1 | 21 degrees                  |
      | /runs/<blocks>/requests/1 | I thought about it          |
      | /runs/<blocks>/requests/1 | end_turn                    |
    And every page that the dashboard links to is valid HTML with labels
