@every_python
Feature: A caller's mistake is one clear error, before anything is sent

  Background:
    Given an API
    And a batch provider

  Scenario: One object is given in place of a list
    Then these mistakes are refused
      | expression                                     | error                                                                      |
      | list(actor.respond_all_sync(None))             | InvalidRequestError: requests must be a list or another iterable, not None |
      | list(live.respond_all_sync(None))              | InvalidRequestError: requests must be a list or another iterable, not None |
      | actor.submit_sync(7)                           | InvalidRequestError: requests must be a list or another iterable, not int  |
      | actor.submit_sync({"a", "b"})                  | InvalidRequestError: requests must be a list, not a set                    |
      | list(live.respond_all_sync(frozenset("ab")))   | InvalidRequestError: requests must be a list, not a set                    |
      | (lambda it: (list(it), list(actor.respond_all_sync(it))))(each for each in "") | InvalidRequestError: requests must be a list or a new generator, not one that has ended |
      | (lambda it: (list(it), list(live.respond_all_sync(it))))(each for each in "") | InvalidRequestError: requests must be a list or a new generator, not one that has ended |
      | actor.submit_sync(__import__("polars").DataFrame({"prompt": ["a"]})) | InvalidRequestError: requests must be a list, not a DataFrame; give a column of prompts, such as frame['prompt'], or all rows |
      | actor.estimate_sync(__import__("polars").DataFrame({"prompt": ["a"]})) | InvalidRequestError: requests must be a list, not a DataFrame |
      | list(live.respond_all_sync(__import__("polars").DataFrame({"prompt": ["a"]}))) | InvalidRequestError: requests must be a list, not a DataFrame |
      | list(actor.respond_all_sync(actor.respond_all([]))) | InvalidRequestError: requests can only be read asynchronously, which a synchronous method cannot do |
      | actor.submit_sync(actor.respond_all([]))       | InvalidRequestError: requests can only be read asynchronously              |
      | actor.run(actor.respond_all([])).__enter__()   | InvalidRequestError: requests can only be read asynchronously              |
      | actor.estimate_sync(actor.respond_all([]))     | InvalidRequestError: requests can only be read asynchronously              |
      | cb.Actor(actor.configuration, provider, tools=len) | ActorConfigurationError: tools: <built-in function len> is not a list |
      | cb.ClaudeProvider(middleware=cb.Middleware())  | TypeError: middleware: <claude_batch                                       |
      | cb.ClaudeBatchProvider(observers=print)        | TypeError: observers: <built-in function print> is not a list              |
      | cb.ActorRequest("a", documents=None)           | InvalidRequestError: `documents` must be a list, not NoneType              |
      | cb.ActorRequest("a", documents={"a.pdf", "b.pdf"}) | InvalidRequestError: `documents` must be a list, not a set: its order is another one in each process |
      | cb.ActorRequest("a", documents=[b""])          | InvalidRequestError: document 0 bytes: is empty                            |
      | cb.ProviderRegistry().register("own", provider) | ActorConfigurationError: provider 'own': <claude_batch                    |
      | cb.ClaudeBatchProvider(max_requests=True)      | ActorConfigurationError: max_requests: True is not a number                |
      | cb.ClaudeBatchProvider(prices=True)            | ActorConfigurationError: prices: True is not a text                        |
      | cb.ClaudeProvider(concurrency=True)            | ActorConfigurationError: concurrency: True is not a whole number           |
      | cb.ClaudeProvider(max_retries="many")          | ActorConfigurationError: max_retries: 'many' is not a whole number         |
    And in the ledger the counts of runs are [0]

  Scenario: A text is longer than an index of PostgreSQL can hold
    Then these mistakes are refused
      | expression                                                   | error                                                                                        |
      | cb.make_actor("claude-haiku-4-5", name="n" * 251)            | ActorConfigurationError: `name`: the name has 257 characters; at most 256 are possible         |
      | actor.respond_sync("a", key="é" * 513)                       | InvalidRequestError: the key of a single call has 1,026 bytes; at most 1,024 are possible    |
      | actor.respond_sync(cb.ActorRequest("a", options={"betas": ["b" * 200 + str(n) for n in range(10)]})) | InvalidRequestError: the betas have 2,019 characters together; at most 2,000 are possible |
      | actor.respond_sync(cb.ActorRequest("a", options={"betas": ["b" * 257]})) | InvalidRequestError: a beta 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' is not a word of 1 to 256 printable ASCII characters; correct it |
    And in the ledger the states of the requests are []

  Scenario: A class is given in place of an object
    Then these mistakes are refused
      | expression                                         | error                                                                                                                     |
      | cb.ClaudeBatchProvider(middleware=[cb.Middleware]) | TypeError: middleware: <class 'claude_batch.actor.middleware.Middleware'> is a class; give an object of it: Middleware() |
      | cb.ClaudeProvider(middleware=[cb.Middleware])      | TypeError: middleware: <class 'claude_batch.actor.middleware.Middleware'> is a class; give an object of it: Middleware() |
      | cb.ClaudeBatchProvider(observers=[cb.Middleware])  | TypeError: observers: <class 'claude_batch.actor.middleware.Middleware'> is a class; give an object of it: Middleware() |
      | cb.Actor(actor.configuration, cb.ClaudeBatchProvider) | ActorConfigurationError: provider: <class 'claude_batch.providers.batch.ClaudeBatchProvider'> is a class; give an object of it: ClaudeBatchProvider() |
      | cb.client_sync(provider=cb.ClaudeBatchProvider)    | ActorConfigurationError: provider: <class 'claude_batch.providers.batch.ClaudeBatchProvider'> is a class; give an object of it: ClaudeBatchProvider() |
    And in the ledger the counts of runs are [0]

  Scenario: A function takes other arguments than it is called with
    When a run of these prompts is submitted
      | prompt |
      | one    |
    Then these mistakes are refused
      | expression                                                                                    | error                                                                                |
      | cb.ClaudeBatchProvider(post_process=isinstance)                                                     | TypeError: post_process: <built-in function isinstance> takes (obj, class_or_tuple, /), but is called with (result) |
      | cb.ClaudeProvider(post_process=isinstance)                                                    | TypeError: post_process: <built-in function isinstance> takes                         |
      | cb.ClaudeProvider(classify=isinstance)                                                        | TypeError: classify: <built-in function isinstance> takes (obj, class_or_tuple, /), but is called with (fault) |
      | cb.ClaudeBatchProvider(pace=len)                                                              | TypeError: pace: <built-in function len> takes (obj, /), but is called with (refusals, retry_after) |
      | cb.ClaudeBatchProvider(observers=[isinstance])                                                | TypeError: observers: <built-in function isinstance> takes (obj, class_or_tuple, /), but is called with (event) |
      | cb.ClaudeBatchProvider(observers=[type("Seen", (), {"on_event": lambda self: None})()])       | TypeError: observers: <bound method |
      | cb.ClaudeBatchProvider(middleware=[type("Old", (), {"before_request": lambda self, request: request})()]) | TypeError: middleware: <bound method |
      | cb.ClaudeBatchProvider(middleware=[type("Old", (), {"after_response": lambda self, actor, response: response})()]) | TypeError: middleware: <bound method |
      | run.wait_sync(progress=isinstance)                                                            | ActorConfigurationError: progress: <built-in function isinstance> takes (obj, class_or_tuple, /), but is called with (progress) |
      | run.wait_sync(progress=type("Slow", (), {"__call__": actor.respond.__func__})())              | ActorConfigurationError: progress: |

  Scenario: An object is used in a way that it does not have
    When a run of these prompts is submitted
      | prompt |
      | one    |
    Then these mistakes are refused
      | expression                            | error |
      | __import__("pickle").dumps(actor)     | TypeError: Actor cannot be pickled or copied, because it has threads and connections; load it in each process with cb.load_actor or cb.make_actor |
      | __import__("copy").copy(actor)        | TypeError: Actor cannot be pickled or copied |
      | __import__("pickle").dumps(run)       | TypeError: Run cannot be pickled or copied, because it has threads and connections; pass its `id`, and open it with cb.open_run |
      | __import__("pickle").dumps(provider)  | TypeError: ClaudeBatchProvider cannot be pickled or copied, because it has threads and connections; create one in each process |
      | list(actor.run(["a"]))                | TypeError: actor.run(…) is a block, and for cannot be used with it; write `async with actor.run(…) as run:` |
      | actor.run(["a"]).__await__()          | TypeError: actor.run(…) is a block, and await cannot be used with it |
      | actor.run(["a"]).__aiter__()          | TypeError: actor.run(…) is a block, and async for cannot be used with it |
    And in the ledger the counts of runs are [1]

  Scenario: A text is given in place of True or False, or bytes in place of a text
    Then these mistakes are refused
      | expression                                             | error |
      | actor.submit_sync(["a"], new="false")                  | ActorConfigurationError: new: must be True or False, not str |
      | provider.store(actor.configuration, ["a"], new="no")   | ActorConfigurationError: new: must be True or False, not str |
      | list(actor.respond_all_sync(["a"], new="false"))       | ActorConfigurationError: new: must be True or False, not str |
      | list(live.respond_all_sync(["a"], ordered="no"))       | ActorConfigurationError: ordered: must be True or False, not str |
      | actor.run(["a"], ordered="no")                         | ActorConfigurationError: ordered: must be True or False, not str |
      | actor.respond_sync("a", keep="no")                     | ActorConfigurationError: keep: must be True or False, not str |
      | asyncio.run(provider.respond(actor.configuration, "a", keep="no")) | ActorConfigurationError: keep: must be True or False, not str |
      | cb.ClaudeBatchProvider(drive="false")                  | ActorConfigurationError: drive: must be True or False, not str |
      | cb.ClaudeBatchProvider(base_url=5)                     | ActorConfigurationError: base_url: must be a text, not int |
      | cb.ClaudeProvider(api_key=b"secret")                   | ActorConfigurationError: api_key: must be a text, not bytes |
      | cb.ClaudeProvider(base_url=__import__("pathlib").Path("x")) | ActorConfigurationError: base_url: must be a text, not PosixPath |
      | cb.open_run("run-a", ledger=b"l.db")                   | ActorConfigurationError: ledger: must be a text, not bytes |
      | cb.make_actor("m", ledger=5)                           | ActorConfigurationError: ledger: must be a text, not int |
    And in the ledger the counts of runs are [0]

  Scenario: The ledger of an actor would not be the one that its caller means
    Then these mistakes are refused
      | expression                                                                        | error |
      | cb.make_actor("m", ledger=":memory:")                                             | LedgerError: the ledger :memory: would be lost with its process |
      | cb.load_actor("examples/actors/reviewer.yaml", ledger="sqlite:///:memory:")       | LedgerError: the ledger sqlite:///:memory: would be lost with its process |
      | cb.make_actor("m", ledger="host=db password=secret")                              | LedgerError: the ledger is given in libpq's words (host=…), and a URL is needed |
    And in the ledger the counts of runs are [0]

  Scenario: None is the default, and the URL of an SDK client is a text
    Then these expressions have the values
      | expression                                                                                                                      | value  |
      | actor.respond_sync("a", keep=None).batch_id is None                                                                             | False  |
      | [each.position for each in actor.respond_all_sync(["a", "b"], new=None, ordered=None)]                                          | [0, 1] |
      | cb.make_actor("m", drive=None, base_url=__import__("anthropic").Anthropic(api_key="k", base_url="http://a.b").base_url).close() | None   |
      | cb.ClaudeProvider(base_url=__import__("anthropic").Anthropic(api_key="k", base_url="http://a.b").base_url).close()              | None   |

  Scenario: A provider of one's own returns what is no answer
    Then these mistakes are refused
      | expression                          | error |
      | cb.Actor(live.configuration, type("P", (), {"capabilities": cb.ProviderCapabilities(), "respond_sync": lambda *_, **__: "b"})()).respond_sync("a") | ActorConfigurationError: the provider 'P' returned str, where claude_batch.Provider has ActorResponse |
      | asyncio.run(cb.Actor(live.configuration, type("P", (), {"capabilities": cb.ProviderCapabilities(), "respond": lambda *_, **__: asyncio.sleep(0)})()).respond("a", output_format=int)) | ActorConfigurationError: the provider 'P' returned NoneType, where claude_batch.Provider has ActorResponse |
      | cb.Actor(live.configuration, type("P", (), {"capabilities": cb.ProviderCapabilities(), "respond_all": lambda *_, **__: asyncio.sleep(0)})()).respond_all(["a"]) | ActorConfigurationError: the provider 'P' returned coroutine, where claude_batch.Provider has AsyncIterable |
      | cb.Actor(live.configuration, type("P", (), {"capabilities": cb.ProviderCapabilities(), "respond_all_sync": lambda *_, **__: None})()).respond_all_sync(["a"]) | ActorConfigurationError: the provider 'P' returned NoneType, where claude_batch.Provider has Iterable |
      | cb.ActorResponse("{}")              | TypeError: raw must be bytes, not str; encode the Message |
      | cb.ActorResponse(b"{}").text        | MalformedAnswerError: the answer cannot be read as a Message |

  Scenario: The error of a closed actor names its ledger without the password
    Then these mistakes are refused
      | expression                                                                                                                           | error |
      | [a := cb.make_actor("m", ledger="postgresql://me:secret@127.0.0.1:1/db"), a.close(), a.respond_sync("a")] | ActorConfigurationError: actor local/actor is closed; open it again with cb.make_actor('m', ledger='postgresql://me:***@127.0.0.1:1/db') |

  Scenario: Options are changed after requests were encoded from them
    Then these mistakes are refused
      | expression                                              | error |
      | actor.configuration.options.update(max_tokens=3)        | TypeError: these options cannot be changed; change dict(options), and make another actor or provider with it |
      | actor.configuration.options.__setitem__("max_tokens", 3) | TypeError: these options cannot be changed |
      | __import__("copy").deepcopy(actor.configuration).options.clear() | TypeError: these options cannot be changed |
      | __import__("pickle").loads(__import__("pickle").dumps(actor.configuration)).options.pop("max_tokens") | TypeError: these options cannot be changed |
      | provider.default_options.setdefault("max_tokens", 3)    | TypeError: these options cannot be changed |

  Scenario: A value has no meaning
    When a run of these prompts is submitted
      | prompt |
      | one    |
    Then these mistakes are refused
      | expression                                                          | error                                                                 |
      | actor.respond_sync(cb.ActorRequest("a", options={1: 2}))            | InvalidRequestError: a name in `options` must be a text, not 1        |
      | cb.ActorConfiguration(model="m", options={1: 2})                    | ValidationError                                                       |
      | cb.ActorConfiguration(model="m", tools=[len])                       | ValidationError: 1 validation error for ActorConfiguration            |
      | cb.ActorConfiguration(model="m", config={"tools": (cb.tool(lambda: 1, name="a"),)}) | ValidationError: 1 validation error for ActorConfiguration |
      | cb.Actor(cb.ActorConfiguration(model="m", batch_processing={"budget_usd": 1}), live.provider) | ActorConfigurationError: actor local/actor has a budget, which 'claude' does not keep; remove the budget, or bind the actor to a ClaudeBatchProvider |
      | live.provider.respond_sync(cb.ActorConfiguration(name="tests/spender", model="m", batch_processing={"actor_budget_usd": 1}), "a") | ActorConfigurationError: actor tests/spender has a budget, which 'claude' does not keep; remove the budget, or bind the actor to a ClaudeBatchProvider |
      | list(live.provider.respond_all_sync(cb.ActorConfiguration(name="tests/spender", model="m", batch_processing={"actor_budget_usd": 1}), ["a"])) | ActorConfigurationError: actor tests/spender has a budget, which 'claude' does not keep; remove the budget, or bind the actor to a ClaudeBatchProvider |
      | actor.respond_sync(cb.ActorRequest("a", options={"temperature": float("nan")})) | InvalidRequestError: the params cannot be written as JSON: `temperature` is not a finite number |
      | actor.respond_sync(cb.ActorRequest(params={"messages": [{"role": "user", "content": "a"}], "metadata": {"a": [1, float("-inf")]}})) | InvalidRequestError: the params cannot be written as JSON: `metadata.a.1` is not a finite number |
      | run.export_sync("out.jsonl", "xlsx")                                | ActorConfigurationError: format: 'xlsx' is unknown; the formats are: jsonl, csv, csv-safe |
      | run.export_sync("out.xlsx")                                         | ActorConfigurationError: out.xlsx: .xlsx is not a format of the answers; they are written as JSON lines (.jsonl) or CSV (.csv) |
      | list(run.results_sync(ordered="no"))                                | ActorConfigurationError: ordered: must be True or False, not str      |
      | run.cost(by="week")                                                 | ActorConfigurationError: by: 'week' is unknown; costs are grouped by: actor, model, day |
      | actor.submit_sync(["b"], label=7)                                   | InvalidRequestError: the label must be a text, not int                |
      | provider.store(actor.configuration, ["b"], output="a\udcff.jsonl") | InvalidRequestError: output: the path 'a\udcff.jsonl' cannot be stored, because it or the current directory is not UTF-8 |
      | provider.store(actor.configuration, ["b"], output=b"a.jsonl")       | InvalidRequestError: output must be a path as a text, not b'a.jsonl' |
      | actor.submit_sync(["b"], label="a\udc00")                          | InvalidRequestError: the label 'a\udc00' has a lone surrogate        |
      | actor.submit_sync(["b"], output_format="1 / 0")                     | InvalidRequestError: output_format must be a type or a JSON schema, not the name of a type: '1 / 0' |
      | actor.submit_sync([{"prompt": "b", "response_format": "1 / 0"}])    | InvalidRequestError: request at position 0: `response_format` must be a JSON schema, not str |
      | actor.submit_sync(["b"], output_format=list["1 / 0"])               | InvalidRequestError: output_format list: Pydantic cannot use this type: ZeroDivisionError: division by zero |
      | list(run.results_sync(output_format=__import__("typing").ForwardRef("1 / 0"))) | InvalidRequestError: output_format must be a type or a JSON schema |
    And in the ledger the counts of runs are [1]

  Scenario: A keyword is misspelled, or belongs elsewhere
    Then these mistakes are refused
      | expression | error |
      | actor.respond_sync("a", max_tokens=5) | TypeError: there is no setting 'max_tokens'; the most tokens of an answer are `max_tokens=` of make_actor, or one of the `options` of an ActorRequest |
      | actor.respond_sync("a", model="m") | TypeError: there is no setting 'model'; the model is set in make_actor, in the actor's file, or in an ActorRequest with `model=` |
      | actor.respond_sync("a", lable="b") | TypeError: there is no setting 'lable'; did you mean 'label'? (it belongs to run and submit) |
      | actor.respond_sync("a", keyy="b") | TypeError: there is no setting 'keyy'; did you mean 'key'? (it belongs to respond, or to an ActorRequest) |
      | actor.respond_sync("a", id="b") | TypeError: there is no setting 'id'; the id of a request is `key=` of respond or of an ActorRequest |
      | actor.respond_sync("a", tools=[len]) | TypeError: there is no setting 'tools'; functions are `tools=` of load_actor, make_actor and Actor |
      | actor.respond_sync("a", instructions="b") | TypeError: there is no setting 'instructions'; the system prompt is `system_prompt=` of make_actor |
      | actor.respond_sync("a", context=1) | TypeError: there is no setting 'context'; it belongs to a request: pass an ActorRequest with `context=` |
      | actor.respond_sync("a", top_k=5) | TypeError: there is no setting 'top_k'; parameters of the Messages API go into `options=` |
      | actor.respond_sync("a", metadata={}) | TypeError: there is no setting 'metadata'; parameters of the Messages API go into `options=` |
      | actor.respond_sync("a", max_retry=5) | TypeError: there is no setting 'max_retry'; the number of attempts is `max_attempts=` |
      | actor.submit_sync(["a"], batch_size=5) | TypeError: there is no setting 'batch_size'; the most requests of a batch are `max_requests=` |
      | actor.submit_sync(["a"], return_exceptions=True) | TypeError: there is no setting 'return_exceptions'; it belongs to asyncio.gather; respond_all returns each failure |
      | cb.make_actor("m", max_workers=5) | ActorConfigurationError: provider claude-batch has no setting 'max_workers'; batches need none, and the most calls at once of live ones are `live_concurrency=` |
      | cb.make_actor("m", callbacks=[print]) | ActorConfigurationError: provider claude-batch has no setting 'callbacks'; functions that receive events are `observers=` |
      | actor.respond_sync("a", poll="1s") | TypeError: there is no setting 'poll'; did you mean 'poll_interval'? |
      | actor.submit_sync(["a"], ordred=True) | TypeError: there is no setting 'ordred'; did you mean 'ordered'? (it belongs to respond_all, run and Run.results) |
      | actor.submit_sync(["a"], nwe=True) | TypeError: there is no setting 'nwe'; did you mean 'new'? (it belongs to respond_all, run and submit) |
      | actor.respond_sync("a", prices="p.yml") | TypeError: there is no setting 'prices'; it belongs to load_actor, make_actor and ClaudeBatchProvider |
      | actor.submit_sync(["a"], daily_budget=5) | TypeError: there is no setting 'daily_budget'; did you mean 'daily_budget_usd'? (it belongs to load_actor, |
      | actor.submit_sync(["a"], live=True) | TypeError: there is no setting 'live'; requests are sent live with `mode="live"` |
      | actor.submit_sync(["a"], batch=True) | TypeError: there is no setting 'batch'; requests travel in batches with `mode="batch"` |
      | list(actor.respond_all_sync(["a"], progres=True)) | TypeError: there is no setting 'progres'; did you mean 'progress'? |
      | cb.ClaudeBatchProvider(ledgr="x.db") | TypeError: there is no setting 'ledgr'; did you mean 'ledger'? |
      | cb.ClaudeProvider(concurency=3) | TypeError: there is no setting 'concurency'; did you mean 'concurrency'? |
      | cb.make_actor("m", max_token=5) | ActorConfigurationError: provider claude-batch has no setting 'max_token'; did you mean 'max_tokens'? (the most tokens of an answer are `max_tokens=` of make_actor |
      | cb.make_actor("m", budget_per_day=5) | ActorConfigurationError: provider claude-batch has no setting 'budget_per_day'; did you mean 'daily_budget_usd'? |
      | cb.make_actor("m", ledgr="x.db") | ActorConfigurationError: provider claude-batch has no setting 'ledgr'; did you mean 'ledger'? |
      | cb.load_actor("examples/actors/reviewer.yaml", max_tokens=5) | ActorConfigurationError: provider claude-batch has no setting 'max_tokens'; the most tokens of an answer are |
      | cb.load_actor("examples/actors/reviewer.yaml", budget=5) | ActorConfigurationError: provider claude-batch has no setting 'budget'; the most that a run may cost is `budget_usd=` |
    And in the ledger the counts of runs are [0]

  Scenario: One request of many is wrong, and is named
    Then these mistakes are refused
      | expression                                                                | error                                                                                                      |
      | actor.submit_sync(["a", ""])                                              | InvalidRequestError: request at position 1: the prompt is empty                                            |
      | actor.submit_sync(["a", None])                                            | InvalidRequestError: request at position 1: a request must be a text, an ActorRequest or a mapping, not None |
      | actor.submit_sync(["a", {"id": "k", "prompt": ""}])                       | InvalidRequestError: request 'k': the prompt is empty                                                      |
      | asyncio.run(actor.submit(["a", "b", ""]))                                 | InvalidRequestError: request at position 2: the prompt is empty                                            |
      | asyncio.run(actor.submit(["a", cb.ActorRequest("b", documents=["x.pdf"])])) | InvalidRequestError: request at position 1: document                                                     |
      | asyncio.run(changed.submit(["a", "b", "", "d"]))                          | InvalidRequestError: request at position 2: the prompt is empty                                            |
      | changed.submit_sync(["a", "b", "", "d"])                                  | InvalidRequestError: request at position 2: the prompt is empty                                            |
      | actor.estimate_sync(["a", "\ud800"])                                      | InvalidRequestError: request at position 1: the params cannot be written as JSON                           |
      | actor.respond_sync("")                                                    | InvalidRequestError: the prompt is empty                                                                   |
    And in the ledger the counts of runs are [0]

  Scenario: A synchronous method that would block the event loop of its own answer
    Then another actor is asked on an event loop of claude-batch as follows
      | by                                                    | awaits | outcome |
      | the source of a live run                              | no     | ActorConfigurationError: this code runs on an event loop of claude-batch (claude-live)…such as `respond` instead of `respond_sync` |
      | the source of a live run                              | yes    | Sandbox answer… |
      | middleware of a live provider                         | no     | MiddlewareError: …this code runs on an event loop of claude-batch (claude-live)…; nothing was sent for it |
      | middleware of a live provider                         | yes    | Sandbox answer…"outer"… |
      | middleware                                            | no     | MiddlewareError: …this code runs on an event loop of claude-batch (claude-batch-middleware-loop)…; nothing was sent for it |
      | middleware                                            | yes    | Sandbox answer…"outer"… |
      | a callback of LangChain                               | no     | ActorConfigurationError: this code runs on an event loop of claude-batch (claude-batch-langchain-loop)… |
      | a callback of LangChain                               | yes    | Sandbox answer…"outer"… |
      | a tool that asks an actor with asynchronous tools     | no     | The tools gave: ActorConfigurationError: this code runs on an event loop of claude-batch (claude-batch-tools)… |
      | a tool that asks an actor with asynchronous tools     | yes    | The tools gave: The tools gave: little |
      | a tool that asks a live actor with asynchronous tools | no     | The tools gave: ActorConfigurationError: this code runs on an event loop of claude-batch (claude-batch-tools)… |
      | a tool that asks an actor without tools               | no     | The tools gave: Sandbox answer… |
      | a tool that waits for its own run of an actor with asynchronous tools | no | The tools gave: ActorConfigurationError: this code runs on an event loop of claude-batch (claude-batch-tools)… |
      | a tool that iterates over its own run of an actor with asynchronous tools | no | The tools gave: ActorConfigurationError: this code runs on an event loop of claude-batch (claude-batch-tools)… |
      | a tool that waits for its own run of an actor with asynchronous tools | yes | The tools gave: The tools gave: little |
      | a tool that waits for its own run of an actor without tools | no | The tools gave: Sandbox answer… |

  Scenario: A key is the id of a request without a key, which is its number
    Then these mistakes are refused
      | expression                                                            | error                                                                                                              |
      | actor.submit_sync(["a", {"id": "1", "prompt": "b"}])                  | InvalidRequestError: request '1': request 1 of the run has no key, so its id is 1 too; give one                    |
      | actor.submit_sync([{"id": "k", "prompt": "a"}, "b", "c", {"id": 3, "prompt": "d"}]) | InvalidRequestError: request '3': request 3 of the run has no key, so its id is 3 too; give one      |
      | actor.submit_sync([{"id": "2", "prompt": "a"}, "b"])                  | InvalidRequestError: request at position 1: it has no key, so its id is its number, 2, and another request has this key |
      | asyncio.run(actor.submit([{"id": "2", "prompt": "a"}, "b"]))          | InvalidRequestError: request at position 1: it has no key, so its id is its number, 2, and another request has this key |
      | changed.submit_sync(["a", {"id": "1", "prompt": "b"}])                | InvalidRequestError: request '1': request 1 of the run has no key                                                  |
    And in the ledger the counts of runs are [0]
