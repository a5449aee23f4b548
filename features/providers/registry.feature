@every_python
Feature: The registry finds who answers for an actor
  A table of names and factories; nothing is made before it is needed.

  @file_ledger
  Scenario: the default registry knows Claude, live and in batches, without importing either
    Then the registry by default knows "anthropic, claude, claude-batch"
    When Python imports "claude_batch.providers.registry"
    Then the module "anthropic" is not imported
    And the module "sqlalchemy" is not imported
    And the module "httpx2" is not imported

  Scenario: a factory is called when its provider is first needed, and once
    Given a registry with the provider "Acme"
    Then the registry's names are "acme"
    And the registry gives providers as follows
      | name     | made before | provider | made |
      | "acme"   | 0           | 1        | 1    |
      | " ACME " | 1           | 1        | 1    |

  Scenario: Equal settings share a provider, others do not
    Given a registry with the provider "acme"
    Then the registry gives providers as follows
      | settings                                                                          | provider |
      | {"linger": "2s", "default_options": {"a": [1, {"b": 2}], "c": 3}}                 | 1        |
      | {"default_options": {"c": 3, "a": [1, {"b": 2}]}, "linger": "2s"}                 | 1        |
      | {"default_options": {"c": 3, "a": [1, {"b": 2}]}, "linger": "2s", "ledger": null} | 1        |
      | {}                                                                                | 2        |
      | {"linger": "3s"}                                                                  | 3        |
      | {"linger": 1}                                                                     | 4        |
      | {"linger": true}                                                                  | 5        |
      | {"default_options": {"a": [1]}}                                                   | 6        |
      | {"default_options": {"a": {"1": 1}}}                                              | 7        |

  Scenario: settings that cannot be compared are the same only as the same object
    Given a registry with the provider "acme"
    Then the registry gives providers as follows
      | settings             | provider |
      | {"thing": "<one>"}   | 1        |
      | {"thing": "<other>"} | 2        |
      | {"thing": "<one>"}   | 1        |

  Scenario: Another environment is another provider
    Given a registry with the provider "acme"
    Then the registry gives another provider once a variable has changed, as follows
      | variable            | another |
      | ANTHROPIC_BASE_URL  | yes     |
      | CLAUDE_BATCH_LEDGER | yes     |
      | SOMETHING_ELSE      | no      |

  Scenario: a provider that was closed is not given again
    Given a registry with the provider "acme"
    Then the registry gives providers as follows
      | close | provider |
      | no    | 1        |
      | yes   | 1        |
      | no    | 2        |
      | no    | 2        |

  Scenario: many threads that ask at once get one provider
    Given a registry with the provider "acme"
    Then the registry gives providers as follows
      | threads | provider | made |
      | 16      | 1        | 1    |

  Scenario: An unknown name is reported with the known ones
    Then a registry refuses an unknown name as follows
      | registered | name   | error        |
      | acme       | openai | …openai…acme |
      |            | openai | …openai…none |

  Scenario: a doubled registration is an error unless it replaces
    Given a registry with the provider "acme"
    Then the registry gives providers as follows
      | name   | provider |
      | "acme" | 1        |
    And names are registered as follows
      | name   | replace | result | error                 |
      | "ACME" | no      |        | is registered already |
      | "acme" | yes     |        |                       |
      | " "    | no      |        | must not be empty     |

  Scenario: the name of Claude's maker is taken, too
    Given a registry with the provider "claude"
    Then names are registered as follows
      | name        | replace | error                                                    |
      | "Anthropic" | no      | a provider called 'anthropic' is registered already      |
      | "anthropic" | yes     |                                                          |

  Scenario: the actor's mode chooses between live and batched Claude
    Given a registry with the providers "claude, claude-batch, acme"
    Then the registry finds who answers as follows
      | actor                                                                  | name         |
      | {"model": "m", "name": "x"}                                            | claude       |
      | {"model": "m", "provider": "anthropic"}                                | claude       |
      | {"model": "m", "provider": "Claude"}                                   | claude       |
      | {"model": "m", "batch_processing": false}                              | claude       |
      | {"model": "m", "batch_processing": true}                               | claude-batch |
      | {"model": "m", "provider": "anthropic", "batch_processing": true}      | claude-batch |
      | {"model": "m", "provider": "claude", "batch_processing": {"linger": 1}} | claude-batch |
      | {"model": "m", "provider": "claude-batch"}                             | claude-batch |
      | {"model": "m", "provider": "claude-batch", "batch_processing": true}   | claude-batch |
      | {"model": "m", "provider": "ACME"}                                     | acme         |

  Scenario: an actor that contradicts itself, or cannot be asked, is refused
    Given a registry with the providers "claude, claude-batch, acme"
    Then the registry finds who answers as follows
      | actor                                                                 | name | error                                                 |
      | {"model": "m", "provider": "claude-batch", "batch_processing": false} |      | remove one of them                                    |
      | {"model": "m", "provider": "acme", "batch_processing": true}          |      | has no batches                                        |
      | {"model": "m", "provider": "openai"}                                  |      | registered are: acme, anthropic, claude, claude-batch |
      | {"type": "graph"}                                                     |      | of type 'graph'                                       |

  Scenario: settings reach the provider that an actor gets
    Given a registry with the provider "acme"
    Then the registry finds who answers as follows
      | actor                              | settings                         | name | provider_name |
      | {"model": "m", "provider": "acme"} | {"region": "eu", "ledger": null} | acme | acme          |
    And the registry gives providers as follows
      | settings         | made before | made |
      | {"region": "eu"} | 1           | 1    |

  Scenario: a host may put its own provider in the place of anthropic
    Given a registry with the provider "claude"
    And the provider "anthropic" in place of another one
    Then the registry finds who answers as follows
      | actor                                   | name      |
      | {"model": "m", "provider": "anthropic"} | anthropic |

  Scenario: a setting that only the other Claude takes is no fault, and one that no Claude takes is refused
    Given a program that logs
    Then the registry by default finds Claude as follows
      | batches | settings                                            | provider            | error                  |
      | no      | {"ledger": "x.db", "linger": "1s", "concurrency": 3} | ClaudeProvider      |                        |
      | yes     | {"concurrency": 3, "linger": "1s"}                  | ClaudeBatchProvider |                        |
      | yes     | {"timeout": 60, "max_retries": null}                | ClaudeBatchProvider |                        |
      | no      | {"lingre": 1}                                       |                     | did you mean 'linger'? |
      | yes     | {"lingre": 1}                                       |                     | did you mean 'linger'? |
      | yes     | {"zzz": 1}                                          |                     | no setting 'zzz'       |
    And the log has 2 line that says "no effect on an actor with `batch_processing`"
    And the log has 1 line that says "timeout: no effect on an actor with `batch_processing`; the longest wait is `max_wait=`"

  Scenario: A budget of an actor that has no ledger is refused, because nothing would keep it
    Then the registry by default finds Claude as follows
      | batches | settings                | provider            | error                                             |
      | no      | {"budget_usd": "5"}     |                     | budget_usd: an actor without `batch_processing` has no ledger, so no budget holds its calls |
      | no      | {"daily_budget_usd": 5} |                     | for live calls under a budget, write `batch_processing: {mode: live}` |
      | no      | {"budget_usd": null}    | ClaudeProvider      |                                                   |
      | yes     | {"budget_usd": "5", "mode": "live"} | ClaudeBatchProvider |                                       |

  Scenario: A provider with the five names that actors need is a Provider
    When this program runs
      """
      class Echo:
          capabilities = cb.ProviderCapabilities()
          respond = respond_all = aclose = close = print

      cb.default_registry.register("echo", Echo)
      echo = cb.default_registry.get("echo")
      print(isinstance(echo, cb.Provider), isinstance(echo, cb.FullProvider))
      """
    Then the program has printed
      """
      True False
      """

  Scenario: both of Claude's providers keep the protocol
    Then Claude's providers keep the protocol as follows
      | asked for    | name         | provider name | sync | batch | durable |
      | claude       | claude       | claude        | yes  | no    | no      |
      | anthropic    | claude       | claude        | yes  | no    | no      |
      | claude-batch | claude-batch | claude-batch  | yes  | yes   | yes     |

  Scenario: Packages bring providers, which are imported when they are asked for
    Given packages with the providers
      | package | name   | object        | module                                           |
      | acme    | Acme   | acme:provider | from claude_batch import ClaudeProvider as provider |
      | broken  | broken | broken:make   | import nothing_of_that_name                      |
      | empty   | empty  | empty:gone    |                                                  |
      | wrong   | wrong  | wrong:make    | make = "a text"                                  |
      | twice   | double | twice:make    |                                                  |
      | again   | double | again:make    |                                                  |
      | thief   | claude | thief:make    |                                                  |
      | partial | half   | partial:Half  | class Half: respond = close = None               |
    Then the registry by default knows "acme, anthropic, broken, claude, claude-batch, double, empty, half, wrong"
    And the modules "acme, broken, empty, wrong, twice, again, thief" are not imported
    And providers of packages are found as follows
      | name      | provider       | error                                                                                                                             |
      | anthropic | ClaudeProvider |                                                                                                                                   |
      | claude    | ClaudeProvider |                                                                                                                                   |
      | ACME      | ClaudeProvider |                                                                                                                                   |
      | broken    |                | the provider 'broken' cannot be imported (broken:make of broken): ModuleNotFoundError: No module named 'nothing_of_that_name'. Other providers are not affected |
      | empty     |                | the provider 'empty' cannot be imported (empty:gone of empty): AttributeError: module 'empty' has no attribute 'gone'…            |
      | wrong     |                | the provider 'wrong' cannot be imported (wrong:make of wrong): TypeError: it is not a class or function, but str…                 |
      | double    |                | several packages have a provider 'double': …twice:make of twice…; uninstall all but one, or register the one to use               |
      | half      |                | the provider 'half' is Half, which has no capabilities, respond_all, aclose; claude_batch.Provider says what a provider must have |
      | nobody    |                | …acme, anthropic, broken, claude, claude-batch, double, empty, half, wrong                                                         |
    And the modules "twice, again, thief" are not imported

  Scenario: A registry of one's own has no plug-ins unless it names their group
    Given packages with the providers
      | package | name | object        | module                                              |
      | acme    | acme | acme:provider | from claude_batch import ClaudeProvider as provider |
    And a registry with the provider "mine"
    Then the registry's names are "mine"

  Scenario Outline: actors validate checks the provider that a package brings: <provider>
    Given packages with the providers
      | package | name   | object      | module                                                                   |
      | broken  | broken | broken:make | import nothing_of_that_name                                              |
      | dear    | dear   | dear:Dear   | import claude_batch as cb; Dear = type("Dear", (), {"capabilities": cb.ProviderCapabilities(), "__getattr__": None}) |
      | partial | half   | partial:Half | class Half: respond = close = None                                       |
    And a command's folder
    And a command's file "actor.yaml"
      """
      name: tests/alien
      provider: <provider>
      model: any
      batch_processing: <batched>
      """
    And a command's file "sound.yaml"
      """
      name: tests/alien
      provider: dear
      model: any
      """
    When a command runs: actors validate actor.yaml
    Then the command line exits with <code> and says
      """
      actor.yaml: <words>
      """

    When a command runs: actors validate sound.yaml
    Then the command line exits with 0

    Examples:
      | provider | batched | code | words                                                                          |
      | broken   | false   | 2    | actor tests/alien: the provider 'broken' cannot be imported (broken:make of broken): ModuleNotFoundError |
      | half     | false   | 2    | actor tests/alien: the provider 'half' is Half, which has no respond_all, aclose; claude_batch.Provider says what a provider must have |
      | dear     | true    | 2    | actor tests/alien: has `batch_processing`, and its provider 'dear' has no batches; remove `batch_processing`, |

  Scenario: A command names Python for an actor of a package's provider
    Given packages with the providers
      | package | name | object        | module                                              |
      | acme    | acme | acme:provider | from claude_batch import ClaudeProvider as provider |
    And a command's API
    And a command's file "asks.jsonl"
      """
      "one"
      """
    And a command's file "actor.yaml"
      """
      name: tests/alien
      provider: Acme
      model: any
      """
    When a command runs: run actor.yaml asks.jsonl
    Then the command line exits with 2 and says
      """
      error: actor tests/alien is answered by the provider 'acme'. Commands answer actors of `provider: anthropic` alone; use this one from Python, with cb.load_actor
      """
