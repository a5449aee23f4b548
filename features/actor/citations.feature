@every_python
Feature: What an answer cites is shown, for the whole and for each field

  Scenario: every kind of citation has its text, document, title and place
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "It says "},
       {"type": "text", "text": "so", "citations": [
         {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": "A", "start_char_index": 3, "end_char_index": 9, "file_id": null},
         {"type": "page_location", "cited_text": "b", "document_index": 1, "document_title": null, "start_page_number": 2, "end_page_number": 3, "file_id": "file_1"},
         {"type": "page_location", "cited_text": "b", "document_index": 1, "document_title": null, "start_page_number": 2, "end_page_number": 5}]},
       {"type": "text", "text": "and", "citations": [
         {"type": "content_block_location", "cited_text": "c", "document_index": 2, "document_title": "C", "start_block_index": 0, "end_block_index": 1},
         {"type": "search_result_location", "cited_text": "d", "search_result_index": 0, "source": "kb/1", "title": "D", "start_block_index": 1, "end_block_index": 3},
         {"type": "web_search_result_location", "cited_text": "e", "title": "E", "url": "https://e.example", "encrypted_index": "x"},
         {"type": "of_tomorrow", "cited_text": "f"}]},
       {"type": "text", "text": ".", "citations": null}]
      """
    Then every answer cites
      | claim | text | kind          | document | title | place             | file_id | url               |
      | so    | a    | characters    | 0        | A     | characters 3 to 9 |         |                   |
      | so    | b    | pages         | 1        |       | page 2            | file_1  |                   |
      | so    | b    | pages         | 1        |       | pages 2 to 4      |         |                   |
      | and   | c    | blocks        | 2        | C     | block 0           |         |                   |
      | and   | d    | search_result | 0        | D     | blocks 1 to 2     |         | kb/1              |
      | and   | e    | web           |          | E     | https://e.example |         | https://e.example |

  Scenario: a shape and citations together are asked for as labelled fields
    Given an actor made with {"model": "m", "system_prompt": "Be brief.", "options": {"output_config": {"effort": "low"}}}
    And the documents
      | file | content |
      | r.md | text R  |
    Then the actor asked for Receipt with {"prompt": "What?", "documents": ["r.md"], "citations": true} sends
      | field         | value                                     |
      | system        | "Be brief.\n\nAnswer with the fields…"    |
      | output_config | {"effort": "low"}                         |
    And the actor asked for Receipt with {"prompt": "What?", "documents": ["r.md"], "citations": true} tells the model
      """
      Answer with the fields
      [[number]] {
      "description":"As printed"
      [[issued]] {"type":"string","format":"date"}
      [[currency]] {"enum":["EUR","USD"]
      """
    And the actor asked for Receipt with {"prompt": "What?", "documents": ["r.md"]} sends
      | field                                            | value                                |
      | output_config.effort                             | "low"                                |
      | output_config.format.schema.properties.tags.type | "array"                              |

  Scenario: a system prompt in blocks gets the labelled fields as one more block
    Given an actor made with {"model": "m", "options": {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}}
    And the documents
      | file | content |
      | r.md | text R  |
    Then the actor asked for Receipt with {"prompt": "What?", "documents": ["r.md"], "citations": true} sends
      | field         | value                                                                 |
      | system.0      | {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}} |
      | system.1.type | "text"                                                                |
      | system.2      |                                                                       |
      | output_config |                                                                       |
    And the actor asked for Receipt with {"prompt": "What?", "documents": ["r.md"], "citations": true} tells the model
      """
      [[number]] {
      "description":"As printed"
      [[issued]] {"type":"string","format":"date"}
      [[currency]] {"enum":["EUR","USD"]
      """

  Scenario: nested values are asked for by their paths
    Given an actor made with {"model": "m"}
    And the documents
      | file | content |
      | r.md | text R  |
    Then the actor asked for Order with {"prompt": "What?", "documents": ["r.md"], "citations": true} tells the model
      """
      counted from 0, and write all lines of one object before those of the next: [[items[0].what]] and its other lines, then [[items[1].what]], and so on.
      [[number]] {"type":"string"}
      [[seller.name]] {"type":"string"}
      [[seller.vat]] {"anyOf":[{"type":"string"},{"type":"null"}]}
      items: In the order of the document
      items[]: A line of the order, without its total.
      [[items[].what]] {"type":"string"}
      [[items[].price]] {"anyOf":[{"type":"number"},{"type":"string"
      [[items[].marks]] {"type":"array","items":{"type":"string"}
      [[payment.kind]] {"anyOf":[{"const":"card"},{"const":"transfer"}]}
      [[payment.number]] {"type":"string"
      [[payment.bank]] {"type":"string"}
      [[grid[]]] {"type":"array","items":{"type":"integer"}
      """

  Scenario: A field that cannot have a label is refused with the reason
    Given an actor made with {"model": "m"}
    And the documents
      | file | content |
      | r.md | text R  |
    Then the actor is asked for these shapes as follows
      | shape      | request                                                                         | error |
      | Mixed      | {"id": "k", "prompt": "What?", "documents": ["r.md"], "citations": true} | request 'k': field `of[]`: with citations, the answer is requested as labelled fields, because the API does not accept a schema together with citations. Its type is not known, or it is one |
      | list[Flat] | {"id": "k", "prompt": "What?", "documents": ["r.md"], "citations": true} | request 'k': with citations, …This format has no fields |

  Scenario Outline: labelled fields are read into the model, each with its citations
    Given an actor response with the blocks
      """
      <blocks>
      """
    Then the actor response read as Receipt <outcome>
    And the actor response read as Receipt has the field citations <cited>

    Examples:
      | blocks | outcome | cited |
      | [{"type": "text", "text": "[[number]] "}, {"type": "text", "text": "7", "citations": [{"type": "page_location", "cited_text": "No. 7"}]}, {"type": "text", "text": "\n[[issued]] 2026-05-03\n[[total]] 86.20\n[[currency]] EUR\n[[paid]] null\n[[tags]] a\n[[tags]] b"}] | is {"number": "7", "issued": "2026-05-03", "total": "86.20", "currency": "EUR", "paid": null, "tags": ["a", "b"], "note": null} | {"number": ["No. 7"], "issued": [], "total": [], "currency": [], "paid": [], "tags": []} |
      | [{"type": "text", "text": "Here:\n[[number]] [[x]] 1\n[[issued]] 2026-05-03\n", "citations": [{"type": "page_location", "cited_text": "both"}]}, {"type": "text", "text": "[[total]] 1\n[[currency]] USD\n[[paid]] true\n[[tags]] null\n[[note]] null"}] | is {"number": "[[x]] 1", "issued": "2026-05-03", "total": "1", "currency": "USD", "paid": true, "tags": [], "note": null} | {"number": ["both"], "issued": ["both"], "total": [], "currency": [], "paid": [], "tags": [], "note": []} |
      | [{"type": "text", "text": "[[number]] 7\n[[issued]] soon\n[[total]] 1\n[[currency]] EUR\n[[paid]] maybe"}] | is refused with "issued: Input should be a valid date or datetime, input is too short; paid: Input should be a valid boolean" | {"number": [], "issued": [], "total": [], "currency": [], "paid": []} |
      | [{"type": "text", "text": "{\"number\": \"[[number]]\"}"}] | is refused with "issued: Field required" | {} |

  Scenario Outline: nested fields are read into the model, and cited by their paths: <what>
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "[[number]] 7\n<lines>"}, {"type": "text", "text": "6", "citations": [{"type": "page_location", "cited_text": "No. 7"}]}]
      """
    Then the actor response read as Order is {"number": "7", <order>}
    And the actor response read as Order has the field citations {"number": [], <cited>}

    Examples:
      | what | lines | order | cited |
      | two objects | [[seller.name]] X\n[[seller.vat]] null\n[[items[0].what]] a [[b]]\n[[items[0].price]] 1\n[[items[1].what]] c\n[[items[1].price]] | "seller": {"name": "X", "vat": null}, "items": [{"what": "a [[b]]", "price": "1", "marks": []}, {"what": "c", "price": "6", "marks": []}], "payment": null, "grid": [] | "seller.name": [], "seller.vat": [], "items[0].what": [], "items[0].price": [], "items[1].what": [], "items[1].price": ["No. 7"] |
      | counted from 1 | [[seller.name]] null\n[[seller.vat]] null\n[[items[1].what]] a\n[[items[1].price]] 1\n[[items[3].what]] c\n[[items[3].price]] | "seller": null, "items": [{"what": "a", "price": "1", "marks": []}, {"what": "c", "price": "6", "marks": []}], "payment": null, "grid": [] | "seller.name": [], "seller.vat": [], "items[0].what": [], "items[0].price": [], "items[1].what": [], "items[1].price": ["No. 7"] |
      | no number | [[items[].what]] a\n[[items[].price]] | "seller": null, "items": [{"what": "a", "price": "6", "marks": []}], "payment": null, "grid": [] | "items[0].what": [], "items[0].price": ["No. 7"] |
      | lists of scalars | [[items[0].what]] a\n[[items[0].price]] 1\n[[items[0].marks]] x\n[[items[0].marks[1]]] y\n[[grid[0]]] 1\n[[grid[1]]] 5\n[[grid[1]]] | "seller": null, "items": [{"what": "a", "price": "1", "marks": ["x", "y"]}], "payment": null, "grid": [[1], [5, 6]] | "items[0].what": [], "items[0].price": [], "items[0].marks": [], "grid[0]": [], "grid[1]": ["No. 7"] |
      | an empty list | [[items[0].what]] null\n[[items[0].price]] null\n[[payment.kind]] card\n[[payment.bank]] null\n[[payment.number]] | "seller": null, "items": [], "payment": {"kind": "card", "number": "6"}, "grid": [] | "payment.kind": [], "payment.bank": [], "payment.number": ["No. 7"] |

  Scenario Outline: labelled fields are read as the model means them: <what>
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "<text>"}]
      """
    Then the actor response read as <model> is <value>

    Examples:
      | what                      | model  | text                                                                                                                   | value                                                                |
      | a label inside a value    | Wiki   | [[summary]] It links [[tags]] pages.\n[[tags]] wiki\n  [[page]] 4\n                                                    | {"summary": "It links [[tags]] pages.", "tags": ["wiki"], "page": 4} |
      | labels on one line        | Wiki   | Here: [[summary]] It is short. [[tags]] wiki [[tags]] two\n[[page]] 4                                                  | {"summary": "It is short.", "tags": ["wiki", "two"], "page": 4}      |
      | labels that begin a block | Wiki   | [[summary]] It links [[page]] 9."}, {"type": "text", "text": " [[tags]] wiki\n"}, {"type": "text", "text": "[[page]] 4 | {"summary": "It links [[page]] 9.", "tags": ["wiki"], "page": 4}     |
      | a list without items      | Wiki   | [[summary]] An orphan.\n[[page]] 4                                                                                     | {"summary": "An orphan.", "tags": [], "page": 4}                     |
      | literals of several types | Rating | [[stars]] 2\n[[marks]] true\n[[marks]] 1\n[[marks]] 3\n[[score]] 4.5                                                   | {"stars": 2, "marks": [true, "1", 3], "score": 4.5}                  |
      | a literal that is a text  | Rating | [[stars]] n/a\n[[score]] none                                                                                          | {"stars": "n/a", "marks": [], "score": "none"}                       |

  Scenario: a price that is given twice for one object is an error, and not a guess
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "[[number]] 7\n[[items[0].what]] a\n[[items[0].price]] 1\n[[items[0].price]] 2"}]
      """
    Then the actor response read as Order is refused with "items.0.price"

  Scenario: without the model the fields are texts
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "[[a]] 1\n[[b]] x\n[[b]] y\n[[c[0].d]] z"}]
      """
    Then the actor response read as JSON is {"a": "1", "b": ["x", "y"], "c[0].d": "z"}

  Scenario Outline: without the model, double brackets in a text or in JSON are no labels: <text>
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "<text>"}]
      """
    Then the actor response read as JSON is refused with "the answer is not valid JSON"

    Examples:
      | text                                         |
      | The capital is [[Paris]], on the [[Seine]].  |
      | ```json\n{\"link\": \"[[Paris]]\"}\n```      |
