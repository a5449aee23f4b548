Feature: What a run has cost adds up, to the nano-dollar
  The bill is the API's own list of what it processed; its prices are written down by hand.

  Scenario: A run's cost is the sum of its bill, whatever its answers used
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of requests that use
      | model            | usage                                                                                              |
      | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 200}                                                       |
      | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 200, "cache_read": 4000, "cache_5m": 300, "cache_1h": 500} |
      | claude-haiku-4-5 | {"input_tokens": 100, "output_tokens": 100, "web_search_requests": 3}                              |
      | claude-haiku-5-5 | {"input_tokens": 100000, "output_tokens": 1000}                                                    |
      | claude-haiku-5-5 | {"input_tokens": 60000, "cache_read": 40001, "output_tokens": 1000}                                |
      | claude-haiku-5-5 | {"input_tokens": 1, "output_tokens": 1, "cache_5m": 1, "inference_geo": "us"}                      |
      | claude-nobody-9  | {"input_tokens": 1000, "output_tokens": 100}                                                       |
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      cost $0.0557 plus unpriced answers; live $0.0814, saved $0.0257 by batch and $0.0105 by cache; tokens: 163,101 in, 2,601 out, cache 44,001 read and 801 written; 3 web searches; answers after
      answers without a price: 1 of claude-nobody-9 (name one with --prices)
      """
    And the output lines in "out.jsonl" say they cost 0.001000000, 0.001887500, 0.030300000, 0.005250000, 0.017250025, 0.000000399 and nothing
    When a command runs: cost RUN --json --by model
    Then the command line's status as JSON has
      | field                 | value                   |
      | cost                  | 55687924                |
      | cost_usd              | 0.055687924             |
      | live_cost             | 81375848                |
      | saved_by_batch        | 25687924                |
      | saved_by_cache        | 10512711                |
      | tokens.input          | 163101                  |
      | tokens.output         | 2601                    |
      | tokens.cache_read     | 44001                   |
      | tokens.cache_write_5m | 301                     |
      | tokens.cache_write_1h | 500                     |
      | cache_hit_rate        | 0.21164196764837448     |
      | effective_input_tokens | 168877                 |
      | web_searches          | 3                       |
      | requests.succeeded    | 7                       |
      | results.succeeded     | 7                       |
      | unpriced_answers      | 1                       |
      | unpriced              | {"claude-nobody-9": 1}  |
      | by                    | "model"                 |
      | shares.0.group        | "claude-haiku-4-5-20251001" |
      | shares.0.cost         | 33187500                |
      | shares.1.group        | "claude-haiku-5-5"      |
      | shares.1.cost         | 22500424                |
      | shares.2.group        | "claude-nobody-9"       |
      | shares.2.cost         | 0                       |
      | shares.2.unpriced_answers | 1                   |
    And the cost is what the API's bill comes to
    When a command runs: status RUN --json
    Then the command line's status as JSON has
      | field               | value    |
      | state               | "finished" |
      | cost.cost           | 55687924 |
      | cost.live_cost      | 81375848 |
    And the answers came within the time that the cost report says
    When a command runs: cost RUN --by model
    Then the command line prints
      """
      RUN: cost $0.0557 plus unpriced answers
      the same live: $0.0814
      saved $0.0257 by batch and $0.0105 by cache
      tokens: 163,101 in, 2,601 out, cache 44,001 read and 801 written; 3 web searches
      cache writes: 301 for 5 minutes, 500 for 1 hour
      cache hit rate: 21.2 %; the prompts cost about as much as 168,877 plain input tokens
      requests: 7 succeeded
      results of all attempts: 7 succeeded
      first answers after
      answers without a price: 1 of claude-nobody-9 (name one with --prices)
      claude-haiku-4-5
      unknown
      """

  Scenario: An answer without a price is priced as soon as there is one
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of requests that use
      | model            | usage                                        |
      | claude-nobody-9  | {"input_tokens": 1000, "output_tokens": 100} |
      | claude-nobody-10 | {"input_tokens": 1000, "output_tokens": 100} |
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 0 and says
      """
      cost unknown; tokens: 2,000 in, 200 out
      answers without a price: 1 of claude-nobody-10, 1 of claude-nobody-9
      """
    When a command runs: cost RUN
    Then the command line prints
      """
      RUN: cost unknown
      """
    Given a command's file "own.yaml"
      """
      claude-nobody-9: {input: 1, output: 2}
      """
    When a command runs: cost RUN --prices own.yaml --json
    Then the command line exits with 0 and says
      """
      priced 1 answer that had no price before
      """
    And the command line's status as JSON has
      | field          | value                   |
      | cost           | 600000                  |
      | live_cost      | 1200000                 |
      | saved_by_cache | 0                       |
      | unpriced       | {"claude-nobody-10": 1} |
    When a command runs: cost --by actor
    Then the command line does not say: priced
    And the command line prints
      """
      all runs: cost $0.000600 plus unpriced answers
      local/command-line
      """
    When a command runs: cost RUN --prices bad.yaml
    Then the command line exits with 2 and says
      """
      error: bad.yaml: the prices cannot be read
      """

  Scenario: Every attempt counts, and what failed costs nothing
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      "{\"input_tokens\": 1000, \"output_tokens\": 100}"
      "[[sandbox:errored:overloaded_error:once]] again"
      "[[sandbox:errored:invalid_request_error]] never"
      "[[sandbox:canceled]] not run"
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 1
    When a command runs: cost RUN --json --by day
    Then the command line's status as JSON has
      | field              | value |
      | requests.succeeded | 2     |
      | requests.errored   | 1     |
      | requests.canceled  | 1     |
      | results.succeeded  | 2     |
      | results.errored    | 2     |
      | results.canceled   | 1     |
      | unpriced           | {}    |
    And the cost is what the API's bill comes to
    And the costs by group are of this day

  Scenario: Live calls count by the time of their own answers, not by that of the day's last one
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      "{\"input_tokens\": 1000, \"output_tokens\": 100}"
      "{\"input_tokens\": 2000, \"output_tokens\": 100}"
      """
    When a command runs: run --mode live --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    And the ledger's batches are changed to
      | ended               | collected           |
      | -172800 seconds ago | -172800 seconds ago |
    And a command runs: cost RUN --json --by day
    Then the cost is what the API's bill comes to
    And the costs by group are of this day
    When a command runs: cost RUN
    Then the command line prints
      """
      last after 2d
      """
    And the command line does not print: first answers after 2d

  Scenario: The sandbox's own prompt cache is billed as it is reported
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl" of 4 lines like
      """
      {"params": {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "ask N"}], "system": [{"type": "text", "text": "(2000 letters)", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "(1200 letters)", "cache_control": {"type": "ephemeral"}}]}}
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o one.jsonl
    And a command runs: run --new --model claude-haiku-4-5 asks.jsonl -o two.jsonl
    And a command runs: cost --json
    Then the cost is what the API's bill comes to
    And the command line's status as JSON has
      | field                 | value |
      | tokens.cache_read     | 5684  |
      | tokens.cache_write_5m | 306   |
      | tokens.cache_write_1h | 506   |

  Scenario: A late answer of a sending that was sent again is part of the cost
    Given an API that takes 3 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "create", "nth": [1], "action": {"type": "drop_after"}}]}
      """
    And a batch provider with {"settling": 0.3, "on_unknown": "resubmit", "resubmit_after": 0}
    When a run of 3 prompts is submitted
    And the results are read in order
    Then the run's cost becomes what the API's bill of 6 answers comes to

  @both_backends
  Scenario: The costs of a run's requests sum to the run's cost, in every form of its results
    Given an API
    And a command's folder
    When this program runs
      """
      import csv
      import json
      from decimal import Decimal
      from claude_batch.sandbox import SandboxServer

      asked = set()

      def answer(params):
          prompt = params["messages"][0]["content"]
          if prompt == "malformed" and prompt not in asked:
              asked.add(prompt)
              return [{"type": "text", "text": "a"}, {"type": "text", "text": 3}]
          if prompt != "turns":
              return "good"
          if len(params["messages"]) > 1:
              return {"error": {"type": "invalid_request_error", "message": "prompt is too long"}}
          tool = {"type": "tool_use", "id": "toolu_1", "name": "harbour", "input": {"name": "Kiel"}}
          return {"content": [tool], "stop_reason": "tool_use"}

      def harbour(name: str) -> str:
          "How deep a harbour is."
          return "4.20 m"

      def sums(run):
          run.export_sync("out.jsonl")
          lines = [json.loads(line, parse_float=Decimal) for line in open("out.jsonl")]
          run.export_sync("out.csv")
          forms = [
              [line.get("cost_usd", 0) for line in lines],
              [Decimal(row["cost_usd"] or 0) for row in csv.DictReader(open("out.csv", newline=""))],
              [row["cost_usd"] or 0 for row in run.rows()],
              [result.cost_usd or 0 for result in run.results_sync()],
              [result.to_dict().get("cost_usd", 0) for result in run.results_sync()],
          ]
          whole = run.cost().total.cost_usd
          return [len(costs) - costs.count(0) for costs in forms], {
              str(round(Decimal(sum(costs)), 9)) == str(whole) for costs in forms
          }

      prompts = ["turns", "malformed", "good", "[[sandbox:refused]]", "[[sandbox:pause:9]]", "[[sandbox:errored:invalid_request_error]]"]
      with SandboxServer(latency=0.05, responder=answer) as server:
          with cb.ClaudeBatchProvider(base_url=server.url, max_turns=2, **settings) as provider:
              actor = cb.Actor(asker, provider, tools=[harbour])
              for mode in ("batch", "live"):
                  asked.clear()
                  run = actor.submit_sync(prompts, mode=mode, new=True)
                  run.wait_sync()
                  print(mode, *sums(run))
                  run.retry_failed_sync(["malformed"])
                  run.wait_sync()
                  print("retried", *sums(run))
              refused = list(run.results_sync())[3].to_dict()
              print(*refused)
              print(refused["stop_reason"], refused["via"], refused["usage"]["output_tokens"])
      print(list(csv.DictReader(open("out.csv", newline="")))[3]["output_tokens"])
      """
    Then the program has printed
      """
      batch [5, 5, 5, 5, 5] {True}
      retried [5, 5, 5, 5, 5] {True}
      live [5, 5, 5, 5, 5] {True}
      retried [5, 5, 5, 5, 5] {True}
      id ok error text stop_reason model usage batch_id attempt via cost_usd
      refusal live 1
      1
      """

  Scenario: A ledger without runs has cost nothing, and looking at none makes none
    Given a command's folder
    When a command runs: cost
    Then the command line exits with 2 and says
      """
      there is no ledger at
      """

  Scenario: The cost of a prompt is shown in plain input tokens, with the cached share
    Then usage is summed up as follows
      | input | read | written 5m | written 1h | cache hit rate | effective input tokens |
      | 100   | 0    | 0          | 0          | 0              | 100                    |
      | 0     | 0    | 0          | 0          | 0              | 0                      |
      | 10    | 30   | 0          | 0          | 0.75           | 13                     |
      | 0     | 0    | 100        | 0          | 0              | 125                    |
      | 0     | 0    | 0          | 100        | 0              | 200                    |
      | 100   | 200  | 40         | 60         | 0.5            | 290                    |
