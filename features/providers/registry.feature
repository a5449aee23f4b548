@every_python
Feature: The registry finds who answers for an actor
  A table of names and factories; nothing is made before it is needed.

  Scenario: the default registry knows Claude, live and in batches, without importing either
    Then the registry by default knows "anthropic, claude, claude-batch"
    When Python imports "claude_batch.providers.registry"
    Then the module "anthropic" is not imported
    And the module "sqlalchemy" is not imported
    And the module "httpx2" is not imported

  Scenario: a factory is called when its provider is first needed, and once
    Given a registry with the provider "acme"
    Then the registry has called no factory
    When the registry is asked for "acme" 3 times
    Then the registry has called the factory of "acme" once, without settings
    And the registry gave one and the same provider

  Scenario: names count without case
    Given a registry with the provider "Acme"
    When the registry is asked for " ACME " 1 times
    Then the registry has called the factory of "acme" once, without settings
    And the registry's names are "acme"

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
    Then the registry tells two unhashable settings apart, and knows each again

  Scenario: Another environment is another provider
    Given a registry with the provider "acme"
    Then the registry gives another provider once a variable has changed, as follows
      | variable            | another |
      | ANTHROPIC_BASE_URL  | yes     |
      | CLAUDE_BATCH_LEDGER | yes     |
      | SOMETHING_ELSE      | no      |

  Scenario: a provider that was closed is not given again
    Given a registry with the provider "acme"
    Then the registry gives a new provider for "acme" once the old one is closed

  Scenario: many threads that ask at once get one provider
    Given a registry with a provider "slow" that takes 50 ms to make
    Then the registry gives 16 threads that ask for "slow" one provider

  Scenario: An unknown name is reported with the known ones
    Then a registry refuses an unknown name as follows
      | registered | name   | error        |
      | acme       | openai | …openai…acme |
      |            | openai | …openai…none |

  Scenario: a doubled registration is an error unless it replaces
    Given a registry with the provider "acme"
    When the registry is asked for "acme" 1 times
    Then registering "ACME" in the registry again is refused with "is registered already"
    And registering "acme" in the registry with replace gives a new provider
    And registering " " in the registry again is refused with "must not be empty"

  Scenario Outline: the actor's mode chooses between live and batched Claude
    Given a registry with the providers "claude, claude-batch, acme"
    When the registry is asked who answers for {"model": "m", <actor>}
    Then the registry's answer is "<provider>"

    Examples:
      | actor                                                   | provider     |
      | "name": "x"                                             | claude       |
      | "provider": "anthropic"                                 | claude       |
      | "provider": "Claude"                                    | claude       |
      | "batch_processing": false                               | claude       |
      | "batch_processing": true                                | claude-batch |
      | "provider": "anthropic", "batch_processing": true       | claude-batch |
      | "provider": "claude", "batch_processing": {"linger": 1} | claude-batch |
      | "provider": "claude-batch"                              | claude-batch |
      | "provider": "claude-batch", "batch_processing": true    | claude-batch |
      | "provider": "ACME"                                      | acme         |

  Scenario: settings reach the provider that an actor gets
    Given a registry with the provider "acme"
    When the registry is asked who answers for {"model": "m", "provider": "acme"} with {"region": "eu", "ledger": null}
    Then the registry has called the factory of "acme" once, with {"region": "eu"}

  Scenario Outline: an actor that contradicts itself, or cannot be asked, is refused
    Given a registry with the providers "claude, claude-batch, acme"
    When the registry is asked who answers for <actor>
    Then the registry's refusal says "<says>"

    Examples:
      | actor                                                                 | says                                                  |
      | {"model": "m", "provider": "claude-batch", "batch_processing": false} | remove one of them                                    |
      | {"model": "m", "provider": "acme", "batch_processing": true}          | has no batches                                        |
      | {"model": "m", "provider": "openai"}                                  | registered are: acme, anthropic, claude, claude-batch |
      | {"type": "graph"}                                                     | of type 'graph'                                       |

  Scenario: a host may put its own provider in the place of anthropic
    Given a registry with the providers "claude, anthropic"
    When the registry is asked who answers for {"model": "m", "provider": "anthropic"}
    Then the registry's answer is "anthropic"

  Scenario: a setting that only the other Claude takes is no fault
    Then the registry by default gives an actor without batches ClaudeProvider with {"ledger": "x.db", "linger": "1s", "concurrency": 3}
    And the registry by default gives an actor with batches ClaudeBatchProvider with {"concurrency": 3, "linger": "1s"}

  Scenario: a setting that no Claude takes is refused with what may be meant
    Then the registry by default refuses an actor without batches the setting "lingre" with "did you mean 'linger'?"
    And the registry by default refuses an actor with batches the setting "lingre" with "did you mean 'linger'?"
    And the registry by default refuses an actor with batches the setting "zzz" with "no setting 'zzz'"

  Scenario: both of Claude's providers keep the protocol
    Then the registry by default gives providers that keep the protocol, each under its name

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
    Then the registry by default knows "acme, anthropic, broken, claude, claude-batch, double, empty, wrong"
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
      | nobody    |                | …acme, anthropic, broken, claude, claude-batch, double, empty, wrong                                                              |
    And the modules "twice, again, thief" are not imported

  Scenario: A registry of one's own has no plug-ins unless it names their group
    Given packages with the providers
      | package | name | object        | module                                              |
      | acme    | acme | acme:provider | from claude_batch import ClaudeProvider as provider |
    And a registry with the provider "mine"
    Then the registry's names are "mine"
