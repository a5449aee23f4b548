@every_python
Feature: Errors form one tree, and travel between processes
  A framework catches ActorError, and may send errors to another process.

  Scenario: the tree drawn at the top of the module is the tree of classes
    Then the error tree in the docstring equals the classes, level by level

  Scenario: every error of the tree comes back from pickling with its message and fields
    Then every error class of the tree survives pickling

  Scenario: A configuration error names its place
    Then a configuration error reads as follows
      | source | line | message         |
      | a.yaml | 3    | a.yaml:3: wrong |
      | a.yaml |      | a.yaml: wrong   |
      |        | 3    | line 3: wrong   |
      |        |      | wrong           |

  Scenario: An unknown provider's error lists those that are known
    Then the error for an unknown provider reads as follows
      | name | known      | message                    |
      | x    | ["a", "b"] | …'x'…registered are: a, b… |
      | x    | []         | …'x'…registered are: none… |

  Scenario: A refused request's error names the key if it has one
    Then the error of a refused request reads as follows
      | key | message            |
      | k   | request 'k': wrong |
      |     | wrong              |
