Feature: `claude-batch run` takes documents as INPUT, one request a file

  Background:
    Given a command's API
    And the documents
      | file          | content            |
      | inv/a.pdf     | pdf                |
      | inv/ascii.bin | pdf                |
      | inv/b.pdf     | pdf of 2 pages, packed |
      | inv/c.png     | png of 20 by 10    |
      | inv/file_1    | jpeg of 20 by 10   |
      | inv/memo.docx | docx hello         |
      | notes.txt     | text # Notes       |
      | more.txt      | text # More        |
      | bad/a.pdf     | pdf                |
      | bad/b.pdf     | text no PDF        |
      | bad/c.pdf     | pdf, encrypted     |
      | odd/a.xlsx    | hex 504b0304       |
      | asks.jsonl.gz | hex 1f8b08         |
    And a command's file "asks.jsonl" of 1 prompts

  Scenario Outline: A file that is a document is asked about, by what its bytes are
    When a command runs: <verb> --model claude-haiku-4-5 --prompt "What is due?" inv/* <options>
    Then the command line exits with 0
    And the API was asked about these documents
      | block    | media type      | prompt       |
      | document | application/pdf | What is due? |
      | document | application/pdf | What is due? |
      | document | application/pdf | What is due? |
      | image    | image/png       | What is due? |
      | image    | image/jpeg      | What is due? |
      | document | text/plain      | What is due? |

    Examples:
      | verb   | options      |
      | run    | -o out.jsonl |
      | submit |              |

  Scenario: The keys of documents are the files, as those of other files are
    When the command line reads "inv/*.pdf inv/file_1" with {"prompt": "What is due?"}
    Then the command line has read the documents
      | key        | documents  | citations |
      | inv/a.pdf  | inv/a.pdf  | False     |
      | inv/b.pdf  | inv/b.pdf  | False     |
      | inv/file_1 | inv/file_1 | False     |

  Scenario: Without --prompt an actor's system prompt says what to do with each document
    Given a command's file "extractor.yaml"
      """
      name: tests/extractor
      model: claude-haiku-4-5
      system_prompt: Name the sum that is due.
      batch_processing: true
      """
    When a command runs: run extractor.yaml inv/*.pdf -o out.jsonl
    Then the command line exits with 0
    And the API was asked about these documents
      | block    | media type      | prompt |
      | document | application/pdf |        |
      | document | application/pdf |        |
    When a command runs: run --model claude-haiku-4-5 --system "Name the sum." --new inv/a.pdf --document notes.txt --citations
    Then the command line exits with 0

  Scenario: A budget of documents is estimated without sending anything
    When a command runs: estimate --model claude-haiku-4-5 --offline --prompt "What is due?" inv/*.pdf
    Then the command line exits with 0
    And the command line prints
      """
      2 requests,
      tokens in: about 11,
      """
    And the command line has sent nothing

  Scenario Outline: Contradictory arguments are refused before anything is stored: <words>
    When a command runs: <words>
    Then the command line exits with 2 and says
      """
      <message>
      """
    And the command line has sent nothing
    And there is no ledger yet

    Examples:
      | words                                                   | message |
      | run actor.yaml inv/*.pdf                                | inv/a.pdf is a document, and there is no prompt for it. Add --prompt TEXT, or a `system_prompt` to the actor |
      | submit actor.yaml inv/*.pdf                             | inv/a.pdf is a document, and there is no prompt for it |
      | estimate actor.yaml inv/*.pdf --offline                 | inv/a.pdf is a document, and there is no prompt for it |
      | run actor.yaml asks.jsonl.gz                            | asks.jsonl.gz is compressed; unpack it |
      | run actor.yaml notes.txt inv/*.pdf more.txt --prompt x  | inv/a.pdf is a document and notes.txt is a prompt. Run two commands, or add the document to every prompt with --document inv/a.pdf |
      | run actor.yaml inv/a.pdf asks.jsonl                     | inv/a.pdf is a document and asks.jsonl holds prompts. Run two commands |
      | run actor.yaml inv/a.pdf -                              | inv/a.pdf is a document and <stdin> holds prompts |
      | estimate actor.yaml inv/a.pdf notes.txt                 | inv/a.pdf is a document and notes.txt is a prompt |
      | submit actor.yaml inv/a.pdf notes.txt                   | inv/a.pdf is a document and notes.txt is a prompt |
      | run actor.yaml notes.txt --prompt "What?"               | --prompt is for documents, but notes.txt is a prompt. Leave --prompt out, or give the file as --document notes.txt |

  Scenario Outline: A document that the API would refuse is named with its remedy: <words>
    When a command runs: run actor.yaml --prompt "What is due?" <words>
    Then the command line exits with 2 and says
      """
      <message>
      """
    And the command line has sent nothing

    Examples:
      | words              | message |
      | bad/b.pdf          | bad/b.pdf: request 'bad/b.pdf': document bad/b.pdf: has the name of a PDF, but is  |
      | bad/c.pdf          | is a PDF with a password or encryption; save it without |
      | odd/a.xlsx         | is a truncated ZIP or Office file |

  Scenario: Documents that cannot be used are left out on request
    When a command runs: run actor.yaml --prompt "What is due?" bad/* --skip-invalid -o out.jsonl
    Then the command line exits with 0 and says
      """
      skipped: bad/b.pdf: request 'bad/b.pdf': document bad/b.pdf: has the name of a PDF
      skipped 2 of 3 items
      """

  Scenario: Documents are read one by one
    Then the command line holds no more than 10 MB while it reads 20 documents of 1 MB
