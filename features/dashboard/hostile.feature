@both_backends
Feature: What users and models wrote cannot do anything on a page
  Prompts, answers, keys and labels are shown as text, whatever they contain.

  Background:
    Given an API whose answers are those of a hostile model
    And a ledger with hostile texts in its prompts, keys, labels and actors
    And a dashboard of this ledger

  Scenario: Scripts, control characters and overrides of the writing direction are text
    Then every page that the dashboard links to is valid HTML with labels
    And no page of the dashboard has an element or a character of the hostile texts
    And the dashboard's pages say
      | path                        | words                                             |
      | /                           | <script>alert('label')</script>                   |
      | /runs/<hostile>             | <img src=x onerror=alert('key')>                  |
      | /runs/<hostile>/requests/1  | prompt <script>alert('prompt')</script>           |
      | /runs/<hostile>/requests/1  | answer <script>alert('answer')</script>           |
      | /runs/<hostile>/requests/1  | \x1b[2J \u202egnp.exe                             |

  Scenario: An answer's Markdown is shown without links to scripts, and without pictures
    Then the answer of request 1 on the dashboard has only links to https, and no picture

  Scenario: An answer of 10 MB is cut on its page, and whole in its download
    Then the page of request 2 on the dashboard has at most 400 KB and takes at most 20 times the CPU of that of request 1
    And the downloads of request 2 on the dashboard are whole
