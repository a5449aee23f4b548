@every_python
Feature: The sandbox answers live messages

  Scenario Outline: A stream tells what one answer tells
    Given a sandbox
    Then the official SDK streams from the sandbox what it answers at once
      """
      <params>
      """

    Examples:
      | params |
      | {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "Tell me something long enough for pieces"}]} |
      | {"model": "claude-haiku-4-5", "max_tokens": 3, "messages": [{"role": "user", "content": "Tell me"}]} |
      | {"model": "claude-haiku-4-5", "max_tokens": 0, "messages": [{"role": "user", "content": "Warm the cache"}]} |
      | {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "[[sandbox:refused]]"}]} |
      | {"model": "claude-haiku-4-5", "max_tokens": 100, "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}}}], "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "Look"}]} |
      | {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": [{"type": "document", "title": "D", "source": {"type": "text", "media_type": "text/plain", "data": "The sky is blue."}, "citations": {"enabled": true}}, {"type": "text", "text": "What colour?"}]}]} |

  Scenario: Other kinds of blocks are streamed too
    Given a sandbox with a responder
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "stream": true, "messages": [{"role": "user", "content": "thinking"}]}
      """
    Then the sandbox's answer contains "thinking_delta"
    And the sandbox's answer contains "event: message_stop"

  Scenario: Tokens are counted as they are billed, with the beta's path too
    Given a sandbox
    Then the official SDK counts the tokens that the sandbox bills

  Scenario: Counting checks the params at once
    Given a sandbox
    When the sandbox is called with POST "/v1/messages/count_tokens"
      """
      {"messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 400 invalid_request_error saying "model: Field required"

  Scenario: Models are listed
    Given a sandbox
    Then the official SDK lists the sandbox's models
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
    And the sandbox's bill of the last batch has 2 records, live none

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
    Then the sandbox's usage counts "<written>" written and nothing read
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, <shared>, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts everything read and nothing written
    When the sandbox's clock moves on by <kept> seconds
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, <shared>, "messages": [{"role": "user", "content": "one"}]}
      """
    Then the sandbox's usage counts "<written>" written and nothing read

    Examples:
      | shared                                                                                                      | written | kept |
      | "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral"}}]        | 5m      | 301  |
      | "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral", "ttl": "1h"}}] | 1h | 3601 |
      | "system": [{"type": "text", "text": "A long shared prefix", "cache_control": {"type": "ephemeral", "ttl": "9y"}}] | 5m | 301  |
      | "system": "A long shared prefix", "tools": [{"name": "a", "cache_control": {"type": "ephemeral"}}]          | 5m      | 301  |
      | "system": "A long shared prefix", "cache_control": {"type": "ephemeral"}                                    | 5m      | 301  |

  Scenario: In a batch the first request of a prefix writes it and the others read it
    Given a sandbox
    Then the sandbox's batch of a shared prefix of 3 requests writes once and reads twice
    And the sandbox's bill agrees with the usage of its results

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

  Scenario: A live answer can take its time
    Given a sandbox with the settings
      """
      {"live_latency": 0.05}
      """
    When the sandbox is sent a live prompt "Hello"
    Then the sandbox answers 200

  Scenario: Each answer reports the limits per minute, and they are enforced
    Given a sandbox
    When the sandbox is given the fault plan
      """
      {"rate_limits": {"requests": 60, "input_tokens": 60000, "output_tokens": 600, "requests_left": 3, "output_tokens_left": 2}}
      """
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "Tell me something long"}]}
      """
    Then the sandbox tells that of 60 requests 2 remain, of 60000 input-tokens some, of 600 output-tokens 0
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 429 rate_limit_error saying "600 output tokens per minute"
    And the sandbox says to wait for some seconds
    When the sandbox's clock is moved on by as long
    And the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox tells that of 60 requests 2 remain, of 60000 input-tokens some, of 600 output-tokens 0
