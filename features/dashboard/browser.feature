@browser
Feature: The dashboard in a real browser
  `nox -s browser_tests` plays these scenarios with the Chromium that the machine has.

  Scenario: One command shows a run of 10,000 requests that grows
    When "claude-batch dashboard --sandbox --no-open --port 0" is started
    Then a browser follows the run "review of abstracts" of 10,000 requests, and its page

  Scenario: axe-core finds no serious fault on any page, at both widths, in both themes
    Given a ledger with runs for the dashboard
      | run     | prompts                                                                          |
      | knots   | ["Name a knot.", "[[sandbox:errored:invalid_request_error]] fail", "Name two."] |
      | letters | <many>                                                                           |
    And a dashboard of this ledger with {"allow_actions": true}
    When a ledger has trouble: its account has no credit
    Then the dashboard's pages say
      | path | words              |
      | /    | Sending is halted  |
    And axe-core finds no serious fault, and nothing is wider than the window, on
      | path                     |
      | /                        |
      | /runs/<knots>            |
      | /runs/<letters>          |
      | /runs/<letters>?key=none |
      | /runs/<knots>/requests/1 |
      | /runs/<knots>/requests/2 |
      | /actors                  |
      | /actors/tests%2Fasker    |
      | /costs                   |
      | /ledger                  |
      | /nothing                 |

  Scenario: axe-core finds no serious fault on the page of a ledger that a fleet uses
    Given a PostgreSQL server
    And a command's API with {"latency": 3600}
    And a ledger on that server
    And a command's file "prompts.jsonl" of 3 prompts
    And two workers: --health 0
    Then one of them drives, and each says that it works
    When a command runs: submit actor.yaml prompts.jsonl
    Given a dashboard of this ledger
    Then the dashboard names the 2 workers that live, and the one that drives
    And axe-core finds no serious fault, and nothing is wider than the window, on
      | path    |
      | /ledger |

  Scenario: axe-core finds no serious fault on the page that asks for the token
    Given a ledger with runs for the dashboard
    And a dashboard of this ledger with {"token": "a-token-of-enough-characters"}
    Then axe-core finds no serious fault, and nothing is wider than the window, on
      | path   |
      | /login |
    And a browser logs in with the token

  Scenario Outline: Forms work with the keyboard alone, <scripts> scripts
    Given a ledger with runs for the dashboard
      | run   | prompts           |
      | knots | ["Name a knot."]  |
    And a dashboard of this ledger with {"allow_actions": true}
    Then a person with a keyboard sets the budget of <knots> to $7, <scripts> scripts

    Examples:
      | scripts |
      | with    |
      | without |
