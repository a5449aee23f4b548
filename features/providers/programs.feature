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
