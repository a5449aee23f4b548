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
