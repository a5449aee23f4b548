Feature: A server that points elsewhere gets no second request

  Scenario Outline: A redirect of a live call halts sending; nothing fails, and nothing is followed
    Given an API
    And the API answers live calls with each {"type": "redirect", "status": <status>, "location": "http://127.0.0.1:9/elsewhere"}
    And a batch provider with {"mode": "live", "probe_interval": "200ms"}
    When a run of 5 prompts is stored at once
    Then the run's state becomes halted
    And the status says "it points to http://127.0.0.1:9/elsewhere"
    And the run's fields are
      | field               | value                                            |
      | status.failed       | 0                                                |
      | status.halt.reason  | "refused"                                        |
      | status.halt.message | "…it points to http://127.0.0.1:9/elsewhere…" |
    When the API has no faults any more
    And the run is finished at last
    And the results are read in order
    Then there are 5 results in the order of the prompts
    And 5 calls were paid for live, none twice

    Examples:
      | status |
      | 301    |
      | 307    |

  Scenario: An actor that is asked live halts too, for all of its requests
    Given a live server, and a live actor of model "claude-haiku-4-5"
    And a live provider with {"max_retries": 0, "concurrency": 1}
    And the live server answers with the fault {"type": "redirect", "location": "http://127.0.0.1:9/"}
    When the live actor is asked "Say hello"
    Then the live call failed as AccountHaltedError with the words "a redirect, which is not followed; check the base URL"
    And the live error's fields are
      | field  | value     |
      | reason | "refused" |
    When the live actor is asked for all of 50 prompts in order
    Then all 50 live results are halted for "refused", and the server was called at most 3 times
