@every_python @file_ledger
Feature: The first use of a provider opens the ledger, and blocks no event loop
  Another program holds the ledger, and lets it go only when the caller's loop has ticked: a loop
  that waits for the ledger itself would wait for ever.

  Scenario: An event loop goes on while the ledger is locked
    Given an API
    Then the first use of a provider succeeds once the loop of its caller has freed the ledger as follows
      | locked by others | first use is to         | ticks | succeeds |
      | against writes   | respond                 | 20    | yes      |
      | altogether       | respond                 | 20    | yes      |
      | against writes   | submit                  | 20    | yes      |
      | altogether       | submit                  | 20    | yes      |
      | altogether       | respond to all          | 20    | yes      |
      | against writes   | ask by the SDK's client | 20    | yes      |
      | against writes   | wait for an opened run  | 20    | yes      |
      | against writes   | give up storing         | 20    | yes      |

  Scenario: A caller that gives up while the ledger opens leaves the others waiting
    Given an API
    And another program that has locked the ledger against writes
    And a batch provider
    When "first" is asked in the background
    And "other" is asked in the background
    And the caller of "first" leaves
    And the other program lets the ledger go
    And the calls in the background have ended
    Then all 1 are answered

  Scenario: A ledger that could not be opened is tried again by the next use
    Given an API
    And a batch provider
    When "first" is asked while there is a folder in the place of the ledger
    Then every call fails with LedgerError
    When 1 prompts are asked at once
    Then all 1 are answered

  Scenario: A ledger that no thread could open is tried again by the next use
    Given an API
    When this program runs
      """
      import threading

      start = threading.Thread.start

      def start_all_but_one(thread):
          if thread.name == "claude-batch-open":
              threading.Thread.start = start
              raise RuntimeError("can't start new thread")
          start(thread)

      threading.Thread.start = start_all_but_one

      async def ask():
          async with cb.ClaudeBatchProvider(**settings) as provider:
              for _ in range(2):
                  asking = asyncio.create_task(cb.Actor(asker, provider).respond("hello"))
                  await asyncio.wait([asking], timeout=10)
                  print(type(asking.exception()).__name__ if asking.done() else "hangs")

      asyncio.run(ask())
      """
    Then the program has printed
      """
      EngineStoppedError
      NoneType
      """

  Scenario: A provider that is closed while it opens raises an error that names the cause
    Given an API
    And another program that has locked the ledger against writes
    And a batch provider
    When "never" is asked in the background
    And the provider begins to close
    And the other program lets the ledger go
    And the calls in the background have ended
    Then every call fails with ActorError
    And the error is a ActorError that says
      """
      closed
      """
