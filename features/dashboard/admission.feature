Feature: Who may see the dashboard
  Its pages show prompts and answers, and the browser that shows them visits other sites too.

  Scenario: A browser is told to forbid what could be smuggled in
    Given a ledger with runs for the dashboard
    And a dashboard of this ledger with {"allowed_hosts": ["dashboard.test"]}
    Then the dashboard's responses are
      | path            | status | gives |
      | /               | 200    | {"content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff", "cache-control": "no-store"}   |
      | /nothing        | 404    | {"content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff", "cache-control": "no-store"}   |
      | /events?since=0 | 200    | {"content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff", "cache-control": "no-store"}   |
      | /static/live.js | 200    | {"content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff"}                                |
    And the dashboard's responses are
      | method | path    | headers                                 | status | words                                  |
      | GET    | /       | {"host": "localhost:1"}                 | 200    |                                        |
      | GET    | /       | {"host": "Dashboard.test"}              | 200    |                                        |
      | GET    | /       | {"host": "rebound.test"}                | 421    | does not serve the host 'rebound.test' |
      | GET    | /events | {"host": "127.0.0.1.rebound.test:8790"} | 421    | does not serve the host                |
      | POST   | /       | {}                                      | 405    |                                        |

  Scenario: With a token, a browser logs in first
    Given a ledger with runs for the dashboard
    And a dashboard of this ledger with {"token": "a-token-of-enough-characters"}
    Then the dashboard's responses are
      | path               | headers                                                    | status | words                     |
      | /                  | {}                                                         | 303    |                           |
      | /events            | {}                                                         | 401    | log in first              |
      | /                  | {"authorization": "Bearer wrong"}                          | 303    |                           |
      | /                  | {"authorization": "Bearer é"}                              | 303    |                           |
      | /                  | {"cookie": "claude_batch_dashboard_<port>=é"}              | 303    |                           |
      | /                  | {"authorization": "Bearer a-token-of-enough-characters"}   | 200    | Overview                  |
      | /login             | {}                                                         | 200    | Token of this dashboard   |
      | /static/live.js    | {}                                                         | 200    | EventSource               |
    And the dashboard's responses are
      | method | path   | form                                      | status | words         | gives                                                      |
      | GET    | /      | {}                                        | 303    |               | {"location": "/login"}                                     |
      | POST   | /login | {"token": "another-token-of-characters"}  | 401    | not the token | {}                                                         |
      | GET    | /      | {}                                        | 303    |               | {"location": "/login"}                                     |
      | POST   | /login | {"token": "a-token-of-enough-characters"} | 303    |               | {"location": "/", "set-cookie": "…HttpOnly…SameSite=strict…"} |
      | GET    | /      | {}                                        | 200    | Overview      | {}                                                         |

  Scenario: A token with other characters than ASCII may be sent in UTF-8 or Latin-1
    Given a ledger with runs for the dashboard
    And a dashboard of this ledger with {"token": "sécret-of-enough-characters"}
    Then the dashboard's responses are
      | path | headers                                                    | status | words    |
      | /    | {"authorization": "Bearer sÃ©cret-of-enough-characters"}   | 200    | Overview |
      | /    | {"authorization": "Bearer sécret-of-enough-characters"}    | 200    | Overview |
      | /    | {"authorization": "Basic sécret-of-enough-characters"}     | 303    |          |
      | /    | {"authorization": "Bearer s?cret-of-enough-characters"}    | 303    |          |
      | /    | {"authorization": "Bearer secret-of-enough-characters"}    | 303    |          |

  Scenario: A server's own name may have capital letters
    Given a ledger with runs for the dashboard
    And a dashboard of this ledger with {"host": "0X7F.1", "token": "a-token-of-enough-characters"}
    Then the dashboard's responses are
      | path | headers                   | status | words                         |
      | /    | {"host": "0X7F.1:8790"}   | 303    |                               |
      | /    | {"host": "0x7f.1"}        | 303    |                               |
      | /    | {"host": "0x7f.2"}        | 421    | does not serve the host       |
    Given a dashboard of this ledger with {"host": "LOCALHOST"}
    Then the dashboard's responses are
      | path | headers                   | status | words                         |
      | /    | {"host": "LocalHost:8790"}| 200    | Overview                      |

  Scenario: An address that other machines reach needs a token
    Given a ledger with runs for the dashboard
    Then a dashboard for other machines without a token is refused with "0.0.0.0 can be reached by other machines…add --token TOKEN"
      """
      {"host": "0.0.0.0", "port": 0}
      """
    And a dashboard for other machines without a token is refused with "fewer than 16 characters"
      """
      {"host": "0.0.0.0", "port": 0, "token": "short"}
      """

  Scenario: The libraries in the package are unchanged
    Then the dashboard's libraries are those of the versions that it names

  Scenario: The command serves a sandbox's runs until SIGINT
    When "claude-batch dashboard --sandbox --no-open --port 0" is started
    Then the dashboard's pages say
      | path | words                                |
      | /    | review of abstracts papers/reviewer  |
      | /    | contracts legal/extractor held       |
    And it ends at SIGINT with 0, while a page is open

  Scenario: Downloads that browsers break off leave nothing in the memory of the command
    Given a ledger with runs for the dashboard
      | run   | prompts |
      | knots | <3000>  |
    When "claude-batch dashboard --no-open --port 0" is started
    Then after 200 downloads of "knots" that a browser breaks off, it has taken at most 80 MiB more
    And it ends at SIGINT with 0, while a page is open
