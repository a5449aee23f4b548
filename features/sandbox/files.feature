Feature: The sandbox keeps uploaded files, and answers requests that name them
  Through the official SDK, as everything else.

  Background:
    Given a running sandbox of files

  Scenario: a file is uploaded, seen, listed and deleted
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    Then the SDK retrieves it as "notes.txt" of type "text/plain" and 12 bytes
    And the SDK lists it, by its id too
    And another key's workspace does not find it
    When the SDK deletes the file
    Then the SDK does not find it any more

  Scenario: nobody downloads an uploaded file
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    Then the sandbox's answers are as follows
      | call                         | field         | value                    |
      | GET /v1/files/{file}         | downloadable  | no                       |
      | GET /v1/files/{file}/content | error.type    | invalid_request_error    |
      | GET /v1/files/{file}/content | error.message | File is not downloadable |
      | GET /v1/files/file_x/content | error.type    | not_found_error          |

  Scenario: pages of a long list go on where the last one ended
    When the SDK uploads 5 files
    Then the SDK lists 5 files by pages of 2, newest first

  Scenario: a request is answered, and cited, from the file that it names
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    And a batch about the file is processed, cited
    Then its answer cites "All is well." of the file

  Scenario: a batch that was processed keeps its answers when the file has gone
    When the SDK uploads "notes.txt" of type "text/plain" with "All is well."
    And a batch about the file is processed, cited
    And the SDK deletes the file
    Then its answer cites "All is well." of the file

  Scenario Outline: what a request cannot have as its source is an errored line
    When the SDK uploads "<name>" of type "<type>" with "x"
    And a batch about <which> is processed as <kind>
    Then its line is an error "<error>" that says "<says>"

    Examples:
      | name  | type       | which      | kind     | error                 | says                                |
      | a.txt | text/plain | the file   | image    | invalid_request_error | a file of type text/plain cannot be |
      | a.png | image/png  | the file   | document | invalid_request_error | a file of type image/png cannot be  |
      | a.txt | text/plain | "file_xyz" | document | not_found_error       | File not found: file_xyz            |

  Scenario: What is no upload is refused
    Then an upload to the sandbox is answered as follows
      | type                            | body                                                                       | status | says                       |
      | application/json                | {}                                                                         | 400    | …must be multipart…        |
      | multipart/form-data             | x                                                                          | 400    | …must be multipart…        |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="other"~~x~--b--                  | 400    | …file: Field required…     |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="file"; filename="a.txt"~~~--b--  | 400    | …file: File is empty…      |
      | multipart/form-data; boundary=b | --b~Content-Disposition: form-data; name="file"; filename="a.txt"~~x~--b-- | 200    | …"mime_type":"text/plain"… |

  Scenario: before the version that has files, they need the beta
    Then version "2023-06-01" without the beta is refused, and with it is not
    And a list of 101 ids is refused, and so is a limit of 0
