Feature: The sandbox answers as the recorded service does
  What recordings and reports of the service show, where its documentation is silent or differs.

  Scenario: Times are written with an offset and microseconds
    Given a sandbox
    And the sandbox has a batch of 1 requests
    And the sandbox's batches have had their time
    Then the sandbox's answers are as follows
      | call                             | field       | value          |
      | GET /v1/messages/batches/{batch} | created_at  | …T…:…:….…+00:00 |
      | GET /v1/messages/batches/{batch} | expires_at  | …T…:…:….…+00:00 |
      | GET /v1/messages/batches/{batch} | ended_at    | …T…:…:….…+00:00 |
      | GET /v1/messages/batches/{batch} | archived_at | null           |

  Scenario: A batch in progress says when to look again, and all batch routes report their limit
    Given a sandbox
    And the sandbox has a batch of 1 requests
    Then the sandbox's headers are as follows
      | call                                         | header                                 | value  |
      | GET /v1/messages/batches/{batch}             | retry-after                            | 10     |
      | GET /v1/messages/batches/{batch}             | anthropic-ratelimit-requests-limit     | 4000   |
      | GET /v1/messages/batches/{batch}             | anthropic-ratelimit-requests-remaining | 39…    |
      | GET /v1/messages/batches/{batch}             | anthropic-ratelimit-requests-reset     | …T…:…Z |
      | GET /v1/messages/batches                     | anthropic-ratelimit-requests-limit     | 4000   |
      | GET /v1/messages/batches                     | retry-after                            | none   |
      | GET /v1/messages/batches/{batch}/results     | anthropic-ratelimit-requests-limit     | 4000   |
      | GET /v1/messages/batches/{batch}/results     | x-should-retry                         | false  |
      | GET /v1/messages/batches/msgbatch_no         | x-should-retry                         | none   |
      | GET /v1/messages/batches/msgbatch_no/results | x-should-retry                         | false  |
      | POST /v1/messages/batches/{batch}/cancel     | anthropic-ratelimit-requests-limit     | 4000   |
      | GET /v1/models                               | anthropic-ratelimit-requests-limit     | none   |
    When the sandbox's batches have had their time
    Then the sandbox's headers are as follows
      | call                                     | header         | value               |
      | GET /v1/messages/batches/{batch}         | retry-after    | none                |
      | GET /v1/messages/batches/{batch}/results | x-should-retry | none                |
      | GET /v1/messages/batches/{batch}/results | content-type   | application/x-jsonl |

  Scenario: A fault that answers 404 for results forbids a retry too
    Given a sandbox with the fault
      """
      {"route": "results", "action": {"type": "error", "status": 404}}
      """
    Then the sandbox's headers are as follows
      | call                                      | header         | value |
      | GET /v1/messages/batches/msgbatch/results | x-should-retry | false |

  Scenario: Refusals in the service's words
    Given a sandbox
    And the sandbox has a batch of 1 requests
    Then the sandbox's answers are as follows
      | call                                     | field         | value                                                                          |
      | GET /v1/messages/batches/msgbatch_no     | error.message | Message Batch msgbatch_no not found.                                           |
      | GET /v1/messages/batches/{batch}/results | error.message | Message Batch {batch} has no available results.                                |
      | DELETE /v1/messages/batches/{batch}      | error.message | In progress batches cannot be deleted. Consider canceling the batch instead.   |
    When the sandbox is called with GET "/v1/models"
      | header    | value      |
      | x-api-key | sk-invalid |
    Then the sandbox answers 401 authentication_error saying "API key is invalid."
    When the sandbox is sent the batch body
      """
      {"requests": [{"custom_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "params": {}}]}
      """
    Then the sandbox answers 400 invalid_request_error saying "requests.0.custom_id: String should have at most 64 characters"

  Scenario: An errored line has details, and an id only if its request was worked on
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                                                                        | field                                | value          |
      | {"max_tokens": 0}                                                                             | error.error.details.error_visibility | user_facing    |
      | {"max_tokens": 0}                                                                             | error.request_id                     | null           |
      | {"max_tokens": 0}                                                                             | error.error.message                  | max_tokens: must be greater than or equal to 1 |
      | {"messages": [{"role": "user", "content": "[[sandbox:errored:download_timeout]]"}]}           | error.request_id                     | workerreq_…    |
      | {"messages": [{"role": "user", "content": "[[sandbox:errored:download_timeout]]"}]}           | error.error.details.error_visibility | user_facing    |
      | {"messages": [{"role": "user", "content": "[[sandbox:errored:overloaded_error]]"}]}           | error.error.details                  | null           |
      | {"messages": [{"role": "user", "content": "[[sandbox:errored:overloaded_error]]"}]}           | error.request_id                     | workerreq_…    |

  Scenario: A message has every field that the service sends
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                                      | field                                               | value                     |
      | {}                                                          | message.model                                       | claude-haiku-4-5-20251001 |
      | {}                                                          | message.stop_details                                | null                      |
      | {}                                                          | message.container                                   | null                      |
      | {}                                                          | message.diagnostics                                 | null                      |
      | {}                                                          | message.usage.inference_geo                         | not_available             |
      | {}                                                          | message.usage.output_tokens_details                 | (absent)                  |
      | {}                                                          | message.usage.service_tier                          | batch                     |
      | {"model": "claude-opus-4-6"}                                | message.model                                       | claude-opus-4-6           |
      | {"model": "claude-opus-4-6"}                                | message.usage.inference_geo                         | global                    |
      | {"model": "claude-opus-4-6"}                                | message.usage.output_tokens_details.thinking_tokens | 0                         |
      | {"model": "claude-opus-4-6", "inference_geo": "us"}         | message.usage.inference_geo                         | us                        |
      | {"model": "claude-opus-4-6", "stop_sequences": ["x"]}       | message.usage.inference_geo                         | global                    |
      | {"model": "claude-sonnet-4-5", "stop_sequences": ["never"]} | message.container                                   | null                      |
      | {"tools": [{"name": "look", "input_schema": {}}], "tool_choice": {"type": "any"}} | message.content.0.caller.type | direct                    |

  Scenario: A model is known by the shape of its name, and answers under its own id
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                   | field               | value                      |
      | {"model": "claude-sonnet-4-0"}           | message.model       | claude-sonnet-4-20250514   |
      | {"model": "claude-3-5-haiku-latest"}     | message.model       | claude-3-5-haiku-20241022  |
      | {"model": "claude-opus-4-5-20251101"}    | message.model       | claude-opus-4-5-20251101   |
      | {"model": "claude-tomorrow-7"}           | message.model       | claude-tomorrow-7          |
      | {"model": "claude-mythos-preview"}       | message.model       | claude-mythos-preview      |
      | {"model": "claude-haiku-4.5"}            | error.error.type    | not_found_error            |
      | {"model": "claude-haiku-4.5"}            | error.error.message | model: claude-haiku-4.5    |
      | {"model": "gpt-5"}                       | error.error.type    | not_found_error            |

  Scenario: Each model has its own limit of output
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                                      | field               | value                                                                                                           |
      | {"model": "claude-haiku-4-5", "max_tokens": 64000}          | type                | succeeded                                                                                                       |
      | {"model": "claude-haiku-4-5", "max_tokens": 64001}          | error.error.message | max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for claude-haiku-4-5-20251001   |
      | {"model": "claude-3-haiku-20240307", "max_tokens": 4097}    | error.error.message | max_tokens: 4097 > 4096, …                                                                                      |
      | {"model": "claude-opus-4-1", "max_tokens": 32001}           | error.error.message | max_tokens: 32001 > 32000, …                                                                                    |
      | {"model": "claude-sonnet-5-5", "max_tokens": 128000}        | type                | succeeded                                                                                                       |
      | {"model": "claude-sonnet-5-5", "max_tokens": 128001}        | error.error.message | max_tokens: 128001 > 128000, …                                                                                  |
    And the sandbox's answers are as follows
      | call                             | field            | value                     |
      | GET /v1/models/claude-haiku-4-5  | id               | claude-haiku-4-5-20251001 |
      | GET /v1/models/claude-haiku-4-5  | max_tokens       | 64000                     |
      | GET /v1/models/claude-haiku-4-5  | max_input_tokens | 200000                    |
      | GET /v1/models/claude-opus-5-5   | max_tokens       | 128000                    |
      | GET /v1/models/claude-haiku-4.5  | error.message    | model: claude-haiku-4.5   |
      | GET /v1/models                   | first_id         | claude-opus-5-5           |
      | GET /v1/models?limit=2           | last_id          | claude-sonnet-5-5         |
      | GET /v1/models?limit=1001        | error.message    | limit: Input should be from 1 to 1000 |

  Scenario: Some models think unasked, some only if asked
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                                                                          | field                                               | value                                  |
      | {"model": "claude-opus-5-5"}                                                                    | message.content.0.type                              | thinking                               |
      | {"model": "claude-opus-5-5"}                                                                    | message.content.0.thinking                          |                                        |
      | {"model": "claude-opus-5-5"}                                                                    | message.content.1.type                              | text                                   |
      | {"model": "claude-opus-5-5"}                                                                    | message.usage.output_tokens_details.thinking_tokens | 14                                     |
      | {"model": "claude-opus-5-5", "thinking": {"type": "adaptive", "display": "summarized"}}         | message.content.0.thinking                          | The sandbox thinks…                    |
      | {"model": "claude-opus-5-5", "max_tokens": 20}                                                  | message.content.0.type                              | text                                   |
      | {"model": "claude-opus-5-5", "thinking": {"type": "enabled", "budget_tokens": 1024}}            | error.error.message                                 | "thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior. |
      | {"model": "claude-opus-5-5", "thinking": {"type": "disabled"}}                                  | error.error.message                                 | "thinking.type.disabled" is not supported … |
      | {"model": "claude-opus-5", "thinking": {"type": "disabled"}}                                    | message.content.0.type                              | text                                   |
      | {"model": "claude-opus-4-6"}                                                                    | message.content.0.type                              | text                                   |
      | {"model": "claude-opus-4-6", "thinking": {"type": "adaptive"}}                                  | message.content.0.thinking                          | The sandbox thinks…                    |
      | {"model": "claude-haiku-4-5"}                                                                   | message.content.0.type                              | text                                   |
      | {"model": "claude-haiku-4-5", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}} | message.content.0.thinking                          | The sandbox thinks…                    |
      | {"model": "claude-haiku-4-5", "thinking": 7}                                                    | error.error.message                                 | thinking: Input should be …            |
      | {"model": "claude-opus-5", "tools": [{"name": "look", "input_schema": {}}], "tool_choice": {"type": "any"}} | message.content.0.type                  | tool_use                               |
      | {"model": "claude-opus-5", "tools": [{"name": "look", "input_schema": {}}], "messages": [{"role": "user", "content": "[[sandbox:tools]]"}]} | message.content.1.type | tool_use                |

  Scenario: A prompt that asks for JSON is answered in JSON
    Given a sandbox
    Then the sandbox's lines are as follows
      | params                                                                                                                                                                                                                                  | field                  | value                     |
      | {"messages": [{"role": "user", "content": "Respond with a JSON object."}]}                                                                                                                                                              | message.content.0.text | {"answer":"Sandbox answer…"} |
      | {"system": "Always answer in JSON.", "messages": [{"role": "user", "content": "How many?"}]}                                                                                                                                            | message.content.0.text | {"answer":"Sandbox answer…"} |
      | {"system": "Always respond with a JSON object that fits this schema:\n{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}, \"required\": [\"n\"]}\nNo other text.", "messages": [{"role": "user", "content": "How many?"}]} | message.content.0.text | {"n":1}                   |
      | {"messages": [{"role": "user", "content": [{"type": "text", "text": "For the JSON schema {\"properties\": {\"a\": {\"type\": \"string\"}}} an example is {\"a\": \"b\"}. Here is yours: {\"properties\": {\"n\": {\"type\": \"boolean\"}}, \"required\": [\"n\"]}"}]}]} | message.content.0.text | {"n":true} |
      | {"messages": [{"role": "user", "content": "Answer in JSON by the schema {\"properties\": {\"n\": {\"type\": \"array\", \"minItems\": \"x\"}}}"}]}                                                                                             | message.content.0.text | {"answer":"Sandbox answer…"} |
      | {"messages": [{"role": "user", "content": "Review: def f(): return json.dumps({1: 2})"}]}                                                                                                                                               | message.content.0.text | Sandbox answer…           |
      | {"messages": [{"role": "user", "content": "Respond in Json."}]}                                                                                                                                                                         | message.content.0.text | {"answer":"Sandbox answer…"} |
      | {"messages": [{"role": "user", "content": "What is JSON?"}]}                                                                                                                                                                            | message.content.0.text | Sandbox answer…           |
    And the sandbox's bill agrees with the usage of its results

  Scenario: A stream pings after its first block has begun
    Given a sandbox
    Then the sandbox streams events as follows
      | params                       | events                                                                                                                                                              |
      | {"model": "claude-opus-5-5"} | message_start content_block_start ping content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop |

  Scenario: A cancellation can take its time, as in the service
    Given a sandbox with the settings
      """
      {"cancel_latency": 25}
      """
    And the sandbox has a batch of 1 requests
    When the sandbox is called with POST "/v1/messages/batches/{batch}/cancel"
    And the sandbox's clock moves on by 24 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field             | value       |
      | processing_status | "canceling" |
    When the sandbox's clock moves on by 2 seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field             | value   |
      | processing_status | "ended" |

  Scenario: Counts can move while a batch is in progress
    Given a sandbox with the settings
      """
      {"counts": "live", "cancel_latency": 60}
      """
    And the sandbox has a batch of the prompts
      | custom_id | prompt              |
      | r0        | Hello               |
      | r1        | [[sandbox:errored]] |
      | r2        | Hello               |
      | r3        | Hello               |
    When the sandbox's clock moves on by 1900 seconds
    Then the sandbox's answers are as follows
      | call                                     | field                     | value       |
      | GET /v1/messages/batches/{batch}         | request_counts.processing | 2           |
      | GET /v1/messages/batches/{batch}         | request_counts.succeeded  | 1           |
      | GET /v1/messages/batches/{batch}         | request_counts.errored    | 1           |
      | POST /v1/messages/batches/{batch}/cancel | processing_status         | canceling   |
    When the sandbox's clock moves on by 61 seconds
    Then the sandbox's answers are as follows
      | call                             | field                     | value |
      | GET /v1/messages/batches/{batch} | request_counts.processing | 0     |
      | GET /v1/messages/batches/{batch} | request_counts.succeeded  | 1     |
      | GET /v1/messages/batches/{batch} | request_counts.errored    | 1     |
      | GET /v1/messages/batches/{batch} | request_counts.canceled   | 2     |

  Scenario: A list can be bounded on both sides
    Given a sandbox
    And the sandbox has 5 batches of 1 requests
    When the sandbox is called with GET "/v1/messages/batches?after_id={batch}&before_id={first}&limit=2"
    Then the sandbox's list shows the batches 4 3

  Scenario: An id that does not exist can name an example, as in a mock server
    Given a sandbox with the settings
      """
      {"any_id": true}
      """
    Then the sandbox's answers are as follows
      | call                                              | field             | value                 |
      | GET /v1/messages/batches/message_batch_id         | processing_status | in_progress           |
      | POST /v1/messages/batches/message_batch_id/cancel | processing_status | canceling             |
      | DELETE /v1/messages/batches/message_batch_id      | type              | message_batch_deleted |
      | GET /v1/messages/batches/message_batch_id         | id                | message_batch_id      |
      | GET /v1/messages/batches?after_id=a&before_id=b   | has_more          | no                    |
      | GET /v1/messages/batches/message_batch_id/results | 0.custom_id       | my-custom-id-1        |
      | GET /v1/files/file_id                             | downloadable      | yes                   |
      | GET /v1/files?page=page                           | next_page         | null                  |
      | GET /v1/models/model_id                           | id                | model_id              |
    When the sandbox is called with GET "/v1/files/file_id/content"
    Then the sandbox's answer contains "Example data"
