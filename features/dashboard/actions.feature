@both_backends
Feature: With --allow-actions, pages change runs as the commands do
  Each action is a plain form, which needs no script, and one transaction on the ledger. The process that drives
  the ledger carries it out.

  Scenario: Without --allow-actions, pages have no forms that change anything, and such forms are refused
    Given a ledger with runs for the dashboard
      | run   | prompts           |
      | knots | ["Name a knot."]  |
    And a dashboard of this ledger
    Then no page of the dashboard says
      | path                  | words             |
      | /                     | Cancel this run   |
      | /runs/<knots>         | Cancel this run   |
      | /runs/<knots>         | Retry             |
      | /runs/<knots>         | Change the budget |
      | /actors/tests%2Fasker | Change the budget |
      | /ledger               | Change the budget |
    And the dashboard's responses are
      | method | path            | form | status | words                     |
      | POST   | /actions/cancel | {}   | 403    | This dashboard only reads |
      | POST   | /actions/other  | {}   | 403    | This dashboard only reads |
      | GET    | /actions/cancel |      | 405    |                           |
      | POST   | /runs/<knots>   | {}   | 405    |                           |
    And the dashboard has written nothing to the ledger

  Scenario: Only forms of the dashboard's own pages are accepted
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Given a dashboard of this ledger with {"allow_actions": true}
    Then the dashboard's responses are
      | method | path            | headers                                             | form                                         | status | words                |
      | POST   | /actions/cancel | {}                                                  | {"run": "<run>"}                             | 403    | This form is refused |
      | POST   | /actions/cancel | {}                                                  | {"run": "<run>", "form_token": "wrong"}      | 403    | This form is refused |
      | POST   | /actions/cancel | {"origin": "https://evil.test"}                     | {"run": "<run>", "form_token": "<token>"}    | 403    | This form is refused |
      | POST   | /actions/cancel | {"origin": "null"}                                  | {"run": "<run>", "form_token": "<token>"}    | 403    | This form is refused |
      | POST   | /actions/cancel | {"sec-fetch-site": "cross-site"}                    | {"run": "<run>", "form_token": "<token>"}    | 403    | This form is refused |
      | POST   | /actions/cancel | {"sec-fetch-site": "same-site"}                     | {"run": "<run>", "form_token": "<token>"}    | 403    | This form is refused |
      | POST   | /actions/cancel | {"host": "rebound.test"}                            | {"run": "<run>", "form_token": "<token>"}    | 421    | does not serve       |
      | POST   | /actions/cancel | {}                                                  | {"run": "<run>", "form_token": "<token>", "more": "<large>"} | 403 | This form is refused |
      | POST   | /actions/other  | {}                                                  | {"run": "<run>", "form_token": "<token>"}    | 404    | There is no such page |
      | POST   | /actions/cancel | {}                                                  | {"run": "run-nothing", "form_token": "<token>"} | 404 | There is no such run |
      | POST   | /actions/budget | {}                                                  | {"budget": "week:", "usd": "1", "form_token": "<token>"} | 400 | names no budget |
      | POST   | /actions/budget | {}                                                  | {"budget": "day:monday", "usd": "1", "form_token": "<token>"} | 400 | names no budget |
      | POST   | /actions/budget | {}                                                  | {"budget": "run:<run>", "usd": "much", "form_token": "<token>"} | 400 | is not an amount in dollars |
      | POST   | /actions/unknown | {}                                                 | {"run": "<run>", "form_token": "<token>"}    | 400    | has no decision      |
    And the status shows 2 requests queued
    And the dashboard has written nothing to the ledger

  Scenario: With a token, a form needs the log-in too
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Given a dashboard of this ledger with {"allow_actions": true, "token": "a-token-of-enough-characters"}
    Then the dashboard's responses are
      | method | path            | form                                      | status | words        |
      | POST   | /actions/cancel | {"run": "<run>", "form_token": "<token>"} | 401    | log in first |
    And the status shows 2 requests queued

  Scenario: Cancel withdraws what is not sent
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Cancel this run" of /runs/<run> is sent
    Then the page that follows says "<run> is cancelled; the results so far are kept."
    And the page that follows says "cancelled 100.0 % 2 of 2 requests ended canceled 2"
    And the status shows 2 requests canceled
    When the form "Cancel this run" of /runs/<run> is sent
    Then the page that follows says "there is nothing to cancel"

  Scenario: The driver of the ledger cancels at the API what a page has cancelled
    Given an API that takes 3600 seconds for a batch
    And a batch provider
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Then a batch of the run becomes in_progress
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Cancel this run" of /runs/<run> is sent
    Then the page that follows says "Its batches are not cancelled at the API yet."
    When the run is waited for
    Then the status shows 2 requests canceled

  Scenario: Commands on the pages name the ledger, if commands use another by default
    Given a ledger with runs for the dashboard
      | run   | prompts                                                                         |
      | knots | ["Name a knot.", "[[sandbox:errored:invalid_request_error:once]] Name two."] |
    And a dashboard of this ledger with {"allow_actions": true}
    And commands use another ledger by default
    When the form "Retry" of /runs/<knots> is sent
    Then the page that follows says "If no process drives the ledger: claude-batch resume <knots> --ledger "

  Scenario: Retry queues failed requests again, and nothing else
    Given a ledger with runs for the dashboard
      | run   | prompts                                                                         |
      | knots | ["Name a knot.", "[[sandbox:errored:invalid_request_error:once]] Name two."] |
    And a dashboard of this ledger with {"allow_actions": true}
    When the form "Retry" of /runs/<knots> is sent
    Then the page that follows says "1 request is queued again. If no process drives the ledger: claude-batch resume <knots>."
    And the dashboard's pages say
      | path          | words                                      |
      | /runs/<knots> | 2 of 2 requests ended succeeded 2          |
    When the form "Retry" of /runs/<knots> is sent
    Then the page that follows says "<knots> has no failed request to retry."

  Scenario: Requests that were cancelled with their run are not queued by a retry
    Given an API
    And a batch provider with {"drive": false}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Cancel this run" of /runs/<run> is sent
    When the form "Retry" of /runs/<run> is sent
    Then the page that follows says "2 requests were cancelled with the run and not queued; claude-batch retry <run> --only canceled sends them."
    And the status shows 2 requests canceled

  Scenario: A raised budget lets held requests go
    Given an API
    And a batch provider with {"budget_usd": "0.000001"}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Then the run's state becomes held
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Set the budget" of /runs/<run> is sent with {"usd": "1.50"}
    Then the page that follows says "<run>: the budget is now $1.5"
    When the run is waited for
    Then the status shows 2 requests succeeded
    When the form "Set the budget" of /runs/<run> is sent with {"usd": "none"}
    Then the page that follows says "<run>: the budget was removed."

  Scenario: Budgets of an actor and of each day are changed too
    Given a ledger with runs for the dashboard
      | run   | prompts           |
      | knots | ["Name a knot."]  |
    And a dashboard of this ledger with {"allow_actions": true}
    When the form "Set the budget" of /actors/tests%2Fasker is sent with {"usd": "20"}
    Then the page that follows says "actor tests/asker: the budget is now $20."
    When the form "Set the budget" of / is sent with {"usd": "$50"}
    Then the page that follows says "each day: the budget is now $50."
    When the form "Set the budget" of / is sent with {"budget": "actor:tests/asker", "usd": "none"}
    Then the dashboard's pages say
      | path | words                          |
      | /    | Each day (UTC) $0.00… of $50 |
    And no page of the dashboard says
      | path | words            |
      | /    | of $20        |

  Scenario Outline: An unknown sending is decided: <button>
    Given an API
    And a batch provider with {"drive": false}
    When a sending of 2 prompts has become unknown
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "<button>" of /runs/<run> is sent with <fields>
    Then the page that follows says "2 requests of <run> <words>"
    And the status shows 2 requests <state>

    Examples:
      | button     | fields          | words                   | state  |
      | Give up    | {}              | ended without an answer | lost   |
      | Send again | {"sure": "yes"} | queued again            | queued |

  Scenario: Unknown requests of a cancelled run are not sent again, and the page says why
    Given an API
    And a batch provider with {"drive": false}
    When a sending of 2 prompts has become unknown
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Cancel this run" of /runs/<run> is sent
    And the form "Send again" of /runs/<run> is sent with {"sure": "yes"}
    Then the page that follows says "<run> was cancelled, and its batches have not ended. Nothing was sent again."
    And the run's batch is still unknown
    When the form "Give up" of /runs/<run> is sent
    Then the page that follows says "2 requests of <run> ended without an answer"

  Scenario: Requests are not sent again without the word that they may be paid for twice
    Given an API
    And a batch provider with {"drive": false}
    When a sending of 2 prompts has become unknown
    Given a dashboard of this ledger with {"allow_actions": true}
    When the form "Send again" of /runs/<run> is sent
    Then the page that follows has the status 400 and says "tick that you accept it"
    And the run's batch is still unknown
    When the form "Give up" of /runs/<run> is sent
    When the form "Send again" of /runs/<run> is sent with {"sure": "yes"}
    Then the page that follows says "2 requests of <run> queued again."
    And the status shows 2 requests queued
