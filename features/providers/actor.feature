@every_python
Feature: An actor is a configuration bound to its provider

  Scenario: asking the actor asks its provider, with its configuration
    Given the registry's actor with a provider that notes its calls
    When the registry's actor is asked in every way
    Then the registry's provider noted every call with the actor's configuration

  Scenario: a run is submitted to a provider that keeps runs
    Given the registry's actor with a provider that notes its calls and keeps runs
    When the registry's actor submits 2 requests with the label "l", anew
    Then the registry's provider noted the submissions with label and novelty

  Scenario: the error about a provider without runs names the remedy
    Given the registry's actor with a provider that notes its calls
    Then submitting to the registry's actor is refused with "write `batch_processing: true`"

  Scenario: one prompt where many are expected is refused before anything is asked
    Given the registry's actor with a provider that notes its calls and keeps runs
    Then giving the registry's actor a single prompt for many is refused, and nothing was asked

  Scenario: an actor of another type cannot be bound
    Then binding a registry actor of type "tool" is refused with "of type 'tool'"

  Scenario: an actor is loaded from a file and bound to who answers for it
    Given an actor file
      """
      actors:
        a: {config: {provider: acme, model: m}}
        b: {config: {provider: acme, model: n}}
      """
    And a registry with the provider "acme"
    When the registry's actor is loaded from the actor file as "b" with {"region": "eu"}
    Then the registry has called the factory of "acme" once, with {"region": "eu"}
    And the registry's actor is called "local/b", and its repr says so

  Scenario: without a registry of its own an actor finds Claude
    Given an actor file
      """
      model: claude-haiku-4-5
      """
    Then loading the actor file binds the registry's own ClaudeProvider
