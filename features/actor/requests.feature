@every_python
Feature: A request and its actor become Messages params
  Merged once, encoded once.

  Background:
    Given an actor made with {"model": "claude-haiku-4-5", "system_prompt": "You review.", "options": {"temperature": 0.2, "betas": ["b-2", "b-1"]}}

  Scenario: a prompt becomes a user's turn, with the actor's model, system and options
    Then the actor's params for "Hello" are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "temperature": 0.2, "system": "You review.",
       "messages": [{"role": "user", "content": "Hello"}], "betas": ["b-1", "b-2"]}
      """

  Scenario: messages are sent as they are
    Then the actor's params for {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]} are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "temperature": 0.2, "system": "You review.",
       "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "betas": ["b-1", "b-2"]}
      """

  Scenario: blank texts of the assistant, which the API writes but does not accept, are left out
    Given an actor made with {"model": "claude-haiku-4-5", "options": {"max_tokens": 9}}
    When the actor's request {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "\n"}, {"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}]} is encoded
    Then the actor's encoded params are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}]}
      """

  Scenario: raw params only have their gaps filled
    Then the actor's params for {"params": {"messages": [{"role": "user", "content": "a"}], "top_k": 4}} are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "system": "You review.", "top_k": 4,
       "messages": [{"role": "user", "content": "a"}]}
      """
    And the actor's params for {"params": {"model": "m", "max_tokens": 1, "system": "s", "messages": [{"role": "user", "content": "a"}]}} are
      """
      {"model": "m", "max_tokens": 1, "system": "s", "messages": [{"role": "user", "content": "a"}]}
      """

  Scenario: a request is encoded once, with the headers that its lane must share
    When the actor's request "Hello" is encoded
    Then the actor's encoded params are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "temperature": 0.2, "system": "You review.",
       "messages": [{"role": "user", "content": "Hello"}]}
      """
    And the actor's lane has the headers {"anthropic-version": "2023-06-01", "anthropic-beta": "b-1,b-2"}

  Scenario: a user profile goes to its header
    Given an actor made with {"model": "m", "options": {"user_profile_id": "u-1"}}
    When the actor's request "Hello" is encoded
    Then the actor's encoded params are
      """
      {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "Hello"}]}
      """
    And the actor's lane has the headers {"anthropic-version": "2026-10-21", "anthropic-user-profile-id": "u-1"}

  Scenario Outline: a request has one user profile, because the API refuses two: <request>
    Given an actor made with {"model": "m", "options": {"user_profile_id": "u-1"}}
    When the actor's request <request> is encoded with the defaults {"user_profile_id": "u-2"}
    Then the actor's encoded params are
      """
      <params>
      """
    And the actor's lane has the headers <headers>

    Examples:
      | request                                                   | params | headers |
      | "a"                                                       | {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "a"}]} | {"anthropic-version": "2026-10-21", "anthropic-user-profile-id": "u-1"} |
      | {"prompt": "a", "options": {"user_profile_id": "u-3"}}    | {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "a"}]} | {"anthropic-version": "2026-10-21", "anthropic-user-profile-id": "u-3"} |
      | {"params": {"user_profile_id": "u-3", "messages": [{"role": "user", "content": "a"}]}} | {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "a"}], "user_profile_id": "u-3"} | {"anthropic-version": "2026-10-21"} |

  Scenario: what a provider sets by default gives way to what the actor sets
    When the actor's request "Hello" is encoded with the defaults {"max_tokens": 9, "temperature": 0.9, "top_k": 2, "betas": ["x"]}
    Then the actor's encoded params are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "temperature": 0.2, "system": "You review.", "top_k": 2,
       "messages": [{"role": "user", "content": "Hello"}]}
      """
    And the actor's lane has the headers {"anthropic-version": "2023-06-01", "anthropic-beta": "b-1,b-2"}
    And the actor's params with the defaults {"top_k": 2} for "Hello" are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "temperature": 0.2, "system": "You review.", "top_k": 2,
       "messages": [{"role": "user", "content": "Hello"}], "betas": ["b-1", "b-2"]}
      """

  Scenario: a provider's default betas serve an actor that has none
    Given an actor made with {"model": "m"}
    When the actor's request "Hello" is encoded with the defaults {"betas": ["x"]}
    Then the actor's lane has the headers {"anthropic-version": "2026-10-21", "anthropic-beta": "x"}

  Scenario: the actor's max_tokens wins over the provider's, and raw params know no other defaults
    Given an actor made with {"model": "m", "options": {"max_tokens": 3}}
    When the actor's request {"params": {"messages": [{"role": "user", "content": "a"}]}} is encoded with the defaults {"max_tokens": 9, "top_k": 2}
    Then the actor's encoded params are
      """
      {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
      """

  Scenario: a default that the model does not take is dropped, with one warning for all requests
    Given an actor made with {"model": "claude-opus-5-5"}
    And a program that logs
    When the actor's request "Hello" is encoded with the defaults {"temperature": 0.5, "top_k": 1}
    Then the actor's encoded params are
      """
      {"model": "claude-opus-5-5", "max_tokens": 4096, "messages": [{"role": "user", "content": "Hello"}]}
      """
    And the log has 1 line that says "claude-opus-5-5 does not accept `temperature`"
    And the log has 1 line that says "claude-opus-5-5 does not accept `top_k`"

  Scenario: A request overrides its actor's model, options and format
    Then the actor's params for {"prompt": "Hello", "model": "anthropic/claude-opus-5-5", "options": {"temperature": null, "max_tokens": 9, "effort": "x"}} are
      """
      {"model": "claude-opus-5-5", "max_tokens": 9, "system": "You review.", "effort": "x",
       "messages": [{"role": "user", "content": "Hello"}], "betas": ["b-1", "b-2"]}
      """
    And the actor's params for {"prompt": "Hello", "options": {"system": "Be brief."}, "response_format": {"type": "object", "properties": {}}} are
      """
      {"model": "claude-haiku-4-5", "max_tokens": 4096, "temperature": 0.2, "system": "Be brief.",
       "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": false}}},
       "messages": [{"role": "user", "content": "Hello"}], "betas": ["b-1", "b-2"]}
      """

  Scenario: An empty value among an actor's options counts as not set
    Given an actor made with {"model": "m", "system_prompt": "a", "response_format": {"type": "object", "properties": {}}, "tools": ["toolbox:guide"], "options": {"tools": null, "output_config": null, "system": null}}
    Then the actor's params for {"prompt": "Hello"} are
      """
      {"model": "m", "max_tokens": 4096, "system": "a",
       "tools": [{"name": "tour-guide", "description": "Knows its way.", "input_schema": {"additionalProperties": false, "properties": {}, "type": "object"}}],
       "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": false}}},
       "messages": [{"role": "user", "content": "Hello"}]}
      """
    Given an actor made with {"model": "m", "options": {"output_config": null}}
    When the actor's request {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}, "citations": {"enabled": true}}]}]} is encoded
    Then the actor's encoded params are
      """
      {"model": "m", "max_tokens": 4096, "output_config": null,
       "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}, "citations": {"enabled": true}}]}]}
      """

  Scenario: A request's format joins the actor's output_config, and replaces its format
    Given an actor made with {"model": "m", "options": {"output_config": {"effort": "low"}}, "response_format": {"type": "object", "properties": {"a": {"type": "string"}}}}
    Then the actor's params for {"prompt": "Hello", "options": {"output_config": {"effort": "high"}}, "response_format": {"type": "object", "properties": {}}} are
      """
      {"model": "m", "max_tokens": 4096,
       "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": false}}},
       "messages": [{"role": "user", "content": "Hello"}]}
      """

  Scenario: The capabilities that an actor's YAML gives its model hold for no other model
    Given an actor made with {"model": "claude-3-haiku-20240307", "model_capabilities": {"structured_outputs": true}}
    Then the actor's request {"prompt": "a", "model": "claude-3-5-haiku-20241022", "response_format": {"type": "object"}} is refused with "claude-3-5-haiku-20241022"

  Scenario Outline: a prompt is encoded to the same bytes as its params in full, with a key or without, of any type of text
    Given an actor made with <actor>
    Then each odd prompt of the actor has the bytes that its params have, with the defaults <defaults>

    Examples:
      | actor                                                                           | defaults                                  |
      | {"model": "claude-haiku-4-5"}                                                   | {}                                        |
      | {"model": "m", "system_prompt": "Say \"é\"", "options": {"metadata": {"a": 1}}} | {"top_k": 2, "betas": ["x"]}              |
      | {"model": "m", "options": {"betas": ["b"], "stop_sequences": ["user", "}]}"]}}  | {"messages": [], "stop_sequences": ["n"]} |

  Scenario: an option that the model does not take is refused before anything is sent
    Given an actor made with {"model": "claude-opus-5-5", "options": {"temperature": 0.5}}
    Then the actor's request {"id": "k-1", "prompt": "Hello"} is refused with "request 'k-1': claude-opus-5-5 does not accept `temperature`"

  Scenario Outline: a request that the API would refuse hours later is refused at once
    Then the actor's request <request> is refused with "<says>"

    Examples:
      | request                                                                      | says                                                                         |
      | ""                                                                           | the prompt is empty                                                          |
      | " \n"                                                                        | the prompt is empty                                                          |
      | {"prompt": ""}                                                               | the prompt is empty                                                          |
      | {"prompt": 5}                                                                | a prompt must be a text, not int                                                  |
      | {"id": "k", "prompt": " "}                                                   | request 'k': the prompt is empty                                             |
      | {"messages": []}                                                             | `messages` is empty                                                          |
      | {"messages": "hello"}                                                        | `messages` must be a list of messages, not str                                    |
      | {"messages": 5}                                                              | `messages` must be a list of messages, not int                                    |
      | {"messages": ["hello"]}                                                      | message 1 must be a mapping of role and content, not str                          |
      | {"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}           | message 2 has no `content`                                                   |
      | {"messages": [{"content": "a"}]}                                             | message 1 has no `role`                                                      |
      | {"params": [1]}                                                              | `params` must be a mapping, not list                                              |
      | {"params": {}}                                                               | `messages` is missing or empty                                               |
      | {"params": {"messages": [{"role": "user", "content": "a"}], "stream": true}} | `stream: true` is not allowed in a batch                                         |
      | {"params": {"messages": [{"role": "user", "content": "a"}], "speed": "fast"}} | `speed` is not allowed in a batch, nor in a live call of the ledger; remove it, or ask an actor with `batch_processing: false` in Python |
      | {}                                                                           | give exactly one of `prompt`, `messages` and `params`; none is given |
      | {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}              | 2 are given                                                          |
      | {"custom_id": "a", "params": {}}                                             | this is a line of the Messages API's own batch format, in which `custom_id` is the name of a request. Rename `custom_id` to `id`, and keep `params` |
      | {"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {}}             | unknown key `custom_id`; the name of a request is its `id` here; a request has `id` and one of |
      | {"requests": [{"custom_id": "a", "params": {}}]}                             | this is a batch body of the Messages API, which holds many requests; write each item of `requests` as a line of its own: {"id": …, "params": …} |
      | {"prompt": "a", "promt": "b"}                                                | unknown key `promt`                                                          |
      | {"id": "", "prompt": "a"}                                                    | a key must be a non-empty text, not ''                                    |
      | {"id": true, "prompt": "a"}                                                  | a key must be a non-empty text, not True                                  |
      | {"id": true, "promt": "a"}                                                   | unknown key `promt`                                                          |
      | {"id": "a", "key": "b", "prompt": "a"}                                       | `id` and `key` mean the same, but differ                                     |
      | {"prompt": "a", "model": " "}                                                | `model` must be a non-empty text, not str (' ') |
      | {"prompt": "a", "options": [1]}                                              | `options` must be a mapping, not list ('[1]') |
      | {"prompt": "a", "options": {"temperature": NaN}}                             | `temperature` is not a finite number |
      | {"prompt": "a", "options": {"maxtokens": 1}}                                 | did you mean `max_tokens`? |
      | {"id": "k", "prompt": "a", "options": {"messages": []}}                      | request 'k': `messages` is set in a request |
      | {"prompt": "a", "options": {"output_config": "low"}}                         | `output_config` must be a mapping, not str |
      | {"prompt": "a", "options": {"user_profile_id": 5}}                           | `user_profile_id` must be a text, not int |
      | {"prompt": "a", "options": {"model": "m"}}                                   | write `model` beside `options` |
      | {"prompt": "a", "response_format": {"a": 1}}                                 | output_format: is not a JSON schema |
      | {"prompt": "a", "response_format": {"type": "text"}}                         | output_format: is not a JSON schema |
      | {"params": {"messages": [{"role": "user", "content": "a"}]}, "model": "m"}   | in raw `params`, write them there |
      | 5                                                                            | a request must be a text, an ActorRequest or a mapping, not int                   |
      | {"id": "k", "prompt": "a \ud800 b"}                                          | request 'k': the params cannot be written as JSON                                 |

  Scenario: a key that is no Unicode text is refused, and shown escaped
    Then a lone surrogate in the key is taken as follows
      | where                   | error                                                |
      | a request               | request 'a\udc00b': this key has a lone surrogate |
      | a request with messages | request 'a\udc00b': this key has a lone surrogate |
      | a mapping               | request 'a\udc00b': this key has a lone surrogate |
      | beside a prompt         | request 'a\udc00b': this key has a lone surrogate |
      | a call                  | request 'a\udc00b': this key has a lone surrogate |
      | a live call             | request 'a\udc00b': this key has a lone surrogate |
      | a run                   | request 'a\udc00b': this key has a lone surrogate |

  Scenario: A key is taken from the mapping or from the caller, and a request serves as itself
    Then the key of a request is found as follows
      | request                                | key of the caller | key | error                      |
      | "a"                                    | k                 | k   |                            |
      | {"id": 7, "prompt": "a"}               |                   | 7   |                            |
      | {"key": "x", "prompt": "a"}            |                   | x   |                            |
      | {"prompt": "a"}                        | k                 | k   |                            |
      | {"id": "k", "key": "k", "prompt": "a"} | k                 | k   |                            |
      | {"id": "x", "prompt": "a"}             | k                 |     | it already has the key 'x' |

  Scenario: what the requests of an actor share is worked out once
    Then encoders are made and kept as follows
      | actors | requests of each | made | kept |
      | 1      | 100              | 1    | 1    |
      | 64     | 2                | 64   | 64   |
      | 200    | 1                | 200  | 8    |

  Scenario: an actor of another type is refused when it is asked
    Given an actor made with {"type": "tool"}
    Then the actor's request "Hello" is refused with "is of type 'tool', which claude-batch cannot run"

  Scenario: One request is refused if many are expected
    Then many requests are taken as follows
      | requests            | error                      |
      | "one prompt"        | requests must be a list or another iterable |
      | {"prompt": "one"}   | requests must be a list or another iterable |
      | ["one prompt"]      |                            |
      | [{"prompt": "one"}] |                            |
