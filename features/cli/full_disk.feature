@long
Feature: A full disk stops the work cleanly and loses nothing

  Scenario Outline: If the disk is full <where>, the command parks, and with room it goes on
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    And a command's ledger that has been used before
    When a command's process meets a full disk at <point>: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with <code>
    And the command line says: <words>
    And the command line has left nothing half-written
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line has written 5 answers in order to "out.jsonl"
    And the API has processed 5 requests, none twice

    Examples:
      | where                                | point                         | code | words                           |
      | when the ledger is opened            | start                         | 3    | make room on the disk           |
      | while a run is stored                | during_store_chunk            | 3    | make room on the disk           |
      | before a run is whole                | before_stored                 | 3    | make room on the disk           |
      | when requests are packed             | before_pack                   | 3    | make room on the disk           |
      | at the intent to send                | before_intent                 | 3    | make room on the disk           |
      | in the middle of an upload           | during_upload                 | 3    | make room on the disk           |
      | before the end of an upload may leave | before_armed                 | 3    | make room on the disk           |
      | when a batch was checked             | after_check_before_record     | 3    | make room on the disk           |
      | while results are collected          | during_collect_chunk          | 3    | make room on the disk           |
      | before results are judged            | between_results_and_state     | 3    | make room on the disk           |
      | while the output is written          | before_delivery               | 2    | results RUN -o OUT              |
      | when the delivery is noted           | after_rename_before_delivered | 3    | make room on the disk           |

  Scenario: The id of a batch is noted once there is room, as long as the process lives
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    And a command's ledger that has been used before
    When a command's process meets a full disk for 1 second at after_post_before_record: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the command line says: cannot be stored yet
    And the command line has written 5 answers in order to "out.jsonl"
    And the API has processed 5 requests, none twice

  Scenario: An upload under way outlives the loop that met the full disk
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    And a command's ledger that has been used before
    When a command's process meets a full disk that the poll loop notices while the id of a batch waits
    Then the command line exits with 3
    And the command line says: cannot be stored yet
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has processed 5 requests, none twice

  Scenario: A gateway that meets a full disk ends, so that it can be started again
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    When a command runs: submit actor.yaml asks.jsonl
    And a command's process meets a full disk at during_collect_chunk: gateway --port 0
    Then the command line exits with 3
    And the command line says: make room on the disk

  Scenario: An output that has no room says how to fetch the results
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    When a command runs: submit actor.yaml asks.jsonl
    Then a command in a shell ends with a code and says
      | command                                             | code | says                                                                                            |
      | claude-batch run actor.yaml asks.jsonl > /dev/full  | 2    | No space left on device. The results are kept. Write them with: claude-batch results RUN -o OUT |
      | claude-batch run actor.yaml asks.jsonl -o /dev/full | 2    | No space left on device. The results are kept. Write them with: claude-batch results RUN -o OUT |
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 0
    And the API has processed 5 requests, none twice

  Scenario: A copy of the ledger that has no room is named, and leaves no file
    Given a command's API
    And a command's file "asks.jsonl" of 5 prompts
    When a command runs: submit actor.yaml asks.jsonl
    Then a command in a shell ends with a code and says
      | command                                            | code | says                        |
      | ulimit -f 100; claude-batch ledger backup copy.db  | 3    | cannot be copied to copy.db |
      | find . -name "*copy.db*" -exec false {} +          | 0    |                             |
      | claude-batch ledger backup copy.db                 | 0    |                             |

  Scenario: A call that cannot be stored raises LedgerError, and later calls go on
    Given a command's API
    When a call meets a full disk, and another one comes when there is room
    Then the outcomes have these fields in the same order
      | __class__.__name__ | passes | text  |
      | LedgerError        | yes    |       |
      | ActorResponse      |        | …two… |

  Scenario: A program whose driver met a full disk goes on once there is room
    Given an API
    When this program runs
      """
      import resource
      from claude_batch.core import crash_points

      ample = resource.getrlimit(resource.RLIMIT_FSIZE)

      def fill(reached):
          if reached == "during_collect_chunk":
              crash_points.on_reach = None
              resource.setrlimit(resource.RLIMIT_FSIZE, (0, ample[1]))

      async def main():
          async with cb.ClaudeBatchProvider(**settings) as provider:
              actor = cb.Actor(asker, provider)
              crash_points.on_reach = fill
              raised = []
              for prompt in ("one", "two"):
                  try:
                      await actor.respond(prompt)
                  except cb.LedgerError as error:
                      raised.append(error.passes)
              resource.setrlimit(resource.RLIMIT_FSIZE, ample)
              async with asyncio.timeout(60):
                  while provider.engine().failure is not None:
                      await asyncio.sleep(0.1)
              answers = [await actor.respond(prompt) for prompt in ("one", "three")]
              print(raised, [answer.stop_reason for answer in answers])

      asyncio.run(main())
      """
    Then the program has printed
      """
      [True, True] ['end_turn', 'end_turn']
      """
    And the API has processed 2 requests, none twice
