@every_python
Feature: Python functions as tools of a model

  Scenario: An object that cannot be a tool is refused when it is given
    Then functions are taken for tools as follows
      | tools                  | error                                               |
      | population, population | two tools are called 'population'                   |
      | named "a b"            | 'a b' is not a valid name for a tool                         |
      | waiting "soon"         | tool population: timeout: 'soon' is not a duration  |
      | waiting "0s"           | tool population: timeout: it is more than 0 seconds |
      | a number               | 5 is not a function, so it cannot be a tool            |
      | unfit                  | tool unfit: its signature has no JSON schema  |

  Scenario: A tool name that cannot be imported is reported when the actor's file is loaded
    Then the tools of an actor's file are found as follows
      | tools                   | error                                                             |
      | [nowhere_to_be_found:f] | tool nowhere_to_be_found:f: it cannot be imported: ModuleNotFound |
      | [toolbox:nothing]       | tool toolbox:nothing: it cannot be imported: AttributeError       |
      | [toolbox:__name__]      | 'toolbox' is not a function                                          |

  Scenario: The host's own entries are left alone
    Then the tools of an actor's file are found as follows
      | tools                          | functions | kept |
      | [local/shell, {name: a}, 5]    | none      | yes  |
      | local/shell                    | none      | yes  |
      | [http://127.0.0.1:80, "a:b c"] | none      | yes  |

  Scenario: A function beside the actor's file is found there, and calls itself as it says
    Given a module beside an actor's file
    Then the actor's tool "harbour" says "from beside the file"
    And what is remembered of it leads another process there
    And a function of the same name that is described otherwise is not taken for it

  Scenario: A tool is called like the function that it is
    Then the tools of the toolbox can be called like functions

  Scenario: Methods are tools of their object
    Then the addresses of two offices are tools of their own

  Scenario: The next turn keeps what the model's code has made
    Then the answer's container stands in the next turn as follows
      | container of the answer | container before | container                           |
      | container_1             |                  | container_1                       |
      | container_1             | "container_0"    | container_1                       |
      | container_1             | {"skills": []}   | {"skills": [], "id": "container_1"} |
    And an answer that was cut off is told of without its unfinished calls
