Feature: Functions of the user are called where they belong, and a fault in them loses nothing

  Scenario Outline: post_process receives each result before its caller: <provider>, <how>
    Given an API
    And <provider> whose post_process keeps results
    When the prompts "one, two, [[sandbox:errored]] three" are asked, <how>
    Then post_process has had 2 answers and 1 failures, each before its caller

    Examples:
      | provider         | how                |
      | a batch provider | one by one         |
      | a batch provider | one by one, synchronously |
      | a batch provider | together           |
      | a batch provider | together, synchronously |
      | a live provider  | one by one         |
      | a live provider  | one by one, synchronously |
      | a live provider  | together           |
      | a live provider  | together, synchronously |

  Scenario Outline: A post_process that <fault> changes no result: <provider>
    Given an API
    And <provider> whose post_process <fault>
    When the prompts "one, two" are asked, together
    Then 2 results are answers and 0 are errors
    And the log says "<words>"

    Examples:
      | provider         | fault               | words                                      |
      | a batch provider | raises              | post_process failed for the result of      |
      | a batch provider | hangs               | post_process did not return within 0.2 s   |
      | a batch provider | hangs on the loop   | post_process did not return within 0.2 s   |
      | a live provider  | raises              | post_process failed for the result of      |
      | a live provider  | hangs               | post_process did not return within 0.2 s   |

  Scenario: What cannot be a post_process is refused
    Then providers are refused as follows
      | settings                      | error                                             |
      | {"post_process": 7}           | post_process: 7 is not callable                   |
      | {"post_process_timeout": "0"} | post_process_timeout: it must be more than 0      |
