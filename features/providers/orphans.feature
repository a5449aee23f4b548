Feature: What was asked by somebody who has gone is not paid for twice

  Scenario: The same call, made again after its process was killed, takes over what it had asked
    Given an API
    When a process asks "what is a knot?" and is killed when "after_record" is reached
    And a batch provider is opened
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario: An answer that nobody took is there at once
    Given an API
    When a process asks "what is a knot?" and is killed when "after_collected" is reached
    And a batch provider is opened
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario: Each orphan is taken over once
    Given an API
    When a process asks "what is a knot?" and is killed when "after_record" is reached
    And a batch provider is opened
    And these prompts are asked: what is a knot?, what is a knot?, what is a bend?
    Then all 3 are answered
    And the API has processed 3 requests in all

  Scenario: Two calls that live are two requests, and one that was answered is asked anew
    Given an API
    And a batch provider
    When these prompts are asked: what is a knot?, what is a knot?
    And these prompts are asked: what is a knot?
    Then the API has processed 3 requests in all

  Scenario: A call whose caller gave up once it was sent is taken over by the same call
    Given an API that takes 0.5 seconds for a batch
    And a batch provider
    When "what is a knot?" is asked in the background
    Then in the ledger the states of the batches come to be ["in_progress"]
    When the caller of "what is a knot?" leaves
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario: A call that a halted account turned away is still the same call afterwards
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
      """
    And a batch provider
    When these prompts are asked: what is a knot?
    Then every call fails with AccountHaltedError
    When the API has no faults any more
    And the provider resumes
    And these prompts are asked: what is a knot?
    Then all 1 are answered
    And the API has processed 1 requests, none twice

  Scenario Outline: A caller that is interrupted while its answer is validated leaves it to the same call: <how>
    Given an API
    When this program runs
      """
      from pydantic import BaseModel, field_validator

      interruptions = [<error>]

      class Number(BaseModel):
          number: int

          @field_validator("number")
          @classmethod
          def interrupt(cls, number):
              if interruptions:
                  if interruptions[0] is asyncio.CancelledError:
                      asyncio.current_task().cancel()
                  raise interruptions.pop()
              return number

      def ask(actor):
          return <call>

      with cb.ClaudeBatchProvider(**settings) as provider:
          actor = cb.Actor(asker, provider)
          try:
              ask(actor)
          except BaseException as error:
              print(type(error) is <error>)
          print(type(ask(actor).parsed_output).__name__)
      """
    Then the program has printed
      """
      True
      Number
      """
    And the API has processed 1 requests, none twice

    Examples:
      | how        | call                                                             | error                  |
      | blocking   | actor.respond_sync("one", output_format=Number)                  | KeyboardInterrupt      |
      | own format | actor.respond_sync(cb.ActorRequest("one", output_format=Number)) | KeyboardInterrupt      |
      | awaited    | asyncio.run(actor.respond("one", output_format=Number))          | asyncio.CancelledError |

  Scenario: Another actor's words are other words
    Given an API
    When a process asks "what is a knot?" and is killed when "after_record" is reached
    And a batch provider is opened
    And these prompts are asked: what is a bend?
    Then all 1 are answered
    And the API has processed 2 requests, none twice

  Scenario: A run that was never wholly stored is removed once its process is dead
    Given an API
    When a process stores a run of 5 prompts and is killed when "before_stored" is reached
    Then the ledger holds 5 requests
    When a batch provider is opened
    And these prompts are asked: what is a knot?
    Then in the ledger the states of the requests come to be ["succeeded"]

  Scenario: The second copy of a run is removed by itself, also once its process is dead
    Given an API
    When a process stores a run of 2 prompts and is killed when "after_stored" is reached
    And a process stores a run of 2 prompts and is killed when "during_pruning" is reached
    Then the ledger holds 4 requests
    When a batch provider is opened
    And these prompts are asked: what is a knot?
    Then in the ledger the states of the requests come to be ["succeeded", "succeeded", "succeeded"]
    And the API has processed 3 requests, none twice

  @file_ledger
  Scenario Outline: The lock of a dead process is removed from beside the file: <ledger>, <point>
    Given an API
    And a command's folder
    And a command's environment has CLAUDE_BATCH_LEDGER = <ledger>
    When a process stores a run of 5 prompts and is killed when "<point>" is reached
    And a batch provider is opened
    And these prompts are asked: what is a knot?
    Then no lock of a dead process lies beside the ledger

    Examples:
      | ledger    | point         |
      | ledger.db | before_stored |
      | ledger.db | after_stored  |
      | run[1].db | after_stored  |
