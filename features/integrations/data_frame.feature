Feature: A run as a data frame

  @both_backends
  Scenario: A row for each request, with its answer, cost and times, or its error
    Given an API whose model answers as it is told
    And a batch provider with {"max_attempts": 1}
    When a run of these prompts is submitted as Flat
      | prompt                                    |
      | say: {"number": "12", "total": 3}         |
      | say: not an invoice                       |
      | [[sandbox:errored:invalid_request_error]] |
      | [[sandbox:expired]] late                  |
      | [[sandbox:refused]] no                    |
    And the run is waited for
    Then the run's data frame has the rows
      | id | state     | ok    | text           | parsed                        | stop_reason | error_type            | attempt |
      | 1  | succeeded | true  | {"number": "12", "total": 3} | {"number":"12","total":3.0} | end_turn | -           | 1       |
      | 2  | succeeded | true  | not an invoice | -                             | end_turn    | -                     | 1       |
      | 3  | errored   | false | -              | -                             | -           | invalid_request_error | 1       |
      | 4  | expired   | false | -              | -                             | -           | expired               | 1       |
      | 5  | refused   | false | …              | -                             | refusal     | refusal               | 1       |
    And its costs, tokens, models, batches, messages and times are those of the run's results
    And by its id, in an event loop, as pandas and with rows in its place it is the same

  Scenario: An answer that has its format is parsed in each process, and a text without a format is not
    Given an API
    And a command's folder
    When this program runs
      """
      from claude_batch.sandbox import SandboxServer

      def answer(params):
          prompt = params["messages"][-1]["content"]
          search = {"id": "srvtoolu_1", "name": "web_search"}
          return prompt if prompt != "search" else [
              {"type": "text", "text": "I look it up."},
              {"type": "server_tool_use", **search, "input": {"query": "x"}},
              {"type": "web_search_tool_result", "tool_use_id": search["id"], "content": []},
              {"type": "text", "text": '{"a":"yes"}'},
          ]

      schema = {
          "type": "object",
          "properties": {"a": {"type": "string"}},
          "required": ["a"],
          "additionalProperties": False,
      }
      asked = [("search", schema), ("42", int), ("42", None), ("[Draft] Dear Sir", None)]
      with SandboxServer(latency=0.05, responder=answer) as server:
          with cb.ClaudeBatchProvider(base_url=server.url, **settings) as provider:
              for prompt, form in asked:
                  form = {} if form is None else {"output_format": form}
                  run = cb.Actor(asker, provider).submit_sync([prompt], results_dir="kept", **form)
                  run.wait_sync()
                  with open("kept/000001.json") as file:
                      kept = '"parsed"' in file.read()
                  [result] = run.results_sync()
                  frames = [cb.to_frame(which)["parsed"][0] for which in (run, run.id)]
                  print(*frames, kept, result.to_dict(parsed=True)["parsed"])
      """
    Then the program has printed
      """
      {"a":"yes"} {"a":"yes"} True {'a': 'yes'}
      42 42 True 42
      None None False 42
      None None False None
      """

  Scenario: Requests that wait have nulls
    Given an API that takes 3600 seconds for a batch
    And a batch provider
    When a run of 1 prompts is submitted
    Then the run's data frame has the rows
      | id | state  | ok | text | parsed | cost_usd | error_type | answered | reused |
      | 1  | …      | -  | -    | -      | -        | -          | -        | -      |

  Scenario: Contexts are JSON texts
    Given an API
    And a batch provider
    When a run with the contexts [{"row": 7}, null, "é"] is submitted
    Then the run's data frame has the rows
      | id | state     | ok   | context   |
      | 1  | succeeded | true | {"row":7} |
      | 2  | succeeded | true | -         |
      | 3  | succeeded | true | "é"       |

  Scenario: Ten thousand rows are not held as Python objects
    Given an API
    And a batch provider
    When a run of 10000 prompts is submitted
    And the run is waited for
    Then its data frame takes less than a third of the Python memory of its rows

  Scenario: A value that cannot become a frame is refused
    Then data frames are refused as follows
      | what            | error                                                              |
      | no such run     | has no run 'run-none'                                              |
      | run and ledger  | a Run has its ledger                                               |
      | without polars  | a data frame needs an extra: pip install 'claude-batch[frame]'     |
