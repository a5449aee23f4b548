@both_backends
Feature: What users and models wrote cannot do anything on a page
  Prompts, answers, keys and labels are shown as text, whatever they contain.

  Background:
    Given a ledger with hostile texts in its prompts, answers, keys, labels and actors
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
    Then the Markdown of answers has links and elements as follows
      | request | links                                                                     | elements                                                              |
      | 1       | ["https://a.test/", "https://b.test/", "https://evil.test/who-reads.png"] | ["a", "code", "h3", "p", "table", "tbody", "td", "th", "thead", "tr"] |

  Scenario: A long answer, of one block or of many, is cut on its page, and whole in its download
    Then the page of request 2 on the dashboard has at most 400 KB and takes at most 20 times the CPU of that of request 1
    And the page of request 4 on the dashboard has at most 400 KB and takes at most 60 times the CPU of that of request 3
    And the dashboard's responses are
      | path                                     | status | megabytes | words                             | gives                                                  |
      | /runs/<hostile>/requests/2/result-1.json | 200    | 10        | {"custom_id"                      | {"content-disposition": "attachment; …"}               |
      | /runs/<hostile>/results.jsonl            | 200    |           | "ok":true…"ok":true…"ok":false    | {}                                                     |
      | /runs/<hostile>/results.csv              | 200    |           | id,ok,                            | {"content-type": "text/csv…"}                          |
