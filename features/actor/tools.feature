@every_python
Feature: Python functions as tools of a model

  Scenario: An object that cannot be a tool is refused when it is given
    Then functions are taken for tools as follows
      | tools                  | error                                               |
      | population, population | two tools are called 'population'                   |
      | named "a b"            | 'a b' is not a valid name for a tool                         |
      | waiting "soon"         | tool population: timeout: 'soon' is not a duration  |
      | waiting "0s"           | tool population: timeout: it must be more than 0s |
      | a number               | 5 is not a function, so it cannot be a tool            |
      | a definition           | is not a function, so it cannot be a tool; a definition alone belongs into `options.tools` |
      | piecemeal              | tool piecemeal: it is an asynchronous generator; return a list instead |
      | unfit                  | tool unfit: its signature has no JSON schema  |
      | by position            | tool by_position: the model passes arguments by name, but the function takes some by position only |
      | of many                | tool of_many: the model passes arguments by name, but the function takes some by position only |

  Scenario: A tool name that cannot be imported is reported when the actor's file is loaded
    Then the tools of an actor's file are found as follows
      | tools                   | error                                                             |
      | [nowhere_to_be_found:f] | tool nowhere_to_be_found:f: it cannot be imported: ModuleNotFound |
      | [toolbox:nothing]       | tool toolbox:nothing: it cannot be imported: AttributeError       |
      | [toolbox:__name__]      | 'toolbox' is not a function                                          |

  Scenario: A module beside the actor's file is refused if another one of its name is loaded
    Given a document "toolbox.py" of 99 bytes
    And a document "calendar.py" of 99 bytes
    Then the tools of an actor's file are found as follows
      | tools                 | error                                                                                                                         |
      | [toolbox:population]  | …/toolbox.py has the name of another module, which is loaded already (…/features/toolbox.py); rename one of them |
      | [calendar:monthrange] | …/calendar.py has the name of another module, which is loaded already (…/calendar.py); rename one of them        |

  Scenario: A module beside the actor's file may be a copy of the one that is loaded
    Given a copy of the module toolbox beside the actor's file
    Then the tools of an actor's file are found as follows
      | tools                | kept | error |
      | [toolbox:population] | no   |       |

  Scenario: The host's own entries are left alone
    Then the tools of an actor's file are found as follows
      | tools                          | functions | kept |
      | [local/shell, {name: a}, 5]    | none      | yes  |
      | local/shell                    | none      | yes  |
      | [http://127.0.0.1:80, "a:b c"] | none      | yes  |

  Scenario: A function beside the actor's file is found there, by another process too
    Then a function beside an actor's file is found by what is remembered of it, as follows
      | where              | changes                                        | says                   | error                                          |
      | in another process | {}                                             | "from beside the file" |                                                |
      | in another process | {"folder": "/nowhere"}                         |                        | there is no such module here                   |
      | here               | {"folder": "/nowhere"}                         | "from beside the file" |                                                |
      | here               | {"folder": "/nowhere", "definition": "other"}  |                        | is not the function that the run was made with |

  Scenario: A tool is called like the function that it is, and a method is a tool of its object
    Then tools are named, described, called and remembered as follows
      | tool                                         | arguments            | name       | description       | gives        | can be imported |
      | a function with another name and description | {}                   | tour-guide | Knows its way.    | here         | yes             |
      | a function without a description             | {}                   | bare       |                   | bare         | no              |
      | the address method of the office in Bonn     | {"street": "Am Kai"} | address    | Where a street is. | Am Kai, Bonn | no              |
      | the address method of the office in Kiel     | {"street": "Am Kai"} | address    | Where a street is. | Am Kai, Kiel | no              |

  Scenario: A tool that is marked again has what is given last, whatever attributes its function has
    Then tools are named, described, called and remembered as follows
      | tool                                  | arguments | name       | description    | gives | can be imported | repeatable | seconds |
      | guide, marked again                   | {}        | tour-guide | Knows its way. | here  | yes             | no         | 300     |
      | guide, marked again with another name | {}        | g          | Knows its way. | here  | yes             | no         | 5       |
      | guide, marked again as repeatable     | {}        | tour-guide | Knows its way. | here  | yes             | yes        | 300     |
      | survey                                | {}        | survey     | Looks around.  | all   | yes             | yes        | 300     |
      | survey, no longer repeatable          | {}        | survey     | Looks around.  | all   | no              | no         | 300     |
      | a function with attributes of its own | {}        | bare       |                | bare  | no              | no         | 300     |
  Scenario: A tool begins only if all its threads can start, and they end after it
    Then a tool is run, and so many threads can start for it as follows
      | tool       | threads | raises | outputs | left |
      | population | 2       | no     | ["4000"] | 0   |
      | population | 1       | yes    | []      | 0    |
      | population | 0       | yes    | []      | 0    |
      | weather    | 2       | no     | ["rain in Bonn for 1"] | 0 |
      | weather    | 1       | yes    | []      | 0    |
      | weather    | 0       | yes    | []      | 0    |
      | blocks     | 2       | no     | ["the tool blocks returned no result within 0.2 seconds: the event loop of the asynchronous tools is blocked; on it run: blocks"] | 0 |

  Scenario: The next turn keeps what the model's code has made
    Then the answer's container stands in the next turn as follows
      | container of the answer | container before | container                           |
      | container_1             |                  | container_1                       |
      | container_1             | "container_0"    | container_1                       |
      | container_1             | {"skills": []}   | {"skills": [], "id": "container_1"} |

  Scenario: The next turn does not repeat the unfinished calls of an answer that was cut off
    Then the next turn after an answer that cannot be used says what is wrong with it as follows
      | answer | messages |
      | [{"type": "text", "text": "half"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}] | [{"role": "assistant", "content": [{"type": "text", "text": "half"}]}, {"role": "user", "content": "again"}] |
      | [{"type": "text", "text": " "}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}] | [{"role": "user", "content": "again"}] |
