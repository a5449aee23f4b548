@slow @long
Feature: A document that would keep the machine busy is refused by its name

  What parses a document may use so much time and memory, and no more. The bombs are a few hundred
  kilobytes; the command that is asked about them may use 60 seconds and 2 GB.

  Scenario Outline: A PDF that is all page tree, or none, takes no time to speak of
    Given a document "bomb.pdf" that is <bomb>
    When a bounded command estimates a prompt about "bomb.pdf"
    Then the command line exits with 0

    Examples:
      | bomb                                                 |
      | a PDF of 20000 nodes of the page tree, none closed   |
      | a PDF of 20000 nodes of the page tree, in each other |
      | a PDF that marks 300000 object streams without one   |

  Scenario Outline: A document that would take too much time or memory is refused before anything is sent
    Given a document "<name>" that is <bomb>
    When a bounded command estimates a prompt about "<name>"
    Then the command line exits with 2 and says
      """
      asks.jsonl:1: request '1': document <name>: <words>
      """

    Examples:
      | name      | bomb                                 | words                                                        |
      | bomb.pdf  | a PDF of 700 object streams of 4 MB  | is a PDF whose objects unpack to more than 128,000,000 bytes |
      | bomb.pdf  | a PDF of 110000 empty object streams | is a PDF with more than 100,000 object streams               |
      | bomb.pdf  | a PDF of 5000000 brackets            | is a PDF of more than 4,000,000 parts                        |
      | bomb.docx | a DOCX of 300 MB unpacked            | is a DOCX of 3                                               |
      | bomb.docx | a ZIP of 30000 files                 | is a ZIP of more than 20,000 files                           |
      | bomb.docx | a DOCX of 200000 levels              | is a DOCX that cannot be read                                |

  @slow
  Scenario: A DOCX that fills the memory is given up
    Given a document "bomb.docx" that is a DOCX of 180 MB of wide text
    When a bounded command estimates a prompt about "bomb.docx"
    Then the command line exits with 2 and says
      """
      asks.jsonl:1: request '1': document bomb.docx: needs more than 1,500,000,000 bytes of memory to read
      """

  Scenario: A DOCX that keeps its parser busy is given up, and the next one is read
    Then documents whose reading may take 3 seconds are read as follows
      | name      | document                                | error                                                  |
      | bomb.docx | a DOCX whose fields take quadratic time | bomb.docx: takes more than 3 seconds to read |
      | good.docx | a DOCX of 300 KB unpacked               |                                                        |

  Scenario: A PDF that keeps its parser busy has no known bound, and does not hold up the run
    Then the tokens of a PDF are known or not, as follows
      | pdf                               | known |
      | ten pages in ten, ten levels deep | no    |
      | ordinary                          | yes   |
      | 200000 levels deep                | no    |
      | ordinary                          | yes   |

  Scenario: If no process can be started, a PDF has no known bound until one can be
    Then the tokens of a PDF are known or not, as follows
      | pdf                                     | known |
      | ordinary                                | yes   |
      | ordinary, without a process             | no    |
      | ordinary                                | yes   |
      | ordinary, with a process that ends at once | no |
      | ordinary                                | yes   |

  Scenario: The process that reads documents is started once, and anew after it was killed
    Then 5 ordinary PDFs are counted by one process, and by another one after it was killed
    And the process that counts has no key, and a fork starts its own
    And a program without a Python of its own runs the function itself
    And in a program whose sockets have a default timeout, one process echoes 1,000,000 bytes, then 10 bytes, and again

  Scenario: The next document is read, whatever a library does in that process
    Then a limited function is refused as follows
      | does   | kind        | problem                                         |
      | fails  | ValueError  | …cannot be read: LookupError: nothing there…    |
      | dies   | PassedBound | …crashes the library that reads it…         |
      | eats   | PassedBound | …needs more than 1,500,000,000 bytes of memory… |
      | sleeps | PassedBound | …takes more than 2 seconds to read…             |
      | burns  | PassedBound | …takes more than 2 seconds to read…             |
