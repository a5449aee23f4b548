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
    Then the actor response cites
      | claim | text | kind          | document | title | place             | file_id | url               |
      | so    | a    | characters    | 0        | A     | characters 3 to 9 |         |                   |
      | so    | b    | pages         | 1        |       | page 2            | file_1  |                   |
      | so    | b    | pages         | 1        |       | pages 2 to 4      |         |                   |
      | and   | c    | blocks        | 2        | C     | block 0           |         |                   |
      | and   | d    | search_result | 0        | D     | blocks 1 to 2     |         | kb/1              |
      | and   | e    | web           |          | E     | https://e.example |         | https://e.example |
    And the actor response's citations are frozen, and survive pickling

  Scenario: a shape and citations together are asked for as labelled fields
    Given an actor made with {"model": "m", "system_prompt": "Be brief.", "options": {"output_config": {"effort": "low"}}}
    Then the actor asked for a Receipt of a cited document is told the fields after "Be brief.", and sends no schema
    And the actor asked for a Receipt of a cited document, its system prompt in blocks, is told the fields in a block more
    And the actor asked for a Receipt of a document that is not cited sends its schema

  Scenario: What fits behind no label is refused with the reason
    Then models are asked for of a cited document as follows
      | model | error |
      | Invoice | request 'k': field `lines`: with citations, the answer is requested as labelled fields, because the API does not accept a schema together with citations. A nested value cannot be labelled; flatten the model |
      | list[Flat] | This format has no fields |

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

  Scenario: without the model the fields are texts
    Given an actor response with the blocks
      """
      [{"type": "text", "text": "[[a]] 1\n[[b]] x\n[[b]] y"}]
      """
    Then the actor response read as JSON is {"a": "1", "b": ["x", "y"]}
