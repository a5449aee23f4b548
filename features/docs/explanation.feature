Feature: The explanations agree with the code

  Scenario: A promise names a scenario that exists
    Then the scenarios and suites that a page names exist, as follows
      | page of docs              | gone |
      | explanation/guarantees.md |      |
      | explanation/security.md   |      |

  Scenario: The architecture is that of the package
    Then the pages agree with the code about
      | subject                        |
      | the packages                   |
      | the tables of the ledger       |
      | the states of the architecture |

  Scenario: No dependency may have a version with a known vulnerability
    Then the pages agree with the code about
      | subject                          |
      | the lower bounds of dependencies |
