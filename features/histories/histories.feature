@slow @long
Feature: Random histories keep the promises

  Real drivers on a real ledger, a simulated API and simulated time. Processes die and are deposed,
  calls fail, clocks jump, batches are hidden and deleted, people cancel and decide. After each step
  the ledger is compared with what the API knows: nothing is lost, and nothing is paid for twice.

  @both_backends
  Scenario: Random histories keep the promises
    When random histories are played
    Then none of them breaks a promise

  @both_backends
  Scenario: Random histories with live calls keep the promises
    When random histories with live calls are played
    Then none of them breaks a promise

  @both_backends
  Scenario: Random histories with conversations keep the promises
    When random histories with conversations are played
    Then none of them breaks a promise

  @both_backends
  Scenario: Random histories with restored copies keep the promises
    When random histories with restored copies are played
    Then none of them breaks a promise

  Scenario: Random histories with runs that are asked again keep the promises
    When random histories with runs that are asked again are played
    Then none of them breaks a promise

  Scenario: Random histories with equal requests keep the promises
    When random histories with equal requests are played
    Then none of them breaks a promise

  Scenario: Random histories with conversations in restored copies keep the promises
    When random histories with conversations in restored copies are played
    Then none of them breaks a promise

  Scenario: Random histories with runs that are asked again in restored copies keep the promises
    When random histories with runs that are asked again in restored copies are played
    Then none of them breaks a promise

  Scenario Outline: A driver that <rule> is found out
    When random histories are played with a driver that <rule>
    Then one of them breaks a promise

    Examples:
      | rule                                              |
      | takes an unknown sending for not accepted at once |
      | sends a create again that got no answer           |
      | does not note that the tail may have left         |
      | sends a request again whose line is missing       |
      | gives up results that three fetches lacked        |
      | adopts a batch that may be another sending        |
      | writes although it was deposed                    |
      | packs what no budget has room for                 |
      | sends what a lowered budget has no room for       |
      | sends more batches of a run at once than it may   |
      | asks live again after an error that may hide an answer |
      | withdraws what was sent                           |
      | runs any interrupted tool again                   |
      | does not note that a tool starts                  |
      | asks a turn again whose answer met a cancellation |
      | judges answers for a process that lives           |
      | forgets how another process judged                |
      | sends before it is recovered                      |
      | lets all keys send when the workspace of one is recovered |
      | is recovered before all that it forgot is known   |
      | forgets that a recovery had renewed it            |
      | forgets the answers to what is answered already   |
      | leaves the answers to what it does not know       |
      | asks live again what it may have forgotten |
      | takes a forgotten turn for the first one                  |
      | does not count the tools that it starts                   |
      | gives the number of a forgotten sending again             |
      | sends a batch after its deadline                          |
      | sends live what a batch may have answered                 |
      | sees no budget but that of the actor                      |
      | counts a batch on the day on which it was packed          |
      | counts nothing that was sent before a budget              |
      | makes a new run of what is asked again                    |
      | retries what is lost with what has failed                 |
      | takes a run up that is being cancelled                    |
      | sends what an equal request has the answer to             |
      | sends what its run has twice                              |
      | forgets the keys of calls                                 |
      | makes a call again whose process has died                 |
