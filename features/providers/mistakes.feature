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
      | cb.Actor(actor.configuration, provider, tools=len) | ActorConfigurationError: tools: <built-in function len> is not a list |
      | cb.ClaudeProvider(middleware=cb.Middleware())  | TypeError: middleware: <claude_batch                                       |
      | cb.ClaudeBatchProvider(observers=print)        | TypeError: observers: <built-in function print> is not a list              |
      | cb.ActorRequest("a", documents=None)           | InvalidRequestError: `documents` must be a list, not NoneType              |
    And in the ledger the counts of runs are [0]

  Scenario: A value has no meaning
    When a run of these prompts is submitted
      | prompt |
      | one    |
    Then these mistakes are refused
      | expression                                                          | error                                                                 |
      | actor.respond_sync(cb.ActorRequest("a", options={1: 2}))            | InvalidRequestError: a name in `options` must be a text, not 1        |
      | cb.ActorConfiguration(model="m", options={1: 2})                    | ValidationError                                                       |
      | actor.respond_sync(cb.ActorRequest("a", options={"temperature": float("nan")})) | InvalidRequestError: the params cannot be written as JSON: `temperature` is not a finite number |
      | actor.respond_sync(cb.ActorRequest(params={"messages": [{"role": "user", "content": "a"}], "metadata": {"a": [1, float("-inf")]}})) | InvalidRequestError: the params cannot be written as JSON: `metadata.a.1` is not a finite number |
      | run.export_sync("out.jsonl", "xlsx")                                | ActorConfigurationError: format: 'xlsx' is unknown; the formats are: jsonl, csv, csv-safe |
      | run.cost(by="week")                                                 | ActorConfigurationError: by: 'week' is unknown; costs are grouped by: actor, model, day |
      | actor.submit_sync(["b"], label="a\udc00")                          | InvalidRequestError: the label 'a\udc00' has a lone surrogate        |
    And in the ledger the counts of runs are [1]
