Feature: A document that many requests of a run share is uploaded once
  Whether it is, changes nothing of what was asked.

  Background:
    Given an API
    And a batch provider
    And a document "long.txt" of 600000 bytes

  Scenario: The rule
    Then a document is uploaded or travels inside, as follows
      | size     | uses    | which    |
      | 20000000 | 1       | inside   |
      | 20000000 | 2       | uploaded |
      | 500000   | 2       | inside   |
      | 500001   | 2       | uploaded |
      | 32768    | 30      | inside   |
      | 32768    | 31      | uploaded |
      | 32767    | 1000000 | inside   |

  Scenario Outline: it is repeated no more, and is cited as the file
    When 20 requests about "long.txt" are <asked>, cited
    Then the API has 1 file, uploaded once
    And less than 1 MB was posted as batches
    And all 20 answers cite the beginning of "long.txt", 19 of them from the file
    And the log has 1 line that says "long.txt (600,000 bytes) is uploaded"
    And the log has 1 line that says "request 2 of the run"

    Examples:
      | asked                                 |
      | asked                                 |
      | asked by a program with an event loop |

  Scenario: The same requests are the same run, in whatever way their documents travelled
    Given the API has the faults
      """
      {"rules": [{"route": "upload_file", "action": {"type": "error", "status": 403}}]}
      """
    When 3 requests about "long.txt" are asked, cited
    Then the log has 1 line that says "is sent inside each request"
    And the log has 1 line that says "long.txt"
    And the log has 1 line that says "(403 permission_error"
    And all 3 answers cite the beginning of "long.txt", 0 of them from the file
    When the API has no faults any more
    And the provider is made anew
    And 3 requests about "long.txt" are asked, cited
    Then the API has 1 file, uploaded once
    And in the ledger the counts of runs are [1]
    And the API has been paid 3 times, never twice for the same

  Scenario: another run finds the file, whatever it is called there
    When 3 requests about "long.txt" are asked, cited
    And a document "copy.md" of 600000 bytes
    And the provider is made anew
    And 4 requests about "copy.md" are asked, cited
    Then the API has 1 file, uploaded once
    And all 4 answers cite the beginning of "copy.md", 3 of them from the file

  Scenario: A file that the API has no more is uploaded again
    When 3 requests about "long.txt" are asked, cited
    And somebody deletes the files at the API
    And a day has passed since the files were last looked for
    And 4 requests about "long.txt" are asked, cited
    Then all 4 answers cite the beginning of "long.txt", 3 of them from the file
    When a day has passed since the files were last looked for
    And 5 requests about "long.txt" are asked, cited
    Then all 5 answers cite the beginning of "long.txt", 4 of them from the file
    And 2 uploads were made

  Scenario: a request whose file was deleted at the API says how its document is uploaded again
    When 3 requests about "long.txt" are asked, cited
    And somebody deletes the files at the API
    And 4 requests about "long.txt" are stored
    And the results are read in order
    Then the results by place have
      | field                 | value                                                                                                     |
      | 0.ok                  | true                                                                                                      |
      | 1.error               | "…errored: not_found_error: File not found: file_…"                                                       |
      | 2.error               | "…. If claude-batch uploaded it, a new run (`--new`, `new=True`) or a new call uploads the document again" |
      | 3.error.error_message | "File not found: file_…"                                                                                  |
    When a day has passed since the files were last looked for
    And 3 calls about "long.txt" are made, at the same time
    Then all 3 are answered

  Scenario: where nobody can say whether the API has it, a remembered file is trusted
    When 3 requests about "long.txt" are asked, cited
    And a day has passed since the files were last looked for
    Given the API has the faults
      """
      {"rules": [{"route": "list_files", "action": {"type": "error", "status": 403}}]}
      """
    When 4 requests about "long.txt" are asked, cited
    Then all 4 answers cite the beginning of "long.txt", 3 of them from the file
    And 1 uploads were made

  Scenario: A process that dies between an upload and its note leaves a file that nobody names
    Given a command's API
    And a document "long.txt" of 600000 bytes
    And a command's file "asks.jsonl"
      """
      "one"
      "two"
      """
    When a command's process dies at after_file_uploaded: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    And a command runs: run actor.yaml asks.jsonl --document long.txt -o out.jsonl
    Then the command line exits with 0
    And 2 uploads were made
    And the API has been paid 2 times, never twice for the same

  Scenario: what only stores uploads nothing
    Given a batch provider with {"drive": false}
    When 3 requests about "long.txt" are stored
    Then 0 uploads were made

  Scenario: under an older version of the API documents stay inside
    Given its actor's file has
      """
      options: {temperature: 0.5}
      """
    When 3 requests about "long.txt" are asked, cited
    Then 0 uploads were made
    And all 3 answers cite the beginning of "long.txt", 0 of them from the file

  Scenario: two processes upload the same at once, and one file is kept
    When 3 requests about "long.txt" are asked, cited
    Then the file stays remembered when another process has uploaded the same meanwhile
    And in the ledger the ids of the files to delete are ["file_second"]

  Scenario: a workspace that is found to be another one brings its files along
    Then files of a workspace follow it, but for those that are there already

  Scenario Outline: single calls share it too
    When 20 calls about "long.txt" are made, <how>
    Then the API has 1 file, uploaded once
    And less than 1 MB was posted as batches
    And all 20 answers cite the beginning of "long.txt", 19 of them from the file

    Examples:
      | how                                         |
      | at the same time                            |
      | at the same time, with an answer looked for |

  Scenario: A call is known again, in whatever way its document travels
    When 3 calls about "long.txt" are made, with keys
    And the provider is made anew
    And 3 calls about "long.txt" are made, with keys, in the other order
    Then all 3 answers cite the beginning of "long.txt", 2 of them from the file
    And the API has been paid 3 times, never twice for the same
    When "Something else?" is asked with the key "2"
    Then every call fails with KeyConflictError
    And the error is a KeyConflictError that says
      """
      choose another key
      """

  Scenario: Calls whose process was killed are taken over, in whatever way their document travels
    When a process makes 3 calls about "long.txt", and is killed once they are stored
    And 3 calls about "long.txt" are made, at the same time
    Then all 3 are answered
    And the API has been paid 3 times, never twice for the same

  Scenario: A later call about a document has the time of its own deadline
    Given a batch provider with {"deadline": "20s", "deadline_margin": "1s", "fallback": "none"}
    When 3 calls about "long.txt" are made, at the same time
    And 2 seconds pass
    And 3 calls about "long.txt" are made, at the same time
    Then all 3 are answered
    And the command line's ledger has 2 runs

  Scenario Outline: An upload for <asks> holds up no other caller
    Given the API has the faults
      """
      {"rules": [{"route": "upload_file", "action": {"type": "delay", "seconds": 4}}]}
      """
    When this program runs
      """
      import os, pathlib, time

      def about(number):
          text = pathlib.Path(os.environ["CLAUDE_BATCH_LEDGER"]).with_name(f"{number}.txt")
          text.write_text(f"{number} " + "word " * 150_000)
          return cb.ActorRequest(prompt="What is it?", documents=[str(text)])

      async def main():
          async with cb.ClaudeBatchProvider(**settings) as provider:
              actor = cb.Actor(asker, provider)
              run = await actor.submit(["one"])
              await run.wait()
              asked = [asyncio.create_task(each) for each in <asked>]
              await asyncio.sleep(1)
              begun = time.monotonic()
              await run.wait()
              await actor.submit(["two"])
              print(time.monotonic() - begun < 2, all(each.done() for each in asked))
              print(len(await asyncio.gather(*asked)))

      asyncio.run(main())
      """
    Then the program has printed
      """
      True False
      4
      """

    Examples:
      | asks  | asked                                                  |
      | calls | (actor.respond(about(0)) for _ in range(4))            |
      | runs  | (actor.submit([about(n), about(n)]) for n in range(4)) |

  Scenario: A call whose documents cannot be placed fails with the reason
    When a call about "long.txt" is made while the ledger fails
    Then it fails as LedgerError and says "the disk is gone"

  Scenario: calls that are only stored upload nothing
    Given a batch provider with {"drive": false, "max_wait": 0.5}
    When 3 calls about "long.txt" are made, at the same time
    Then every call fails with BatchTimeoutError
    And 0 uploads were made
