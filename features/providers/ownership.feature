@every_python
Feature: What one constructs one closes, and what is constructed for one closes with it

  Scenario: Closing an object closes what was made for it, and nothing else
    Given an API
    Then objects own their providers as follows
      | object                                          | provider is closed | usable after | others are usable |
      | a loaded actor                                  | yes                | no           |                   |
      | a loaded actor without batches                  | yes                | no           |                   |
      | a made actor                                    | yes                | no           |                   |
      | a loaded actor, in a block                      | yes                | no           |                   |
      | a loaded actor, in an async block               | yes                | no           |                   |
      | one of two loaded actors                        | no                 | no           | yes               |
      | one of two loaded actors, in a block            | no                 | no           | yes               |
      | a loaded actor beside an actor of the registry  | no                 | no           | yes               |
      | a loaded actor before an actor of the registry  | no                 | no           | yes               |
      | an actor of one's provider                      | no                 | yes          | yes               |
      | an actor of one's provider, in a block          | no                 | yes          | yes               |
      | an opened run                                   | yes                | no           |                   |
      | an opened run, in a block                       | yes                | no           |                   |
      | an opened run, in an async block                | yes                | no           |                   |
      | a run of one's provider                         | no                 | yes          | yes               |
      | a run of a loaded actor                         | no                 | yes          | yes               |
      | a client                                        | yes                | no           |                   |
      | a client of one's provider                      | no                 | no           | yes               |
      | an http_client                                  | yes                | no           |                   |
      | an http_client of one's provider                | no                 | no           | yes               |
      | one's provider                                  | yes                | no           |                   |
      | one's provider, in a block                      | yes                | no           |                   |
      | one's provider, in an async block               | yes                | no           |                   |

  Scenario: The error names the call that opens it again, with its ledger, and the call does so
    Given an API
    Then the use of a closed object fails, and the call that the error names opens it again as follows
      | object                                | error says                                                                           | opens |
      | a loaded actor                        | actor tests/one is closed; open it again with cb.load_actor('…actors.yaml', name='tests/one', ledger='…ledger.db') | Actor |
      | a loaded actor without batches        | actor tests/two is closed; open it again with cb.load_actor('…actors.yaml', name='tests/two') | Actor |
      | a made actor                          | actor local/actor is closed; open it again with cb.make_actor('claude-haiku-4-5', ledger='…ledger.db') | Actor |
      | one of two loaded actors              | actor tests/one is closed; open it again with cb.load_actor('…actors.yaml', name='tests/one', ledger='…ledger.db') | Actor |
      | an opened run                         | …is closed, with the provider that it was opened with; open it again with cb.open_run('run-…', ledger='…ledger.db') | Run |
      | a run of a loaded actor, with the actor | …is closed, with the provider that it was opened with; open it again with cb.open_run('run-…', ledger='…ledger.db') | Run |
      | one's provider                        | the provider is closed; create a new one with cb.ClaudeBatchProvider(ledger='…ledger.db') | ClaudeBatchProvider |

  Scenario: A loaded actor that was closed cannot be used in any way
    Given an API
    Then each way to ask a loaded actor that was closed is refused

  Scenario: The block of an actor closes it in a cancelled scope of anyio
    Given an API that takes 3600 seconds for a batch
    When this program runs
      """
      import threading
      import anyio

      def engines():
          return [each for each in threading.enumerate() if each.name == "claude-batch-engine"]

      async def main():
          with anyio.move_on_after(1):
              async with cb.make_actor("claude-haiku-4-5", "Be brief.", **settings) as actor:
                  await actor.respond("one")
          with anyio.fail_after(20):
              while engines():
                  await anyio.sleep(0.05)
          try:
              await actor.respond("two")
          except cb.ActorConfigurationError as error:
              print(str(error)[:27])

      anyio.run(main)
      """
    Then the program has printed
      """
      actor local/actor is closed
      """

  Scenario: Observers end with their owner, also one that is slow
    Given an API
    When a loaded actor with an observer that takes its time is closed, while many events wait
    Then its observer gets no event after that, while others go on
