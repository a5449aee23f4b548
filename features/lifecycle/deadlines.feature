Feature: A deadline is met at full price where batches leave no time for it

  Scenario: only what did not run in its batch is asked live
    Given an API that takes 6 seconds for a batch
    And a batch provider with {"deadline": "8s", "deadline_margin": "6s"}
    When a run of 40 prompts is submitted
    And the results are read in order
    Then there are 40 results in the order of the prompts
    And some of the 40 answers came from batches and the others live, each paid once at its price
    And the run's deadline was met
