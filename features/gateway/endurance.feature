Feature: Many calls wait for hours
  Memory and signs of life are counted; nothing here depends on the speed of the machine.

  Scenario: Calls wait for a simulated day
    Given a gateway over the sandbox with {"latency": 86400, "hold": 20, "ping": 300}
    When 200 calls wait for 24 hours of the gateway's simulated clock
    Then each call has had 288 signs of life, at most 300 seconds apart
    And each of 200 callers has the answer to its own question
    And the API has processed 200 requests, none twice

  Scenario: Held calls take little memory
    Then each of 1000 waiting calls of 2000 bytes takes at most 64 KiB of a gateway
