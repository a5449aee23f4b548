@every_python
Feature: Documents stand before the text, and what the API would refuse is refused at once
  The bytes of a file decide its type.

  Background:
    Given an actor made with {"model": "m"}
    And the documents
      | file      | content                |
      | a.pdf     | pdf                    |
      | new.pdf   | pdf of 3 pages, packed |
      | photo.bin | png of 20 by 10        |
      | b.jpg     | jpeg of 20 by 10       |
      | c.gif     | gif of 20 by 10        |
      | d.webp    | webp of 20 by 10       |
      | notes.md  | text # Notes           |
      | rows.csv  | text a,b               |
      | page.html | text <p>Hi</p>         |
      | wide.txt  | hex fffe4800e900       |
      | bom.txt   | hex efbbbf4869         |
      | memo.docx | docx hello             |

  Scenario: each kind becomes its block
    Then documents become blocks as follows
      | document                                                 | type     | source                                                                                                  | title     | context |
      | a.pdf                                                    | document | {"type": "base64", "media_type": "application/pdf"}                                                     | a.pdf     |         |
      | new.pdf                                                  | document | {"type": "base64", "media_type": "application/pdf"}                                                     | new.pdf   |         |
      | photo.bin                                                | image    | {"type": "base64", "media_type": "image/png"}                                                           |           |         |
      | b.jpg                                                    | image    | {"type": "base64", "media_type": "image/jpeg"}                                                          |           |         |
      | c.gif                                                    | image    | {"type": "base64", "media_type": "image/gif"}                                                           |           |         |
      | d.webp                                                   | image    | {"type": "base64", "media_type": "image/webp"}                                                          |           |         |
      | notes.md                                                 | document | {"type": "text", "media_type": "text/plain", "data": "# Notes"}                                         | notes.md  |         |
      | rows.csv                                                 | document | {"type": "text", "media_type": "text/plain", "data": "a,b"}                                             | rows.csv  |         |
      | page.html                                                | document | {"type": "text", "media_type": "text/plain", "data": "<p>Hi</p>"}                                       | page.html |         |
      | wide.txt                                                 | document | {"type": "text", "media_type": "text/plain", "data": "Hé"}                                              | wide.txt  |         |
      | bom.txt                                                  | document | {"type": "text", "media_type": "text/plain", "data": "Hi"}                                              | bom.txt   |         |
      | memo.docx                                                | document | {"type": "text", "media_type": "text/plain", "data": "Hello\n\n\| Total \| 86.20 \|\n\| --- \| --- \|"} | memo.docx |         |
      | https://e.example/a.pdf                                  | document | {"type": "url", "url": "https://e.example/a.pdf"}                                                       |           |         |
      | https://e.example/a.PNG?x#y                              | image    | {"type": "url", "url": "https://e.example/a.PNG?x#y"}                                                   |           |         |
      | file_011ab                                               | document | {"type": "file", "file_id": "file_011ab"}                                                               |           |         |
      | {"file_id": "file_011ab", "image": true}                 | image    | {"type": "file", "file_id": "file_011ab"}                                                               |           |         |
      | {"path": "notes.md", "title": "N", "context": "of 2026"} | document | {"type": "text", "media_type": "text/plain", "data": "# Notes"}                                         | N         | of 2026 |

  Scenario: A text about PDFs is a text, and a PDF behind other lines is a PDF
    Given the documents
      | file      | content                                   |
      | about.md  | text A PDF begins with %PDF-1.7           |
      | mail.bin  | pdf behind a line                         |
      | junk.bin  | pdf behind a byte                         |
    Then documents become blocks as follows
      | document | type     | source                                                                                          | title    | context |
      | about.md | document | {"type": "text", "media_type": "text/plain", "data": "A PDF begins with %PDF-1.7"}              | about.md |         |
      | mail.bin | document | {"type": "base64", "media_type": "application/pdf"}                                             | mail.bin |         |
      | junk.bin | document | {"type": "base64", "media_type": "application/pdf"}                                             | junk.bin |         |

  Scenario: A document whose name is no text has a title that is
    Given the documents
      | file        | content  |
      | b\udcff.txt | text a,b |
    Then documents become blocks as follows
      | document                | type     | source                                                      | title        | context |
      | {"path": "b\udcff.txt"} | document | {"type": "text", "media_type": "text/plain", "data": "a,b"} | b\udcff.txt  |         |

  Scenario: bytes are documents too, and what is given first stands first
    Then requests about documents are encoded as follows
      | documents                               | sources                    |
      | [{"bytes": "Bytes."}, "a.pdf", "file_1"] | ["text", "base64", "file"] |
      | ["file_1", "a.pdf"]                     | ["file", "base64"]         |

  Scenario: documents go before a conversation's first text, and all of them are cited
    Then the actor's params for {"documents": ["notes.md", "https://e.example/b.jpg"], "citations": true, "messages": [{"role": "user", "content": "First"}, {"role": "assistant", "content": "Second"}, {"role": "user", "content": "Third"}]} are
      """
      {"model": "m", "max_tokens": 4096, "messages": [
        {"role": "user", "content": [
          {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# Notes"}, "title": "notes.md", "citations": {"enabled": true}},
          {"type": "image", "source": {"type": "url", "url": "https://e.example/b.jpg"}},
          {"type": "text", "text": "First"}]},
        {"role": "assistant", "content": "Second"},
        {"role": "user", "content": "Third"}]}
      """
    And the actor's params for {"documents": ["notes.md"], "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Third"}]}]} are
      """
      {"model": "m", "max_tokens": 4096, "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [
          {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# Notes"}, "title": "notes.md"},
          {"type": "text", "text": "Third"}]}]}
      """
    And the actor's request {"id": "k", "documents": ["notes.md"], "messages": [{"role": "user", "content": 5}]} is refused with "request 'k': message 1: its content must be a text or a list of blocks"
    And the actor's request {"id": "k", "documents": ["notes.md"], "messages": [{"role": "user", "content": {"a": 1}}]} is refused with "request 'k': message 1: its content must be a text or a list of blocks"
    And the actor's request {"id": "k", "documents": ["notes.md"], "messages": [{"role": "assistant", "content": "Second"}]} is refused with "`documents` need a message of the user"

  Scenario Outline: what the API would refuse is refused, and the document is named
    Given the documents
      | file  | content   |
      | x.pdf | <content> |
    Then the document "x.pdf" is refused with "x.pdf: <says>"

    Examples:
      | content                  | says                                                      |
      | pdf, encrypted           | is a PDF with a password or encryption                    |
      | pdf, encrypted, packed   | is a PDF with a password or encryption                    |
      | pdf, cut short           | is a truncated PDF                               |
      | pdf of 601 pages         | is a PDF of 601 pages, but the API accepts at most 600              |
      | pdf of 601 pages, packed | is a PDF of 601 pages                                     |
      | png of 20 by 8001        | is an image of 20 by 8,001 pixels                         |
      | jpeg of 9000 by 20       | is an image of 9,000 by 20 pixels                         |
      | jpeg-filled of 9000 by 20 | is an image of 9,000 by 20 pixels |
      | gif of 9000 by 20        | is an image of 9,000 by 20 pixels                         |
      | webp of 9000 by 20       | is an image of 9,000 by 20 pixels                         |
      | webp-x of 9000 by 20     | is an image of 9,000 by 20 pixels                         |
      | webp-l of 9000 by 20     | is an image of 9,000 by 20 pixels                         |
      | text I was a PDF         | has the name of a PDF, but is text/plain         |
      | hex                      | is empty                                                  |
      | hex 504b0304             | is a truncated ZIP or Office file                |
      | xlsx                     | is a ZIP or Office file (XLSX, PPTX, ODT); save it as PDF |
      | hex d0cf11e0             | is an old Office file                                     |
      | password                 | is an Office file (DOCX, XLSX) with a password            |
      | docx cut short           | is a truncated ZIP or Office file                |
      | docx broken              | is a DOCX that cannot be read                             |
      | docx empty               | is a DOCX without any text                                |
      | hex ff00ff               | is not a PDF, an image that the API accepts, or UTF-8 text |
      | hex 610062               | is not a PDF, an image that the API accepts, or text       |
      | hex 2020                 | contains only white space                             |

  Scenario: a DOCX becomes Markdown, whose headings, lists and tables are the document's
    Given the documents
      | file        | content     |
      | report.docx | docx report |
    Then the document "report.docx" becomes a text
      """
      # Invoice 17

      Billed to ACME <Ltd> & Sons.

      ## Positions

      | Item | Price |
      | --- | --- |
      | Rope \| 10 m | 86.20 |

      - Paid
        - In cash
      - Shipped
      """

  Scenario: what a model cites of a DOCX has no tags
    Given the documents
      | file        | content     |
      | report.docx | docx report |
    And an API
    And a batch provider
    When "What?" about "report.docx" is asked for as text in every way, with citations
    Then every answer cites
      | text                                                         | title       | place              |
      | # Invoice 17…Billed to ACME <Ltd> & Sons.…## Positions…\|… | report.docx | characters 0 to 60 |

  Scenario: HTML becomes Markdown
    Then HTML becomes Markdown as follows
      | html | markdown |
      | "<p>a<br />b</p><p> </p><p><em>c</em> <strong>d</strong></p>" | "a\nb\n\nc d" |
      | "<h2>a<br />b</h2><h3></h3>" | "## a b" |
      | "<ol><li>a<p>b</p></li><li><ul><li>c</li></ul></li></ol><ul></ul>" | "1. a\n   b\n2. - c" |
      | "<p><a href='https://e.example'>a</a> <a href='#b'>b</a></p>" | "[a](https://e.example) b" |
      | "<table><thead><tr><th colspan='2'>a</th></tr></thead><tbody><tr><td rowspan='2'><p>b</p><p>c</p></td><td>d</td></tr><tr><td>e</td></tr></tbody></table>" | "\| a \|  \|\n\| --- \| --- \|\n\| b c \| d \|\n\|  \| e \|" |
      | "<table><tr><td colspan='x'> </td></tr></table>" | "" |
      | "<table><tr><td>a</td><td rowspan='2'>b</td></tr><tr><td>c</td></tr></table>" | "\| a \| b \|\n\| --- \| --- \|\n\| c \|  \|" |
      | "a</div><div>b</div></p>" | "a\n\nb" |

  Scenario: the pictures of a DOCX are left out
    Given the documents
      | file     | content       |
      | pic.docx | docx pictured |
    Then the document "pic.docx" becomes a text
      """
      Beforeafter
      """

  Scenario: a DOCX that would fill the memory is refused
    Given a limit of 100 bytes in an unpacked DOCX
    And the documents
      | file     | content    |
      | big.docx | docx hello |
    Then the document "big.docx" is refused with "bytes unpacked; split it, or save it as PDF"

  Scenario: without its extra a DOCX says what to install
    Given the extra docx is not installed
    And the documents
      | file     | content    |
      | new.docx | docx hello |
    Then the document "new.docx" is refused with "new.docx: is a DOCX. To read it, install the extra `docx` (pip install 'claude-batch[docx]')"

  Scenario: an actor's own documents go with every request, and are found beside its file
    Given the documents
      | file           | content    |
      | desk/rules.txt | text Rules |
      | desk/more.txt  | text More  |
    And an actor file in "desk"
      """
      model: claude-haiku-4-5
      documents:
        - rules.txt
        - {path: more.txt, title: More rules}
      citations: true
      """
    Then a request of "Is it so?" to that actor is about
      | title      | cited |
      | rules.txt  | true  |
      | More rules | true  |
      | Is it so?  | false |
    And a request of {"prompt": "Is it so?", "documents": ["notes.md"]} to that actor is about
      | title      | cited |
      | rules.txt  | true  |
      | More rules | true  |
      | notes.md   | true  |
      | Is it so?  | false |
    And a request of {"params": {"messages": [{"role": "user", "content": "Raw"}]}} to that actor is about
      | title | cited |
      | Raw   | false |
    When the actor file is loaded
    Then the actor reads back equal from its own YAML, mapping and pickled copy

  Scenario: an actor that cites needs documents only where a request has some
    Given an actor file in "desk"
      """
      actors:
        clerk:
          type: llm
          config: {actor: anthropic/claude-haiku-4-5, citations: true}
      """
    Then a request of "Is it so?" to that actor is about
      | title     | cited |
      | Is it so? | false |
    And a request of {"prompt": "Is it so?", "documents": ["notes.md"]} to that actor is about
      | title     | cited |
      | notes.md  | true  |
      | Is it so? | false |

  Scenario Outline: an invalid setting for documents in an actor's YAML is reported with its line
    Given an actor file
      """
      model: claude-haiku-4-5
      <written>
      """
    When the actor file is loaded
    Then the actor error is at line 2
    And the actor error says "<says>"

    Examples:
      | written                | says                                                                         |
      | documents: rules.txt   | `documents` must be a list, not 'rules.txt'                         |
      | documents: [{name: a}] | `documents`: a document has one of `path`, `url` and `file_id` |
      | citations: 1           | `citations` must be true or false, not 1                            |
      | document: [a]          | unknown key `document`; did you mean `documents`?                            |

  Scenario: Documents that are too large together are refused
    Then requests about documents are encoded as follows
      | model            | documents                      | error                                                                         |
      | claude-haiku-4-5 | 2 PDFs of 51 pages             | its PDFs have 102 pages together, but in a request to claude-haiku-4-5 the API accepts 100 |
      | claude-opus-5-5  | 2 PDFs of 51 pages             |                                                                               |
      | claude-opus-5-5  | 2 PDFs of 301 pages            | its PDFs have 602 pages together                                              |
      | m                | 20 images of 2001 by 10 pixels |                                                                               |
      | m                | 21 images of 2001 by 10 pixels | it has 21 images                                                              |

  Scenario: A value that is no document is refused
    Then requests about documents are encoded as follows
      | documents                        | error                                                  |
      | ["none.txt"]                     | document none.txt: cannot be read: No such file        |
      | ["."]                            | document .: is not a file                                 |
      | "a.pdf"                          | `documents` must be a list, even for one                     |
      | [7]                              | a document is a path, bytes, a URL or a file id, not 7 |
      | [{"path": "a.pdf", "url": "u"}]  | a document has one of `path`, `url` and `file_id`      |
      | [{"path": "a.pdf", "name": "u"}] | unknown: name                                          |
      | [{"path": ""}]                   | a document is a path, bytes, a URL or a file id, not '' |
      | [{"url": "a.pdf"}]               | `url` must begin with http:// or https://, not 'a.pdf'; a file is a `path` |
      | [{"file_id": "a.pdf"}]           | `file_id` must be the id of an uploaded file (file_…), not 'a.pdf' |
      | [{"path": "https://e.example"}]  | document https:/e.example: cannot be read: No such file |
      | [{"path": "a.pdf", "title": 5}]  | document a.pdf: its `title` must be a text, not 5      |
      | [{"path": "a.pdf", "context": []}] | document a.pdf: its `context` must be a text, not []   |
      | [{"path": "a.pdf", "image": "no"}] | document a.pdf: its `image` must be true or false, not 'no' |

  Scenario: A file that no request can carry is refused before it is read
    Given a file "huge.txt" of 500000001 bytes, which must not be read
    Then requests about documents are encoded as follows
      | documents    | error                                                                            |
      | ["huge.txt"] | document huge.txt: has 500,000,001 bytes, but the API takes at most 500,000,000 |

  Scenario: A path is a file, whatever its name looks like
    Given the documents
      | file   | content     |
      | file_1 | text a file |
    Then requests about documents are encoded as follows
      | documents             | sources  |
      | [{"path": "file_1"}]  | ["text"] |
      | ["file_1"]            | ["file"] |
      | [{"file_id": "file_1"}] | ["file"] |

  Scenario: citations and documents go together, and not with raw params
    Then the actor's request {"prompt": "a", "citations": true} is refused with "`citations` need `documents`, but there are none"
    And the actor's request {"prompt": "a", "documents": ["a.pdf"], "citations": 1} is refused with "`citations` must be true or false"
    And the actor's request {"params": {}, "documents": ["a.pdf"]} is refused with "`documents` can be used with `prompt` or `messages`"

  Scenario: a file that changed is read again, one that did not is not
    Then the document "notes.md" is read once for 5 requests, and again when it has changed
    And two documents "same.txt" of equal size and time, in two folders, are not mistaken for each other
