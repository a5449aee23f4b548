Feature: A base URL with a slash at its end is the same API as without

  Scenario: Runs and calls of both spellings share a workspace, and none is paid twice
    Given an API
    When this program runs
      """
      import os

      there = os.environ["ANTHROPIC_BASE_URL"]
      ids = []
      for address in (f"{there}/", there):
          with cb.ClaudeBatchProvider(base_url=address, **settings) as provider:
              with cb.Actor(asker, provider).run(["one"]) as run:
                  run.wait_sync()
                  ids.append(run.id)
      print(ids[0] == ids[1])
      """
    Then the program has printed
      """
      True
      """
    And the API has seen 1 batch

  Scenario: A call of an SDK client with http_client() is continued by client()
    Given an API that takes 2 seconds for a batch
    When this program runs
      """
      import anthropic

      asked = {
          "model": "claude-haiku-4-5",
          "max_tokens": 64,
          "messages": [{"role": "user", "content": "one"}],
      }

      async def ask(client, seconds):
          asking = asyncio.create_task(client.messages.create(**asked))
          await asyncio.wait([asking], timeout=seconds)
          print(asking.done())
          asking.cancel()
          await client.close()

      asyncio.run(ask(anthropic.AsyncAnthropic(http_client=cb.http_client(**settings)), 1))
      asyncio.run(ask(cb.client(**settings), 30))
      """
    Then the program has printed
      """
      False
      True
      """
    And the API has seen 1 batch

  @both_backends
  Scenario Outline: What an earlier version stored under the other spelling is found and continued: <before>
    Given an API with <before>
    When this program runs
      """
      import os
      from claude_batch.wire import connection

      there = os.environ["ANTHROPIC_BASE_URL"]

      def submitted(address, prompt, *, waits=True):
          with cb.ClaudeBatchProvider(base_url=address, **settings) as provider:
              run = cb.Actor(asker, provider).submit_sync([prompt])
              if waits:
                  run.wait_sync()
              return run.id

      in_one_spelling = connection.without_bare_slash
      connection.without_bare_slash = lambda url: url  # as earlier versions had it
      ended = submitted(f"{there}/", "one")
      parked = submitted(f"{there}/", "two", waits=False)
      if <both>:
          submitted(there, "three")
      connection.without_bare_slash = in_one_spelling
      print(submitted(there, "one") == ended, submitted(there, "two") == parked)
      submitted(f"{there}/", "three")
      """
    Then the program has printed
      """
      True True
      """
    And the API has seen 3 batches

    Examples:
      | before                                     | both  |
      | {"latency": 0.2}                           | False |
      | {"latency": 0.2}                           | True  |
      | {"latency": 0.2, "workspace_header": false} | False |
      | {"latency": 0.2, "workspace_header": false} | True  |

  Scenario: A run that waits for another base URL is not taken for one of another key
    Given an API
    When this program runs
      """
      import os

      there = os.environ["ANTHROPIC_BASE_URL"]
      with cb.ClaudeBatchProvider(**settings) as provider:
          run_id = cb.Actor(asker, provider).submit_sync(["one"]).id
      here = there.replace("127.0.0.1", "localhost")
      try:
          with cb.open_run(run_id, base_url=here, **settings) as run:
              run.wait_sync()
      except cb.AccountHaltedError as error:
          words = str(error).replace(run_id, "RUN").replace(there, "THERE").replace(here, "HERE")
          print(words)
      """
    Then the program has printed
      """
      RUN waits for another base URL, THERE, and this process uses HERE; add `--base-url THERE` (base_url=). Everything is kept
      """
