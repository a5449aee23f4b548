@unmeasured
Feature: Thousands of calls wait for hours
  Memory and signs of life are counted; nothing here depends on the speed of the machine.

  Scenario: Calls wait for a simulated day
    Given a gateway over the sandbox with {"latency": 86400, "hold": 20, "ping": 300}
    When 1000 calls wait for 24 hours of the gateway's simulated clock
    Then each call has had 288 signs of life, at most 300 seconds apart
    And each call is answered when the batch ends
    And the API has processed 1000 requests, none twice

  Scenario: Held calls take little memory
    Given a gateway of its own process over the sandbox
    When 1000 calls of 2000 bytes each wait at the gateway
    Then each of them takes at most 64 KiB of the gateway's memory
