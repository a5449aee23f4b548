@long
Feature: A closed output, or a reader that has gone, is no bug

  @slow
  Scenario: Each command ends quietly or with a clear message, and with an exit code that fits
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "more.jsonl"
      """
      "other 1"
      "other 2"
      "other 3"
      """
    And a command's file "dir/000001.json"
      """
      "in a folder"
      """
    When a command runs: run actor.yaml asks.jsonl -o first.jsonl
    Then a command in a shell ends with a code and says
      | command                                          | code | says                              |
      | claude-batch status >&-                          | 2    | error: standard output is closed  |
      | claude-batch status --json >&-                   | 2    | error: standard output is closed  |
      | claude-batch unknown >&-                         | 2    | error: standard output is closed  |
      | claude-batch status --watch >&-                  | 2    | error: standard output is closed  |
      | claude-batch ledger show --json >&-              | 2    | error: standard output is closed  |
      | claude-batch budget --json >&-                   | 2    | error: standard output is closed  |
      | claude-batch budget --daily none >&-             | 0    | each day:                         |
      | claude-batch estimate actor.yaml more.jsonl --json >&- | 2 | error: standard output is closed |
      | claude-batch doctor --json >&-                   | 2    | error: standard output is closed  |
      | claude-batch unknown RUN --give-up --json >&-    | 2    | error: standard output is closed  |
      | claude-batch sandbox --port 0 >/dev/full         | 2    | standard output: cannot be written: No space left on device; the address is printed there |
      | claude-batch cost --by day >&-                   | 2    | error: standard output is closed  |
      | claude-batch show RUN 1 >&-                      | 2    | error: standard output is closed  |
      | claude-batch results RUN >&-                     | 2    | closed: there is nothing to write to; name a file with -o |
      | claude-batch run actor.yaml more.jsonl >&-       | 2    | name a file with -o. Nothing was sent |
      | claude-batch resume RUN >&-                      | 0    | wrote                             |
      | claude-batch actors validate actor.yaml >&-      | 0    |                                   |
      | claude-batch run actor.yaml - <&-                | 2    | <stdin>: is closed; name a file   |
      | claude-batch run actor.yaml - -o more.jsonl <more.jsonl | 2 | more.jsonl: is read by this command, and would be replaced |
      | claude-batch run actor.yaml - --results-dir dir <dir/000001.json | 2 | <stdin>: is read by this command, and would be replaced by a file of dir |
      | claude-batch --help >/dev/full                   | 2    | cannot be written: No space left  |
      | claude-batch run --help >/dev/full               | 2    | cannot be written: No space left  |
      | claude-batch ledger show --help >/dev/full       | 2    | cannot be written: No space left  |
      | claude-batch sandbox --help \| true              | 0    |                                   |
      | claude-batch ledger show --help \| true          | 0    |                                   |
      | claude-batch --help \| true                      | 0    |                                   |
      | claude-batch status \| true                      | 0    |                                   |
      | claude-batch status --json \| true               | 0    |                                   |
      | claude-batch status RUN \| true                  | 0    |                                   |
      | claude-batch cost --by day \| true               | 0    |                                   |
      | claude-batch status --watch \| head -1           | 0    |                                   |
      | claude-batch show RUN 1 \| true                  | 0    |                                   |
      | claude-batch results RUN \| true                 | 0    | closed before all results were written; they are kept |
      | claude-batch actors validate actor.yaml \| true  | 0    |                                   |
    And the command line has caused 1 batches of 2 requests
    And a command in a shell ends with a code and says
      | command                                          | code | says                              |
      | claude-batch submit actor.yaml more.jsonl >&-    | 0    | sent. Wait for the answers with   |
      | claude-batch submit actor.yaml more.jsonl \| true | 0   | sent. Wait for the answers with   |
      | claude-batch submit actor.yaml more.jsonl 2>&-   | 0    |                                   |
      | claude-batch run actor.yaml more.jsonl -o more.out 2>&- | 0 |                               |
      | claude-batch run actor.yaml more.jsonl -o more.out 2>&1 \| true | 0 |                      |
    And the command line has caused 2 batches of 5 requests

  Scenario: An output in an encoding that lacks a character has it escaped, and JSON is in UTF-8
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o first.jsonl --label "5 €"
    Then a command in a shell ends with a code and says
      | command                                                                             | code | says |
      | PYTHONIOENCODING=ascii claude-batch status \| grep -q '5 .u20ac' \|\| echo lost >&2   | 0    |      |
      | PYTHONIOENCODING=latin-1 claude-batch status RUN                                    | 0    |      |
      | PYTHONIOENCODING=ascii claude-batch status --json \| grep -q '5 €' \|\| echo lost >&2 | 0    |      |

  Scenario: A full disk is reported, and the results are kept
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o first.jsonl
    Then a command in a shell ends with a code and says
      | command                                   | code | says                                      |
      | claude-batch status > /dev/full           | 2    | No space left on device                   |
      | claude-batch status --json > /dev/full    | 2    | No space left on device                   |
      | claude-batch cost --by day > /dev/full    | 2    | No space left on device                   |
      | claude-batch status --watch > /dev/full   | 2    | No space left on device                   |
      | claude-batch show RUN 1 > /dev/full       | 2    | No space left on device                   |
      | claude-batch results RUN > /dev/full      | 2    | No space left on device. The results are kept. Write them with: claude-batch results RUN -o OUT |

  Scenario: A descriptor is written as the shell has opened it, and by no other command
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "log"
      """
      precious
      """
    When a command runs: run actor.yaml asks.jsonl
    Then a command in a shell ends with a code and says
      | command                                                                              | code | says            |
      | claude-batch run actor.yaml asks.jsonl -o /dev/fd/3 3>>all.jsonl                     | 0    | wrote /dev/fd/3 |
      | claude-batch results RUN -o /proc/self/fd/4 4>>all.jsonl                             | 0    | wrote           |
      | claude-batch results RUN -o /dev/stderr 2>>log; grep precious log >&2                | 0    | precious        |
      | claude-batch results RUN -o /dev/fd/3 3<all.jsonl                                    | 2    | /dev/fd/3: is not open for writing; name a file with -o |
      | claude-batch run actor.yaml asks.jsonl -o /dev/fd/9                                  | 2    | /dev/fd/9: is not open for writing; name a file with -o. Nothing was sent |
      | claude-batch submit actor.yaml asks.jsonl -o /dev/fd/3 3>>all.jsonl                  | 2    | /dev/fd/3: is open only in this command, and another one writes the answers; name a file with -o. Nothing was sent |
    And in the ledger the outputs of the runs are [null]
    And the command line has written to "all.jsonl"
      | id | ok  | says     |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |

  Scenario: An output that has become a link to the ledger while its run waited is not written
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    Then a command in a shell ends with a code and says
      | command                                                          | code | says |
      | ln -s "$CLAUDE_BATCH_LEDGER" out.jsonl; claude-batch resume      | 2    | out.jsonl: is a file of the ledger, which holds what was paid for; name another with -o. The results are kept. Write them with: claude-batch results RUN -o OUT |
      | claude-batch advance                                             | 2    | out.jsonl: is a file of the ledger |
      | claude-batch results RUN -o kept.jsonl                           | 0    | wrote kept.jsonl |
    And the command line has written 2 answers in order to "kept.jsonl"

  Scenario: Standard output is written as the shell has opened it, whatever it is called
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    When a command runs: run actor.yaml asks.jsonl -o first.jsonl
    Then a command in a shell ends with a code and says
      | command                                                | code | says |
      | claude-batch results RUN -o /dev/stdout >>first.jsonl  | 0    |      |
      | claude-batch results RUN -o /dev/fd/1 >>first.jsonl    | 0    |      |
    And the command line has written to "first.jsonl"
      | id | ok  | says     |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |
      | 1  | yes | prompt 1 |
      | 2  | yes | prompt 2 |
