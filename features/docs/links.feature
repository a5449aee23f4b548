Feature: Links lead somewhere

  Scenario: Each link between pages leads to a file, and each anchor to a heading
    Then the documents' links and anchors lead somewhere
    And each page under docs is listed by the index and by the site
    And the documents name no path of anybody's machine
