@every_python
Feature: The sandbox answers live messages

  Scenario: A stream has the same content as a single answer
    Given a sandbox
    Then the official SDK reads a stream like the whole answer, as follows
      | params                                                                                                                                                                                                                                          | stop_reason | blocks |
      | {"messages": [{"role": "user", "content": "Tell me something long enough for pieces"}]}                                                                                                                                                         | end_turn    | 1      |
      | {"max_tokens": 3, "messages": [{"role": "user", "content": "Tell me"}]}                                                                                                                                                                         | max_tokens  | 1      |
      | {"max_tokens": 0, "messages": [{"role": "user", "content": "Warm the cache"}]}                                                                                                                                                                  | max_tokens  | 0      |
      | {"messages": [{"role": "user", "content": "[[sandbox:refused]]"}]}                                                                                                                                                                              | refusal     | 0      |
      | {"tools": [{"name": "look", "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}}}], "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "Look"}]}                                               | tool_use    | 1      |
      | {"messages": [{"role": "user", "content": [{"type": "document", "title": "D", "source": {"type": "text", "media_type": "text/plain", "data": "The sky is blue."}, "citations": {"enabled": true}}, {"type": "text", "text": "What colour?"}]}]} | end_turn    | 1      |

  Scenario: Other kinds of blocks are streamed too
    Given a sandbox with a responder
    Then the sandbox streams events as follows
      | params                                                  | text             | events         |
      | {"messages": [{"role": "user", "content": "thinking"}]} | …thinking_delta… | … message_stop |

  Scenario: Tokens are counted as they are billed, with the beta's path too
    Given a sandbox
    Then the official SDK reads from the sandbox as follows
      | call                       | arguments                                                                                                                    | field              | value |
      | messages.create            | {"model": "claude-haiku-4-5", "system": "Be brief.", "messages": [{"role": "user", "content": "Count me"}], "max_tokens": 9} | usage.input_tokens | 13    |
      | messages.count_tokens      | {"model": "claude-haiku-4-5", "system": "Be brief.", "messages": [{"role": "user", "content": "Count me"}]}                  | input_tokens       | 13    |
      | beta.messages.count_tokens | {"model": "claude-haiku-4-5", "system": "Be brief.", "messages": [{"role": "user", "content": "Count me"}]}                  | input_tokens       | 13    |

  Scenario: An image counts by its pixels at any position
    Given a sandbox
    Then the official SDK reads from the sandbox as follows
      | call                  | arguments | field        | value |
      | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAANSUhEUgAAARgAAAEYAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}]}]} | input_tokens | 127 |
      | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAANSUhEUgAAARgAAAEYAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}]}]}]} | input_tokens | 170 |
      | messages.count_tokens | {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAANSUhEUgAAARgAAAEYAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}]}}]}]} | input_tokens | 142 |

  Scenario: Counting checks the params at once
    Given a sandbox
    When the sandbox is called with POST "/v1/messages/count_tokens"
      """
      {"messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 400 invalid_request_error saying "model: Field required"

  Scenario Outline: Counting takes no parameter that has nothing to do with the prompt
    Given a sandbox
    When the sandbox is called with POST "/v1/messages/count_tokens"
      """
      {"model": "claude-haiku-4-5", <extra>, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 400 invalid_request_error saying "<name>: Extra inputs are not permitted"

    Examples:
      | name           | extra                         |
      | max_tokens     | "max_tokens": 9               |
      | stream         | "stream": true                |
      | metadata       | "metadata": {"user_id": "u"}  |
      | stop_sequences | "stop_sequences": ["."]       |
      | service_tier   | "service_tier": "auto"        |
      | temperature    | "temperature": 1              |

  Scenario: Models are listed
    Given a sandbox
    Then the official SDK reads from the sandbox as follows
      | call            | arguments                       | field        | value                                                                                     |
      | models.list     | {"limit": 2}                    | *.id         | ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-haiku-4-5-20251001"] |
      | models.retrieve | {"model_id": "claude-opus-5-5"} | display_name | Claude Opus 5 5                                                                           |
    When the sandbox is called with GET "/v1/models/unknown-model"
    Then the sandbox answers 404 not_found_error saying "unknown-model"

  Scenario Outline: A live mistake is answered at once
    Given a sandbox
    When the sandbox is sent the live params
      """
      <params>
      """
    Then the sandbox answers <status> <kind> saying "<message>"

    Examples:
      | params                                                                                     | status | kind                  | message      |
      | {"model":                                                                                  | 400    | invalid_request_error | not valid JSON |
      | {"model": "claude-opus-4-6", "max_tokens": -1, "messages": [{"role": "user", "content": "x"}]}    | 400    | invalid_request_error | equal to 0   |
      | {"model": "unknown-x", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}    | 404    | not_found_error       | unknown-x    |
      | {"model": "claude-opus-4-6", "max_tokens": 1, "temperature": 1, "messages": [{"role": "user", "content": "x"}]} | 400 | invalid_request_error | temperature |

  Scenario: A live message is on the bill
    Given a sandbox
    And the sandbox has a batch of 2 requests
    And the sandbox's batches have had their time
    When the sandbox is sent a live prompt "Prompt 1"
    And the sandbox is sent a live prompt "[[sandbox:errored]]"
    Then the sandbox's bill sums up as
      | what                     | count |
      | requests                 | 4     |
      | batches                  | 1     |
      | live                     | 2     |
      | paid                     | 3     |
      | errored                  | 1     |
      | distinct_params          | 3     |
      | paid_more_than_once      | 1     |
      | processed_more_than_once | 1     |
    And the sandbox's bill has 4 records
    And the sandbox's answers are as follows
      | call                                               | field    | value    |
      | GET /sandbox/billing?batch_id={batch}              | 0.route  | batch    |
      | GET /sandbox/billing?batch_id={batch}              | 1.route  | batch    |
      | GET /sandbox/billing?batch_id={batch}              | 2        | (absent) |
      | GET /sandbox/billing?batch_id={batch}&summary=true | requests | 2        |

  Scenario: An empty bill is an empty list
    Given a sandbox
    And the sandbox has a batch of 2 requests
    Then the sandbox's bill has 0 records

  Scenario Outline: A marked prefix is written to the cache once, and read afterwards
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, <shared>, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts tokens of the kind "<written>" alone
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, <shared>, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts tokens of the kind "read" alone
    When the sandbox's clock moves on by <kept> seconds
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, <shared>, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts tokens of the kind "<written>" alone

    Examples:
      | shared                                                                                                      | written | kept |
      | "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral"}}]        | 5m      | 301  |
      | "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral", "ttl": "1h"}}] | 1h | 3601 |
      | "system": "A long shared prefix", "tools": [{"name": "a", "input_schema": {}, "cache_control": {"type": "ephemeral"}}] | 5m      | 301  |
      | "system": "A long shared prefix", "cache_control": {"type": "ephemeral"}                                    | 5m      | 301  |

  Scenario: In a batch the first request of a prefix writes it and the next one reads it
    Given a sandbox
    And the sandbox has a batch of the requests
      """
      {"requests": [
        {"custom_id": "r0", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}],
         "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}},
        {"custom_id": "r1", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "two"}],
         "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}}]}
      """
    And the sandbox's batches have had their time
    Then the sandbox's answers are as follows
      | call                                     | field                                               | value |
      | GET /v1/messages/batches/{batch}/results | r0.result.message.usage.cache_creation_input_tokens | 11    |
      | GET /v1/messages/batches/{batch}/results | r0.result.message.usage.cache_read_input_tokens     | 0     |
      | GET /v1/messages/batches/{batch}/results | r1.result.message.usage.cache_creation_input_tokens | 0     |
      | GET /v1/messages/batches/{batch}/results | r1.result.message.usage.cache_read_input_tokens     | 11    |
    And the sandbox's bill agrees with the usage of its results

  Scenario: A turn reads from the cache what the turns before it wrote, up to 20 blocks back
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts tokens of the kind "5m" alone
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "one"},
       {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]}
      """
    Then the sandbox's answer has the fields
      | field                             | value |
      | usage.cache_read_input_tokens     | 10    |
      | usage.cache_creation_input_tokens | 23    |
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "one"}, {"role": "user", "content": [
       {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"},
       {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"},
       {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"},
       {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"},
       {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}, {"type": "text", "text": "a"}]}]}
      """
    Then the sandbox's usage counts tokens of the kind "5m" alone

  Scenario: A prompt that only names the mark uses no cache
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": null, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's answer has the fields
      | field                             | value |
      | usage.cache_creation_input_tokens | 0     |
      | usage.cache_read_input_tokens     | 0     |

  Scenario: The usage of a live message has the speed that sets its price
    Given a sandbox
    When the sandbox is sent the live params
      """
      {"model": "claude-opus-5-5", "max_tokens": 9, "speed": "fast", "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox's answer has the fields
      | field       | value  |
      | usage.speed | "fast" |
    When the sandbox is called with POST "/v1/messages"
      """
      {"model": "claude-opus-5-5", "max_tokens": 9, "speed": "high", "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 400 invalid_request_error saying "speed: Input should be 'standard' or 'fast'"

  Scenario Outline: A live answer can take its time, in seconds or with a unit
    Given a sandbox with the settings
      """
      {"live_latency": <duration>}
      """
    When the sandbox is sent a live prompt "Hello"
    Then the sandbox answers 200
    And the sandbox took 0.05 seconds or more

    Examples:
      | duration |
      | 0.05     |
      | "50ms"   |

  Scenario: Each answer reports the limits per minute, and they are enforced
    Given a sandbox
    When the sandbox is given the fault plan
      """
      {"rate_limits": {"requests": 60, "input_tokens": 6000000, "output_tokens": 60, "requests_left": 3, "output_tokens_left": 2}}
      """
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "Tell me something long"}]}
      """
    Then the sandbox tells that of 60 requests 2 remain, of 6000000 input-tokens some, of 60 output-tokens 0
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 429 rate_limit_error saying "60 output tokens per minute"
    And the sandbox's header "retry-after" is "1….…"
    When the sandbox's clock moves on by 20 seconds
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox tells that of 60 requests 21 remain, of 6000000 input-tokens some, of 60 output-tokens 0
