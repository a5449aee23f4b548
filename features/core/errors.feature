@every_python
Feature: Errors form one tree, and travel between processes
  A framework catches ActorError, and may send errors to another process.

  Scenario: the tree drawn at the top of the module is the tree of classes
    Then the error tree in the docstring equals the classes, level by level

  Scenario: every error of the tree comes back from pickling with its message and fields
    Then every error class of the tree survives pickling

  Scenario: a configuration error names its place
    Then a configuration error at file "a.yaml" and line 3 reads "a.yaml:3: wrong"
    And a configuration error at file "a.yaml" without a line reads "a.yaml: wrong"
    And a configuration error at line 3 without a file reads "line 3: wrong"
    And a configuration error without a place reads "wrong"

  Scenario: an unknown provider's error lists those that are known
    Then the error for provider "x" among "a, b" says "registered are: a, b"
    And the error for provider "x" among "" says "registered are: none"

  Scenario: a refused request's error names the key where it has one
    Then the refusal of request "k" reads "request 'k': wrong"
    And the refusal of a request without a key reads "wrong"
