Feature: The sandbox keeps uploaded files, and answers requests that name them
  Through the official SDK, as everything else.

  Background:
    Given a sandbox with the settings
      """
      {"workspaces": {"sk-other": "wrkspc_other"}}
      """

  Scenario: a file is uploaded, seen, listed and deleted
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    Then calls about the sandbox's files are answered as follows
      | call                                    | key      | status | says                                                                   |
      | GET /v1/files/{file}                    | sk-test  | 200    | …"filename":"notes.txt","mime_type":"text/plain","size_bytes":12…      |
      | GET /v1/files                           | sk-test  | 200    | {"data":[{…"notes.txt"…}],"…                                           |
      | GET /v1/files?ids=file_none&ids={file}  | sk-test  | 200    | {"data":[{…"notes.txt"…}],"…                                           |
      | GET /v1/files                           | sk-other | 200    | {"data":[],…                                                           |
      | GET /v1/files/{file}                    | sk-other | 404    | …not_found_error…                                                      |
    When the SDK deletes the file
    Then calls about the sandbox's files are answered as follows
      | call                    | status | says             |
      | GET /v1/files           | 200    | {"data":[],…     |
      | GET /v1/files/{file}    | 404    | …File not found… |
      | DELETE /v1/files/{file} | 404    | …File not found… |

  Scenario: nobody downloads an uploaded file
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    Then the sandbox's answers are as follows
      | call                         | field         | value                    |
      | GET /v1/files/{file}         | downloadable  | no                       |
      | GET /v1/files/{file}/content | error.type    | invalid_request_error    |
      | GET /v1/files/{file}/content | error.message | File is not downloadable |
      | GET /v1/files/file_x/content | error.type    | not_found_error          |

  Scenario: pages of a long list go on where the last one ended
    Then the SDK lists 5 files that it uploads by pages of 2, newest first

  Scenario: a request is answered, and cited, from the file that it names
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    And a batch about the file is processed, cited
    Then its answer cites "All is well." of the file

  Scenario: a batch that was processed keeps its answers when the file has gone
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    And a batch about the file is processed, cited
    And the SDK deletes the file
    Then its answer cites "All is well." of the file

  Scenario: what a request cannot have as its source is an errored line
    Then requests with an uploaded file as their source are answered as follows
      | file  | mime type  | id       | block    | inside      | type                  | message                               |
      | a.txt | text/plain |          | image    |             | invalid_request_error | …a file of type text/plain cannot be… |
      | a.png | image/png  |          | document |             | invalid_request_error | …a file of type image/png cannot be…  |
      | a.txt | text/plain | file_xyz | document |             | not_found_error       | …File not found: file_xyz…            |
      | a.png | image/png  | file_xyz | image    | tool_result | not_found_error       | …File not found: file_xyz…            |
      | a.png | image/png  |          | document | tool_result | invalid_request_error | …messages.2.content.0.content.0.source: a file of type image/png cannot be… |

  Scenario: Counting the tokens of a request looks up its file, as answering it does
    When the sandbox is called with POST "/v1/messages/count_tokens"
      """
      {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": [
       {"type": "document", "source": {"type": "file", "file_id": "file_none"}}]}]}
      """
    Then the sandbox answers 404 not_found_error saying "File not found: file_none"

  Scenario: A body that is not an upload is refused
    Then an upload to the sandbox is answered as follows
      | type                            | body                                                                       | status | says                       |
      | application/json                | {}                                                                         | 400    | …must be multipart…        |
      | multipart/form-data             | x                                                                          | 400    | …must be multipart…        |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="other"~~x~--b--                  | 400    | …file: Field required…     |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="file"; filename="a.txt"~~~--b--  | 400    | …file: File is empty…      |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="file"; filename="a.txt"~~x~--b-- | 200    | …"mime_type":"text/plain"… |

  Scenario: before the version that has files, they need the beta
    Then calls about the sandbox's files are answered as follows
      | call          | version    | beta                 | status | says                   |
      | GET /v1/files | 2023-06-01 | (none)               | 400    | …files-api-2025-04-14… |
      | GET /v1/files | 2023-06-01 | files-api-2025-04-14 | 200    | {"data":[],…           |

  Scenario: a list has bounds
    Then calls about the sandbox's files are answered as follows
      | call                  | ids | status | says                    |
      | GET /v1/files         | 101 | 400    | …invalid_request_error… |
      | GET /v1/files?limit=0 | 0   | 400    | …invalid_request_error… |
      | GET /v1/files?page=xy | 0   | 400    | …page: Input should be… |
