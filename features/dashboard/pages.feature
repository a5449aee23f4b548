@both_backends
Feature: The dashboard's pages show the ledger
  They only read it, and follow it as it changes.

  Background:
    Given a ledger with runs for the dashboard
      | run     | prompts                                                                          |
      | knots   | ["Name a knot.", "[[sandbox:errored:invalid_request_error]] fail", "Name two."] |
      | letters | <many>                                                                           |
    And a dashboard of this ledger

  Scenario: The overview lists runs, what they cost, and what they saved
    Then the dashboard's pages say
      | path | words                                            |
      | /    | knots tests/asker finished 1 failed 3 of 3 $0.00 |
      | /    | letters tests/asker finished 120 of 120 $0.0     |
      | /    | Spent today $0.0…123 results                     |
      | /    | Saved by batches $0.0…the same live              |
    And the dashboard has written nothing to the ledger

  Scenario: A run's page shows its progress, batches, failures and requests
    Then the dashboard's pages say
      | path                             | words                                                      |
      | /runs/<knots>                    | finished 100.0 % 3 of 3 requests ended succeeded 2 errored 1 |
      | /runs/<knots>                    | msgbatch_…collected 3                                      |
      | /runs/<knots>                    | Failures Count Type The API's words Examples 1 invalid_request_error…knots-2 |
      | /runs/<knots>                    | Output tokens Answers…2                                    |
      | /runs/<letters>                  | 50 letters-50 succeeded claude-haiku-4-5                   |
      | /runs/<letters>?after=49         | 51 letters-51 succeeded                                    |
      | /runs/<letters>?after=99         | 120 letters-120 succeeded                                  |
      | /runs/<letters>?key=ERS-77       | 77 letters-77 succeeded                                    |
      | /runs/<knots>?state=errored      | 2 knots-2 invalid_request_error                            |
    And no page of the dashboard says
      | path                        | words      |
      | /runs/<letters>             | letters-51 |
      | /runs/<letters>?after=49    | letters-50 |
      | /runs/<letters>?key=ERS-77  | letters-78 |
      | /runs/<letters>?key=%25     | letters-1  |
      | /runs/<knots>?state=errored | knots-1    |

  Scenario: An actor's page is its own, whatever characters its name has
    Then the dashboard's responses are
      | path                         | status | words                                 |
      | /actors/tests%2Fasker        | 200    | <h1>tests/asker</h1>                  |
      | /actors/tests%2Fasker%23x    | 200    | <h1>tests/asker#x</h1>                |
      | /actors/tests%2Fasker%3Fx    | 200    | hx-get="/actors/tests%2Fasker%3Fx"    |
      | /actors/tests%2Fasker%253F?x | 200    | hx-get="/actors/tests%2Fasker%253F?x" |
      | /actors/tests%2Fasker%23%00  | 404    | There is no such page                 |

  Scenario: A search finds a key with capitals that are not ASCII
    Given a ledger with runs for the dashboard
      | run      | prompts          |
      | ÜBERSICHT_1% | ["Name a knot."] |
    And a dashboard of this ledger
    Then the dashboard's pages say
      | path                                   | words                      |
      | /runs/<ÜBERSICHT_1%>?key=%C3%9CBERS    | 1 ÜBERSICHT_1%-1 succeeded |
      | /runs/<ÜBERSICHT_1%>?key=%C3%9Cbersicht_1%25 | 1 ÜBERSICHT_1%-1 succeeded |
    And no page of the dashboard says
      | path                                   | words                      |
      | /runs/<ÜBERSICHT_1%>?key=%C3%9CBERS__  | ÜBERSICHT_1%-1             |

  Scenario: Pages that do not exist, and addresses that mean nothing
    Then the dashboard's responses are
      | path                       | status | words                                 |
      | /runs/run-nothing          | 404    | There is no such run                  |
      | /nothing                   | 404    | There is no such page                 |
      | /runs/<knots>?state=sunny  | 400    | names no state or no position         |
      | /runs/<knots>?after=sunny  | 400    | names no state or no position         |
      | /static/../run_pages.py    | 404   |                                       |

  Scenario: An open page hears of changes
    Then an open page hears of a run that is added
    And the dashboard's pages say
      | path | words                        |
      | /    | another tests/asker finished |
    And the dashboard has written nothing to the ledger

  Scenario: Sums follow runs that are pruned, and batches that are collected again
    When the oldest run is pruned by its id
    Then the dashboard's pages say
      | path   | words                     |
      | /      | Spent today $0.0…120 results |
      | /costs | Cost $0.0…120 results     |
    When the ledger's results are changed to
      | cost       |
      | 1000000000 |
    And the ledger's batches are changed to
      | collected   |
      | 5 seconds ago |
    Then the dashboard's pages say
      | path   | words                     |
      | /      | Spent today $120…120 results |
      | /runs/<letters> | Cost so far $120…120 results |

  Scenario: A page that is drawn during an update is drawn again after it
    When a run is added, and / is drawn before its update has ended
    And a run is added, and /runs/<knots> is drawn before its update has ended
    Then the dashboard's pages say
      | path | words                        |
      | /    | another tests/asker finished |

  Scenario: Every page is valid HTML, has labels, and nothing inline
    Then every page that the dashboard links to is valid HTML with labels

  Scenario: The overview and the ledger's page say that sending is halted, and how it goes on
    When a ledger has trouble: its account has no credit
    Then the dashboard's pages say
      | path    | words                                                          |
      | /       | Waiting for you Sending is halted http://127.0.0.1…billing…claude-batch resume |
      | /ledger | Waiting for you Sending is halted…claude-batch resume          |
    When a ledger has trouble: it waits for its recovery
    Then the dashboard's pages say
      | path | words                                                          |
      | /    | The ledger must be recovered…claude-batch ledger recover |
    When commands use another ledger by default
    Then the dashboard's pages say
      | path | words                                                                           |
      | /    | The ledger must be recovered…claude-batch ledger recover --ledger          |
      | /    | Budgets None set. claude-batch budget --daily 20 --ledger                  |

  Scenario Outline: A ledger that another process has changed for good: <trouble>
    When a ledger has trouble: <trouble>
    Then the dashboard's pages say
      | path                     | words                                      |
      | /                        | <words>…Overview…knots tests/asker         |
      | /costs                   | <words>…Costs                              |
      | /runs/<knots>            | <words>…finished                           |
      | /runs/<knots>/requests/1 | <words>…Name a knot.                       |

    Examples:
      | trouble                  | words                                      |
      | a later version wrote it | was migrated to schema version 99 by another process; nothing was read. Restart this process |
      | it was moved             | was moved to elsewhere, and is not used any more |

  Scenario: A ledger that cannot be read any more
    When a ledger has trouble: it has lost its tables
    Then the dashboard's pages say
      | path          | words                                            |
      | /             | the ledger…cannot be read…Overview…knots tests/asker finished |
    And the dashboard's responses are
      | path          | status | words                                   |
      | /ledger       | 503    | The ledger cannot be read               |

  Scenario: A run that a budget holds waits for you on the overview, however many runs are newer
    Given a limit of 1 run on the dashboard's first page
    And a batch provider with {"budget_usd": "0.000001"}
    When a run of these prompts is stored
      | prompt |
      | one    |
      | two    |
    Then the run's state becomes held
    When another run is made in a dashboard's ledger
    Then the dashboard's pages say
      | path | words                                                                       |
      | /    | Waiting 2 requests without an outcome…Waiting for you…is held by a budget…Runs |

  Scenario: The overview shows the budgets of its runs, and not those of all earlier ones
    Given a limit of 1 run on the dashboard's first page
    And a batch provider with {"budget_usd": "5"}
    When a run of 1 prompts is submitted
    And the run is waited for
    Then the dashboard's pages say
      | path        | words                |
      | /           | Budgets <run>…of $5  |
      | /runs/<run> | Budget $5…left       |
    When another run is made in a dashboard's ledger
    Then the dashboard's pages say
      | path        | words                            |
      | /           | Budgets None set for these runs. |
      | /runs/<run> | Budget $5…left                   |

  Scenario: A changed key adds no workspace to the page of the ledger
    When a command's key is changed to "sk-rotated"
    And another run is made in a dashboard's ledger
    Then the dashboard's pages say
      | path    | words                           |
      | /ledger | Runs 3 …wrkspc_01SandboxDefault |
    And no page of the dashboard says
      | path    | words       |
      | /ledger | workspace 2 |
