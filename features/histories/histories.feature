Feature: Whatever happens in whatever order, nothing is lost and nothing is paid for twice

  Random histories of runs, cancellations, decisions, processes that die or are paused at any point,
  clocks that jump, answers that are lost, lists that lag, streams that break and other people's
  batches; against the real ledger and lifecycle, a simulated API, and time that only the test moves.

  Scenario: Random histories keep the promises
    Then random histories keep the promises

  Scenario Outline: A mistake in the lifecycle is found by a history: <mistake>
    Then a history finds that <mistake>

    Examples:
      | mistake                                        |
      | what is unknown is sent again at once          |
      | no batch of the list is ever taken for ours    |
      | a process that died while it sent left nothing |
