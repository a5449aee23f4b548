Feature: The progress bar in a real notebook

  Scenario Outline: A cell shows one bar, which is redrawn: <cell>
    Given an API that takes 2 seconds for a batch
    Then of a notebook's cells, 4 alone has an output, redrawn, that has: 3 of 3 requests done
      | cell                                                                 |
      | import claude_batch as cb                                            |
      | reviewer = cb.load_actor("examples/actors/reviewer.yaml", linger="100ms", poll_interval="50ms")            |
      | run = await reviewer.submit([f"prompt {n}" for n in range(3)], label="a notebook") |
      | <cell>                                                               |
      | reviewer.close()                                                     |

    Examples:
      | cell                                                                 |
      | status = await run.wait(progress=True)                               |
      | status = run.wait_sync(progress=True)                                |
      | results = [result async for result in run.results(progress=True)]    |
      | results = list(run.results_sync(progress=True))                      |
