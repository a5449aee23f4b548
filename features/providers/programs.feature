@every_python
Feature: Programs of every kind may ask an actor

  Scenario: A program that makes every warning an error is answered
    Given an API
    When this program runs
      """
      import warnings

      warnings.simplefilter("error")
      with cb.ClaudeBatchProvider(**settings) as provider:
          actor = cb.Actor(asker, provider)
          print(actor.respond_sync("one").stop_reason)
          print([result.ok for result in actor.respond_all_sync(["two", "three"])])
          print(actor.respond_sync("four", mode="live").via)
          run = actor.submit_sync(["five"])
          run.wait_sync()
          print(run.status().state, next(run.rows())["state"])
      """
    Then the program has printed
      """
      end_turn
      [True, True]
      live
      finished succeeded
      """

  Scenario: A decorator may hide that a function of the program is asynchronous
    Given an API
    When this program runs
      """
      import functools

      def traced(function):
          @functools.wraps(function)
          def call(*args, **kwargs):
              return function(*args, **kwargs)

          return call

      class Asks:
          @traced
          async def before_request(self, actor, request):
              await asyncio.sleep(0)
              return cb.ActorRequest(request.prompt + " [[sandbox:tools]]", key=request.key)

          @traced
          async def after_response(self, actor, key, response):
              await asyncio.sleep(0)
              return response

      @traced
      async def harbour(name: str) -> str:
          "How deep a harbour is."
          await asyncio.sleep(0)
          return "4.20 m"

      async def store(result):
          print("stored", result.ok)

      with cb.ClaudeBatchProvider(
          middleware=[Asks()], post_process=lambda result: store(result), **settings
      ) as provider:
          answer = cb.Actor(asker, provider, tools=[harbour]).respond_sync("How deep is Kiel?")
          print(answer.turns, "4.20 m" in answer.text)
      """
    Then the program has printed
      """
      stored True
      2 True
      """

  Scenario: A request is sent as it was given, although the program goes on with its list
    Given an API
    When this program runs
      """
      class Waits(cb.Middleware):
          async def before_request(self, actor, request):
              await asyncio.sleep(0.2)
              return request

      def growing():
          messages, options = [], {}
          for text in ("one", "two", "three"):
              messages.append({"role": "user", "content": text})
              options["stop_sequences"] = [text]
              yield {"messages": messages, "options": options}
              messages.append({"role": "assistant", "content": text})

      def stops(result):
          return result.unwrap().stop_sequence

      async def extended(actor):
          messages = [{"role": "user", "content": "four"}]
          asking = asyncio.create_task(actor.respond({"messages": messages}))
          await asyncio.sleep(0.05)
          messages += [{"role": "assistant", "content": "5"}, {"role": "user", "content": "six"}]
          many = [stops(result) async for result in actor.respond_all(growing())]
          return many, "four" in (await asking).text

      for live in (False, True):
          provider = cb.ClaudeProvider if live else cb.ClaudeBatchProvider
          for middleware in ([], [Waits()]):
              own = {} if live else settings
              with provider(middleware=middleware, **own) as opened:
                  actor = cb.Actor(asker, opened)
                  print([stops(each) for each in actor.respond_all_sync(growing())])
                  print(*asyncio.run(extended(actor)))
      """
    Then the program has printed
      """
      ['one', 'two', 'three']
      ['one', 'two', 'three'] True
      ['one', 'two', 'three']
      ['one', 'two', 'three'] True
      ['one', 'two', 'three']
      ['one', 'two', 'three'] True
      ['one', 'two', 'three']
      ['one', 'two', 'three'] True
      """

  Scenario: The SDK's blocks of an answer are passed back in messages
    Given an API
    When this program runs
      """
      def messages(content):
          roles = ("user", "assistant", "user")
          return [
              {"role": role, "content": part}
              for role, part in zip(roles, ("one", content, "two"), strict=True)
          ]

      def of_tool(block):
          return [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}]

      with cb.ClaudeBatchProvider(**settings) as provider:
          actor = cb.Actor(asker, provider)
          first = actor.respond_sync("one")
          blocks = first.message.content
          for content in (first.content, blocks):
              print(actor.respond_sync({"messages": messages(content)}).stop_reason)
              params = {"messages": messages(content)}
              print(actor.respond_sync(cb.ActorRequest(params=params)).stop_reason)
          nested = cb.ActorRequest(messages=[{"role": "user", "content": of_tool(blocks[0])}])
          print(nested.messages[0]["content"][0]["content"] == first.content)
          endless = []
          endless.append({"role": "user", "content": endless})
          try:
              actor.respond_sync({"messages": endless})
          except cb.InvalidRequestError:
              print("refused")
      """
    Then the program has printed
      """
      end_turn
      end_turn
      end_turn
      end_turn
      True
      refused
      """

  Scenario: The error of an answer can be pickled whatever the context of its request is
    Given an API
    When this program runs
      """
      import pickle
      import threading

      from pydantic import BaseModel, field_validator


      class Never(BaseModel):
          number: int

          @field_validator("number")
          @classmethod
          def refuse(cls, number):
              raise ValueError("no number is good enough")


      with cb.ClaudeBatchProvider(**settings) as provider:
          actor = cb.Actor(asker, provider)
          for context in ({"row": 1}, threading.Lock()):
              request = cb.ActorRequest("one", output_format=Never, context=context)
              for result in actor.respond_all_sync([request]):
                  error = pickle.loads(pickle.dumps(result.error))
                  print(type(error).__name__, error.response.context, result.context == context)
      """
    Then the program has printed
      """
      OutputValidationError {'row': 1} True
      OutputValidationError None True
      """

  Scenario: Callers that fail for one reason have an error of their own each, which does not grow
    Given an API
    When this program runs
      """
      import traceback


      async def failures(call, wrap=str):
          async def ask(number):
              try:
                  await call(asker, wrap(f"prompt {number}"))
              except cb.ActorError as error:
                  return error, len(traceback.format_exception(error))

          return await asyncio.gather(*(ask(number) for number in range(50)))


      def compared(errors, sizes):
          print(type(errors[0]).__name__, len({*map(id, errors)}), max(sizes) < 20)


      for provider in (cb.ClaudeBatchProvider, cb.ClaudeProvider):
          with provider(api_key="") as keyless:
              compared(*zip(*asyncio.run(failures(keyless.respond))))
      with cb.ClaudeBatchProvider(api_key="") as keyless:
          compared(*zip(*asyncio.run(failures(keyless.submit, lambda prompt: [prompt]))))
      with cb.ClaudeProvider(api_key="an-invalid-key", concurrency=1) as live:
          errors, sizes = [], []
          for result in live.respond_all_sync(asker, [f"prompt {number}" for number in range(50)]):
              try:
                  result.unwrap()
              except cb.ActorError as error:
                  errors.append(error)
                  sizes.append(len(traceback.format_exception(error)))
          compared(errors, sizes)
      """
    Then the program has printed
      """
      ActorConfigurationError 50 True
      AccountHaltedError 50 True
      ActorConfigurationError 50 True
      AccountHaltedError 50 True
      """

  Scenario: A provider that has no synchronous methods says so, and a format may have no hash
    Given an API
    When this program runs
      """
      from typing import Annotated


      class Plain(cb.ClaudeBatchProvider):
          respond_sync = respond_all_sync = property()


      with Plain(**settings) as plain, cb.ClaudeBatchProvider(**settings) as provider:
          actor = cb.Actor(asker, plain)
          for ask in (actor.respond_sync, lambda prompt: actor.respond_all_sync([prompt])):
              try:
                  ask("one")
              except cb.ActorConfigurationError as error:
                  print(error)
          unhashable = Annotated[list[int], {"a": 1}]
          answer = cb.Actor(asker, provider).respond_sync("one", output_format=unhashable)
          print(answer.parsed_output)
      """
    Then the program has printed
      """
      actor tests/asker is answered by Plain, which has no respond_sync; use respond
      actor tests/asker is answered by Plain, which has no respond_all_sync; use respond_all
      [1]
      """

  Scenario: A provider with the five names that actors need keeps no runs, and its actor reports it
    Given an API
    When this program runs
      """
      class Echo:
          capabilities = cb.ProviderCapabilities()

          async def respond(self, actor, request, *, key=None, keep=False): ...

          async def respond_all(self, actor, requests, *, ordered=True): ...

          async def aclose(self): ...

          def close(self): ...


      registry = cb.ProviderRegistry()
      registry.register("echo", Echo)
      echo = cb.ActorConfiguration(name="tests/echo", model="any", provider="echo")
      actor = cb.Actor(echo, registry.for_actor(echo))
      print(actor)
      for ask in (actor.submit_sync, actor.estimate_sync):
          try:
              ask(["one"])
          except cb.ActorConfigurationError as error:
              print(error)
      """
    Then the program has printed
      """
      Actor('tests/echo', provider='Echo')
      actor tests/echo is answered by 'Echo', which keeps no runs; use respond or respond_all, or name `provider: anthropic`
      actor tests/echo is answered by 'Echo', which estimates no costs
      """

  Scenario: A host names a chat model with the name of its provider
    Given an API
    When this program runs
      """
      with cb.ClaudeBatchProvider(**settings) as provider:
          for named in ("anthropic/claude-haiku-4-5", "claude-haiku-4-5"):
              model = provider.create_chat_model(named, temperature=0.5)
              print(model.model, bool(model.invoke(f"Hello from {named}").content))
      with cb.ClaudeProvider() as live:
          print(live.create_chat_model("Anthropic/claude-haiku-4-5").model)
      """
    Then the program has printed
      """
      claude-haiku-4-5 True
      claude-haiku-4-5 True
      claude-haiku-4-5
      """

  @file_ledger @slow
  Scenario: A provider closes within seconds although another program has locked its ledger
    Given an API
    When this program runs
      """
      import os, sqlite3, time

      provider = cb.ClaudeBatchProvider(**settings)
      print(cb.Actor(asker, provider).respond_sync("one").stop_reason)
      other = sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"], isolation_level=None)
      other.execute("BEGIN IMMEDIATE")
      begun = time.monotonic()
      provider.close()
      print(time.monotonic() - begun < 20)
      """
    Then the program has printed
      """
      end_turn
      True
      """

  Scenario: A signal handler can close a provider while the interrupted code opens its ledger
    Given an API
    When this program runs
      """
      import os, signal, threading
      from claude_batch.lifecycle import engine

      watch = threading.Timer(20, os._exit, args=[9])
      watch.daemon = True
      watch.start()

      def attempt(words, actor):
          try:
              print(words, [result.ok for result in actor.respond_all_sync(["one"])], flush=True)
          except cb.ActorError as error:
              print(words, type(error).__name__, str(error)[:22], flush=True)

      def interrupt(owner, name, handler):
          actor = cb.Actor(asker, cb.ClaudeBatchProvider(**settings))
          signal.signal(signal.SIGTERM, lambda *_: handler(actor))
          original = getattr(owner, name)

          def interrupted(*arguments, **options):
              setattr(owner, name, original)
              made = original(*arguments, **options)
              signal.raise_signal(signal.SIGTERM)
              return made

          setattr(owner, name, interrupted)
          attempt(name, actor)
          actor.provider.close()

      close = lambda actor: actor.provider.close()
      ask = lambda actor: attempt("handler", actor)
      interrupt(engine, "declare_limits", close)
      interrupt(engine.Engine, "open_session", close)
      interrupt(engine, "declare_limits", ask)
      interrupt(engine.Engine, "open_session", ask)
      """
    Then the program has printed
      """
      declare_limits ActorConfigurationError the provider is closed
      open_session ActorConfigurationError the provider is closed
      handler EngineStoppedError a signal handler canno
      declare_limits [True]
      handler [True]
      open_session [True]
      """

  Scenario: A process that is forked during the upload of a document can ask with documents
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "upload_file", "action": {"type": "delay", "seconds": 2}}]}
      """
    When this program runs
      """
      import os, threading, time

      document = ("word " * 120_000).encode()
      provider = cb.ClaudeBatchProvider(**settings)
      actor = cb.Actor(asker, provider)

      def ask(prompt):
          return actor.respond_sync(cb.ActorRequest(prompt, documents=[document])).stop_reason

      ask("inline")
      parent = threading.Thread(target=ask, args=["uploaded"])
      parent.start()
      time.sleep(1)
      if not (child := os.fork()):
          threading.Timer(20, os._exit, args=[9]).start()
          print(ask("of the child"), flush=True)
          os._exit(0)
      print(os.waitpid(child, 0)[1])
      parent.join()
      provider.close()
      """
    Then the program has printed
      """
      end_turn
      0
      """

  Scenario: A child can make actors and live calls, whatever another thread does while its process forks
    Given an API
    When this program runs
      """
      import os, threading

      live = cb.ClaudeProvider()
      actor = cb.Actor(cb.ActorConfiguration(name="a", model="claude-haiku-4-5"), live)
      begins, ends = threading.Event(), threading.Event()

      def make_actors_and_calls():
          with cb.default_registry._lock, live._lock, actor._closing:
              begins.set()
              ends.wait()

      parent = threading.Thread(target=make_actors_and_calls)
      parent.start()
      begins.wait()
      if not (child := os.fork()):
          threading.Timer(10, os._exit, args=[9]).start()
          print(actor.respond_sync("of the child").stop_reason, flush=True)
          cb.make_actor("claude-haiku-4-5", **settings).close()
          actor.close()
          os._exit(0)
      print(os.waitpid(child, 0)[1])
      ends.set()
      parent.join()
      """
    Then the program has printed
      """
      end_turn
      0
      """

  Scenario: A fork waits for a provider that another thread is opening
    Given an API
    When this program runs
      """
      import os, threading, time
      from claude_batch.lifecycle.engine import Engine

      begins, ended = threading.Event(), threading.Event()
      acquire = Engine.acquire

      def acquire_slowly(*arguments):
          begins.set()
          time.sleep(0.5)
          engine = acquire(*arguments)
          ended.set()
          return engine

      Engine.acquire = acquire_slowly
      provider = cb.ClaudeBatchProvider(**settings)
      actor = cb.Actor(asker, provider)
      parent = threading.Thread(target=actor.respond_sync, args=["of the parent"])
      parent.start()
      begins.wait()
      if not (child := os.fork()):
          print(ended.is_set(), actor.respond_sync("of the child").stop_reason, flush=True)
          provider.close()
          os._exit(0)
      print(os.waitpid(child, 0)[1])
      parent.join()
      """
    Then the program has printed
      """
      True end_turn
      0
      """

  @file_ledger
  Scenario: A relative path names the same ledger after the process has changed its directory
    Given an API
    When this program runs
      """
      import os, pathlib

      folder = pathlib.Path(os.environ["CLAUDE_BATCH_LEDGER"]).parent
      (folder / "elsewhere").mkdir()

      def ask_from_two_directories(ledger):
          os.chdir(folder)
          with cb.ClaudeBatchProvider(**settings, ledger=ledger) as provider:
              actor = cb.Actor(asker, provider)
              actor.respond_sync("one", key="a")
              if not (child := os.fork()):
                  os.chdir("elsewhere")
                  print(actor.respond_sync("one", key="a").reused, flush=True)
                  provider.close()
                  os._exit(0)
              print(os.waitpid(child, 0)[1], flush=True)
          with cb.ClaudeBatchProvider(**settings, ledger=ledger) as provider:
              os.chdir("elsewhere")
              print(cb.Actor(asker, provider).respond_sync("one", key="a").reused, flush=True)

      ask_from_two_directories("relative.db")
      ask_from_two_directories("sqlite:///of-a-url.db")
      os.chdir(folder)
      options = {"batch_processing": False, "ledger": "relative.db"}
      with cb.make_actor("claude-haiku-4-5", **options) as live:
          os.chdir("elsewhere")
          print(live.respond_sync("two", mode="live", budget_usd=5).via)
      print(os.listdir(folder / "elsewhere"))
      """
    Then the program has printed
      """
      True
      0
      True
      True
      0
      True
      live
      []
      """

  @file_ledger
  Scenario: A path and a URL of the same file name one ledger, so its settings are compared
    Given an API
    When this program runs
      """
      import os

      os.chdir(os.path.dirname(os.environ["CLAUDE_BATCH_LEDGER"]))
      places = {"shared.db": "1s", "sqlite:///shared.db": "2s"}
      for place, settling in places.items():
          provider = cb.ClaudeBatchProvider(**settings, ledger=place, settling=settling)
          try:
              print(cb.Actor(asker, provider).respond_sync("one").stop_reason)
          except cb.ActorConfigurationError as error:
              print(str(error).partition(": ")[2])
      """
    Then the program has printed
      """
      end_turn
      settling=1.0 there and settling=2.0 here; use the same settings for all its providers
      """

  @file_ledger
  Scenario: A submission that is cancelled while its run is begun leaves nothing in the ledger
    Given an API
    When this program runs
      """
      import os, sqlite3, time
      from claude_batch.providers.run_storage import RunStorage

      begin = RunStorage._writer

      def begin_slowly(*arguments):
          time.sleep(0.5)
          return begin(*arguments)

      async def leave():
          async with cb.ClaudeBatchProvider(**settings) as provider:
              actor = cb.Actor(asker, provider)
              print((await actor.respond("one")).stop_reason)
              RunStorage._writer = begin_slowly
              try:
                  await asyncio.wait_for(actor.submit(["two"]), 0.2)
              except TimeoutError:
                  print("left")
              await asyncio.sleep(1)
              with sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"]) as ledger:
                  print(ledger.execute("select stored from runs where kind = 'run'").fetchall())

      asyncio.run(leave())
      """
    Then the program has printed
      """
      end_turn
      left
      []
      """
