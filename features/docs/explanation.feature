Feature: The explanations agree with the code

  Scenario Outline: A promise names a scenario that exists: <page>
    Then the documents name scenarios of the features that they name: <page>

    Examples:
      | page                           |
      | docs/explanation/guarantees.md |
      | docs/explanation/security.md   |

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
