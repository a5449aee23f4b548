@every_python
Feature: Answers in a shape: asked for as a schema, and validated

  Scenario: Every way of asking returns validated objects
    Given an API that remembers what it is asked
    And a batch provider
    When "an invoice" is asked for as Invoice in every way
    Then every answer is an object of Invoice
    And the model's requests have
      | field                       | value         |
      | 0.output_config.format.type | "json_schema" |
      | 0.tools                     |               |
      | 0.tool_choice               |               |
      | 5.output_config.format.type | "json_schema" |
      | 5.tools                     |               |
      | 5.tool_choice               |               |

  Scenario: A live actor gives them too
    Given an API
    And a live actor
    When "an invoice" is asked for as Invoice in every way
    Then every answer is an object of Invoice

  Scenario Outline: A JSON schema as the format gives decoded JSON in every way: <who>
    Given an API that remembers what it is asked
    And <who>
    When every way asks for "an invoice" by the JSON schema {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}
    Then every answer is a mapping with "number"
    And the model's requests have
      | field                                              | value         |
      | 0.output_config.format.type                        | "json_schema" |
      | 0.output_config.format.schema.additionalProperties | false         |

    Examples:
      | who              |
      | a batch provider |
      | a live actor     |

  Scenario: A mapping that is not a JSON schema is refused before anything is sent
    Given an API
    And a batch provider
    Then formats of a call are refused as follows
      | format                                       | error                              |
      | {"a": 1}                                     | output_format: is not a JSON schema |
      | {"type": "text"}                             | output_format: is not a JSON schema |
      | {"type": "object", "patternProperties": {}}  | output_format: the API does not accept this schema |
    And in the ledger the counts of runs are [0]

  Scenario: An answer that does not validate is a failed result beside the others, after a resume too
    Given an API whose model answers as it is told
    And a batch provider
    When a run of these prompts is submitted as Picky
      | prompt                                     |
      | say: {"number": "12", "total": 3.5}        |
      | say: {"number": "twelve", "total": 3.5}    |
      | say: {"number": "12", "total": "a lot"}    |
      | say: sorry                                 |
    And the results are read in order
    Then the results by place have
      | field                           | value                                                                    |
      | 0.response.parsed_output.number | "12"                                                                     |
      | 0.response.parsed_output.total  | 3.5                                                                      |
      | 1.error                         | "OutputValidationError: …number: Value error, has other characters…" |
      | 1.error.text                    | "{…twelve…}"                                                             |
      | 1.error.batch_id                | "msgbatch_…"                                                             |
      | 2.error                         | "OutputValidationError: …total: Input should be a valid number…"     |
      | 3.error                         | "OutputValidationError: …Invalid JSON…"                              |
    When another provider opens the run
    And the results are read in order, as Flat
    Then the results by place have
      | field                           | value                                                                |
      | 0.response.parsed_output.total  | 3.5                                                                  |
      | 1.response.parsed_output.number | "twelve"                                                             |
      | 1.response.parsed_output.total  | 3.5                                                                  |
      | 2.error                         | "OutputValidationError: …total: Input should be a valid number…" |
      | 3.error                         | "OutputValidationError: …Invalid JSON…"                          |
      | 3.error.text                    | "sorry"                                                              |

  Scenario: A validator that raises any exception fails its own result, and no other
    Given an API whose model answers as it is told
    And a batch provider
    When a run of these prompts is submitted as Priced
      | prompt                                 |
      | say: {"number": "12", "total": 3.5}    |
      | say: {"number": "none", "total": 3.5}  |
      | say: {"number": "odd", "total": 3.5}   |
    And the results are read in order
    Then the results by place have
      | field                           | value                                                            |
      | 0.response.parsed_output.number | "12"                                                             |
      | 1.error                         | "OutputValidationError: …Priced: its validator raised KeyError: 'none'. It was billed…" |
      | 1.error.text                    | "{…none…}"                                                       |
      | 1.error.response.text           | "{…none…}"                                                       |
      | 2.response.parsed_output.number | "odd"                                                            |
    When the actor is asked in vain for a Priced: "say: {"number": "none", "total": 3.5}"
    Then it fails as OutputValidationError and says "its validator raised KeyError: 'none'"
    When the actor is asked in vain for a Quitting: "say: {"number": 12}"
    Then it fails as OutputValidationError and says "its validator raised SystemExit: no answer is good enough"

  Scenario: A folder of results has the text of an answer whose validator or serializer failed
    Given a command's folder
    And an API whose model answers as it is told
    And a batch provider
    When the prompts are asked as Priced into the folder "priced", by submit and wait
      | prompt                                 |
      | say: {"number": "12", "total": 3.5}    |
      | say: {"number": "none", "total": 3.5}  |
      | say: {"number": "odd", "total": 3.5}   |
    Then the file "priced/000001.json" of JSON has
      | field         | value |
      | parsed.number | 7     |
    And the file "priced/000002.json" of JSON has
      | field  | value   |
      | ok     | true    |
      | parsed | nothing |
    And the file "priced/000003.json" of JSON has
      | field  | value   |
      | ok     | true    |
      | parsed | nothing |

  Scenario: A live answer whose validator raises any exception fails with its text
    Given an API whose model answers as it is told
    And an actor that is asked live with {"validation_attempts": 2}, with the tools "silent"
    When the actor is asked in vain for a Priced: "say: {"number": "none", "total": 3.5}"
    Then it fails as OutputValidationError and says "its validator raised KeyError: "
    When the actor is asked in vain for a Quitting: "say: {"number": 12}"
    Then it fails as OutputValidationError and says "its validator raised SystemExit: no answer is good enough"

  Scenario: An answer that was cut short is reported as such
    Given an API
    And a batch provider
    And its actor's file has
      """
      options: {max_tokens: 10}
      """
    When the actor is asked in vain for a Invoice: "an invoice"
    Then it fails as OutputValidationError and says "it was truncated (max_tokens)"
    And the error's fields are
      | field | value |
      | text  | "{…"  |

  Scenario: A shape that the API cannot take is refused before anything is stored
    Given an API
    And a batch provider
    When the actor is asked in vain for a Book: "a"
    Then it fails as InvalidRequestError and says "output_format Book"
    When a run of these prompts is submitted as Book
      | prompt |
      | b      |
    Then it fails as InvalidRequestError and says "output_format Book"
    And in the ledger the counts of runs are [0]

  Scenario: The same key asked for another shape is another request
    Given an API
    And a batch provider
    When "an invoice" is asked for as Invoice with the key "k"
    And "an invoice" is asked for as Flat with the key "k"
    Then every call fails with KeyConflictError
