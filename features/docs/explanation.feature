Feature: The explanations agree with the code

  Scenario Outline: A promise names a scenario that exists: <page>
    Then the documents name scenarios of the features that they name: <page>

    Examples:
      | page                           |
      | docs/explanation/guarantees.md |
      | docs/explanation/security.md   |

  Scenario: The architecture is that of the package
    Then the documents' table of packages is complete
    And the documents' tables are those of the ledger
    And the documents' states are those of the code

  Scenario: No dependency may have a version with a known vulnerability
    Then the lower bounds in pyproject.toml are those of the security page, or higher
