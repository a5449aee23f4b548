@slow @long
Feature: A server that does not end its answers holds up closing for seconds, unless money is at stake

  Background:
    Given a server that means harm, before an API

  Scenario: A POST whose answer drips is given up, and the next driver finds what became of it
    Given it answers the first 1 create calls with a byte now and then
    When three prompts are run with --max-wait 3s
    Then the command line exits with 3
    And it used less than 25 s
    And in the ledger the states of the batches are ["unknown"]
    When the server means no harm any more
    And the run is resumed
    Then the command line exits with 0
    And nothing was sent twice

  Scenario: A live call is waited for, because it may have been paid for
    Given a command's folder
    And it answers the first 1 live calls with an answer after 15 s
    When three prompts are run with --mode live --max-wait 2s
    Then the command line exits with 3
    When the run is resumed
    Then the command line exits with 0
    And the file "out.jsonl" has 3 lines
    And 3 calls were paid for live, none twice
