@long
Feature: Every block of code on every page is run or checked
  Python and transcripts are run against the sandbox; commands.feature runs the shell's commands. Each
  other block is read by what would use it.

  Scenario: No block is without a check
    Then pages, after a change, have problems as follows
      | page      | added                | problem                       |
      | each page |                      |                               |
      | README.md | ```toml\na = 1\n```  | …no check for 'toml'…         |
    And the pages with Python are those that are run above
    And the pages with transcripts are those that are run above

  Scenario Outline: The Python of a page is one program: <page>
    Given a reader with a key and a server
    Then the Python of <page>, run in order as one program, prints what it says
    And the reader has paid for no request twice

    Examples:
      | page                             |
      | README.md                        |
      | docs/how-to/python.md            |
      | docs/how-to/sdk-clients.md       |
      | docs/how-to/structured-output.md |
      | docs/how-to/documents.md         |
      | docs/how-to/tools.md             |
      | docs/how-to/deadlines.md         |
      | docs/how-to/limits.md            |
      | docs/how-to/functions.md         |
      | docs/how-to/retries.md           |
      | docs/how-to/observability.md     |
      | docs/how-to/middleware.md        |
      | docs/how-to/providers.md         |
      | docs/how-to/budgets.md           |
      | docs/how-to/export.md            |
      | docs/how-to/evaluation.md        |
      | docs/how-to/notebooks.md         |
      | docs/how-to/sandbox.md           |

  Scenario Outline: The transcripts of a page are what the commands print: <page>
    Then the transcripts of <page>, played in order, are what the commands print

    Examples:
      | page             |
      | docs/tutorial.md |

  Scenario: A transcript that shows something else is found
    Then what was printed fits a transcript as follows
      | printed                   | shown               | fits |
      | sent run-7k2\n3 succeeded | sent …\n3 succeeded | yes  |
      | sent run-7k2\n3 succeeded | … succeeded         | yes  |
      | sent run-7k2\n3 succeeded | sent run-7k2        | no   |
      | sent run-7k2\n3 succeeded | 3 succeeded         | no   |
      | sent run-7k2\n3 succeeded | sent …\n4 succeeded | no   |

  Scenario: A block that is wrong is found
    Then blocks of a page are checked as follows
      | language | code                             | problem                               |
      | bash     | claude-batch run --modle x y     | …No such option…                      |
      | bash     | claude-batch runn y              | …there is no command 'runn'…          |
      | bash     | claude-batch status ; frobnicate | …no check for the command frobnicate… |
      | bash     | pip install '.[pdf]'             | …the package has no extra pdf…        |
      | bash     | pip install 'claude-batch[docx]' | …is on no registry…                   |
      | bash     | export CLAUDE_BATCH_LEDGERS=x    | …nothing reads the variable…          |
      | bash     | python examples/gone.py          | …there is no examples/gone.py…        |
      | bash     | systemctl start claude-batch-gone.service | …there is no claude-batch-gone.service… |
      | bash     | sudo -u claude-batch claude-batch stat | …there is no command 'stat'… |
      | bash     | (set -a; . /etc/claude-batch/gone.env) | …there is no gone.env… |
      | bash     | kubectl apply -f deploy/gone     | …there is no deploy/gone…             |
      | bash     | kubectl exec deployment/claude-batch-worker -- claude-batch stat | …there is no command 'stat'… |
      | bash     | docker run --rm claude-batch runn x | …there is no command 'runn'…           |
      | sql      | SELECT 1                         | no scenario runs the SQL of this page |
      | bash     | nox -s speed                     | …nox has no session speed…            |
      | bash     | claude-batch completion zsh > ~/.zfunc/_x | …nothing makes the folder of ~/.zfunc/_x… |
      | cron     | 0 22 * claude-batch advance      | …not a line of a crontab…             |
      | cron     | 0 22 * * * claude-batch advanced | …there is no command 'advanced'…      |
      | csv      | id,text                          | …there is no column of prompts…       |
      | json     | {"id": }                         | …Expecting value…                     |
      | json     | {"rules": [{"route": "x"}]}      | …the routes are create…               |
      | jsonl    | {"promt": "x"}                   | …promt…                               |
      | jsonl    | {"ok": true, "colour": "red"}    | …colour…                              |
      | mermaid  | graph TD                         | …not the first line of a flowchart…   |
      | text     | see RunStatusReport              | …nothing that is called…              |
      | text     | use --budgets                    | …no command has the flag --budgets…   |
      | yaml     | name: x                          | …`model` is missing…                |
      | toml     | a = 1                            | …no check for 'toml'…                 |
      | python   | print("shown as an example")     | …not the same as examples/review.py…  |
