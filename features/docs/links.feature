Feature: Links lead somewhere, and readers find each page

  Scenario: A page has no broken link, no path of somebody's machine, and a place on the site
    The first row is about each page as it is. The others show that a mistake is found.
    Then pages, after a change, have problems as follows
      | page             | added                                | problem                                                    |
      | each page        |                                      |                                                            |
      | README.md        | [a](docs/gone.md)                    | README.md:…docs/gone.md: there is no such file             |
      | README.md        | [a](#nowhere)                        | README.md:…#nowhere: there is no such heading…             |
      | docs/tutorial.md | [a](../README.md)                    | docs/tutorial.md:…a site cannot link to files outside…     |
      | docs/tutorial.md | It is in /home/anna.                 | docs/tutorial.md names a path of somebody's machine        |
      | docs/new.md      | A page.                              | docs/new.md is not listed by the index and by the site     |
      | docs/explanation/decisions/0000.md | A decision.        | …0000.md is not listed…                                    |
    And files name a path of somebody's machine, as follows
      | files             | named |
      | examples/**/*.*   | no    |

  Scenario: A command has its short help flag, also after the commands on the pages were checked
    When a command runs: advance -h
    Then the command line exits with 0
