@every_python
Feature: What one constructs one closes, and what is constructed for one closes with it

  Scenario: Closing an object closes what was made for it, and nothing else
    Given an API
    Then objects own their providers as follows
      | object                       | provider is closed | usable after |
      | a loaded actor               | yes                | no           |
      | a loaded actor without batches | yes              | no           |
      | a loaded actor, in a block   | yes                | no           |
      | one of two loaded actors     | no                 | no           |
      | an actor of one's provider   | no                 | yes          |
      | an actor of one's provider, in a block | no       | yes          |
      | an opened run                | yes                | no           |
      | an opened run, in a block    | yes                | no           |
      | a run of one's provider      | no                 | yes          |
      | a run of a loaded actor      | no                 | yes          |
      | a client                     | yes                | no           |
      | a client of one's provider   | no                 | no           |
      | an http_client               | yes                | no           |
      | an http_client of one's provider | no             | no           |
      | one's provider               | yes                | no           |

  Scenario: The error names the call that opens it again, with its ledger, and the call does so
    Given an API
    Then using these after they were closed fails, and the named call opens them again
      | object                                | error                                                                                |
      | a loaded actor                        | actor tests/one is closed; open it again with cb.load_actor('…actors.yaml', name='tests/one', ledger='…ledger.db') |
      | a loaded actor without batches        | actor tests/two is closed; open it again with cb.load_actor('…actors.yaml', name='tests/two') |
      | one of two loaded actors              | actor tests/one is closed; open it again with cb.load_actor('…actors.yaml', name='tests/one', ledger='…ledger.db') |
      | an opened run                         | …is closed, with the provider that it was opened with; open it again with cb.open_run('run-…', ledger='…ledger.db') |
      | a run of a loaded actor, with the actor | …is closed, with the provider that it was opened with; open it again with cb.open_run('run-…', ledger='…ledger.db') |
      | one's provider                        | the provider is closed; create a new one with cb.ClaudeBatchProvider(ledger='…ledger.db') |

  Scenario: A loaded actor that was closed cannot be used in any way
    Given an API
    Then each way to ask a loaded actor that was closed is refused

  Scenario: Observers end with their owner, also one that is slow
    Given an API
    And an observer of a loaded actor that takes its time for each event
    When many events wait for it, and its actor is closed while another provider goes on
    Then it gets no event after the close
