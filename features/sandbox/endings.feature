Feature: Single requests can be told how to end

  Scenario: By a directive in the prompt
    Given a sandbox
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt                                |
      | plain     | Hello                                 |
      | errored   | Please [[sandbox:errored]] now        |
      | busy      | [[sandbox:errored:overloaded_error]]  |
      | slow      | [[sandbox:errored:download_timeout]]  |
      | gone      | [[sandbox:errored:download_failed]]   |
      | expired   | [[sandbox:expired]]                   |
      | canceled  | [[sandbox:canceled]]                  |
      | refused   | [[sandbox:refused]]                   |
      | strange   | [[sandbox:exploded]]                  |
      | stranger  | [[sandbox:errored:bad_luck]]          |
      | long      | [[sandbox:errored:api_error:twice]]   |
      | paused    | [[sandbox:pause:all]]                 |
      | wrong     | [[sandbox:invalid:all]]               |
      | counted   | [[sandbox:tools:2]]                   |
    Then the sandbox's results end as
      | custom_id | ending                |
      | plain     | succeeded             |
      | errored   | api_error             |
      | busy      | overloaded_error      |
      | slow      | invalid_request_error |
      | gone      | invalid_request_error |
      | expired   | expired               |
      | canceled  | canceled              |
      | refused   | succeeded             |
      | strange   | invalid_request_error |
      | stranger  | invalid_request_error |
      | long      | invalid_request_error |
      | paused    | invalid_request_error |
      | wrong     | invalid_request_error |
      | counted   | invalid_request_error |
    And the sandbox's bill sums up as
      | what     | count |
      | paid     | 2     |
      | errored  | 10    |
      | expired  | 1     |
      | canceled | 1     |
    And the sandbox's bill agrees with the usage of its results

  Scenario: A request at which the sandbox itself fails is errored, and the others of its batch end
    Given a sandbox
    And the sandbox has a bug in its prompt cache
    When the sandbox is sent the batch body
      """
      {"requests": [
        {"custom_id": "bad", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "x"}]}},
        {"custom_id": "good", "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}}]}
      """
    Then the sandbox's results end as
      | custom_id | ending    |
      | bad       | api_error |
      | good      | succeeded |
    When the sandbox is sent the live params
      """
      {"model": "claude-haiku-4-5", "max_tokens": 9, "cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "x"}]}
      """
    Then the sandbox answers 500 api_error saying "Internal server error: the sandbox failed with LookupError"
    And the sandbox's error tells the request id of its header

  Scenario: An answer that the sandbox cannot make is an errored line among the others
    Given a sandbox
    And the sandbox has a bug in its answers in JSON
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt          |
      | bad       | Respond in JSON |
      | good      | Hello           |
    Then the sandbox's results end as
      | custom_id | ending    |
      | bad       | api_error |
      | good      | succeeded |
    And the sandbox's bill sums up as
      | what    | count |
      | paid    | 1     |
      | errored | 1     |
    And the sandbox's bill agrees with the usage of its results

  Scenario Outline: A batch ends if the clock was set back before the end that was due
    Given a sandbox with the settings
      """
      {"latency": 0, "counts": "live"}
      """
    When the sandbox's clock moves on by 100 seconds
    And the sandbox is sent a batch of 2 requests
    And the sandbox's clock moves on by <seconds> seconds
    And the sandbox's last batch is read back
    Then the sandbox's answer has the fields
      | field             | value      |
      | processing_status | "<status>" |
    And the sandbox's results end as
      | custom_id | ending    |
      | r0        | succeeded |
      | r1        | succeeded |

    Examples:
      | seconds | status      |
      | 0       | ended       |
      | -60     | in_progress |

  Scenario: A refusal is a success that stops for it
    Given a sandbox
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt              |
      | r0        | [[sandbox:refused]] |
    Then the sandbox's line for "r0" succeeded
    And the sandbox's message stops for "refusal" with 0 blocks

  Scenario: Once means the first time that equal params are processed
    Given a sandbox
    And the sandbox has a batch of the prompts
      | custom_id | prompt                                      |
      | first     | [[sandbox:errored:overloaded_error:once]]   |
      | second    | [[sandbox:errored:overloaded_error:once]]   |
      | other     | [[sandbox:errored:once]]                    |
      | refused   | [[sandbox:refused:once]]                    |
    Then the sandbox's results end as
      | custom_id | ending           |
      | first     | overloaded_error |
      | second    | succeeded        |
      | other     | api_error        |
      | refused   | succeeded        |
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt                   |
      | again     | [[sandbox:errored:once]] |
    Then the sandbox's results end as
      | custom_id | ending    |
      | again     | succeeded |

  Scenario: A live message ends errored or refused, and is never expired or canceled
    Given a sandbox
    When the sandbox is sent a live prompt "[[sandbox:errored:overloaded_error]]"
    Then the sandbox answers 529 overloaded_error saying "Overloaded"
    When the sandbox is sent a live prompt "[[sandbox:errored:download_timeout]]"
    Then the sandbox answers 400 invalid_request_error saying "The request timed out while trying to download the file"
    When the sandbox is sent a live prompt "[[sandbox:expired]]"
    Then the sandbox answers 200

  Scenario: By the fault plan
    Given a sandbox with the fault plan
      """
      {"requests": [
        {"contains": "café \"b\"", "outcome": "errored",
         "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API.", "details": {"error_code": "credits"}}},
        {"custom_id": "*-7", "outcome": "expired"},
        {"contains": "nth", "nth": [2], "outcome": "canceled"},
        {"contains": "every", "every": 2, "outcome": "refused"},
        {"contains": "errored", "times": 1, "outcome": "errored"}]}
      """
    When the sandbox is sent a batch of the prompts
      | custom_id | prompt                    |
      | a         | about the café "b"        |
      | b-7       | seven                     |
      | c         | nth one                   |
      | d         | nth two                   |
      | e         | errored                   |
      | f         | errored                   |
      | g         | [[sandbox:canceled]] nth three |
    Then the sandbox's line for "a" is errored: invalid_request_error saying "Your credit balance is too low"
    And the sandbox's results end as
      | custom_id | ending                |
      | a         | invalid_request_error |
      | b-7       | expired               |
      | c         | succeeded             |
      | d         | canceled              |
      | e         | api_error             |
      | f         | succeeded             |
      | g         | canceled              |
    When the sandbox is sent a live prompt "nothing special"
    Then the sandbox answers 200

  Scenario: By the fault plan, once for equal params, even when the plan came later
    Given a sandbox
    And the sandbox has a batch of the prompts
      | custom_id | prompt |
      | a         | same   |
      | b         | same   |
      | c         | other  |
    When the sandbox is given the fault plan
      """
      {"requests": [{"outcome": "errored", "once": true, "error": {"type": "timeout_error"}}]}
      """
    Then the sandbox's results end as
      | custom_id | ending        |
      | a         | timeout_error |
      | b         | succeeded     |
      | c         | timeout_error |
