Feature: The model of docs/explanation/scale.md keeps what any such queues keep

  Scenario: No request is lost or doubled at any event, and no limit is passed
    Then a simulated load is sound as follows
      | month      | turnaround | queue  | batch  | seed | sound | most   |
      | 100000     | 600        | 500000 | 100000 | 1    | yes   | …               |
      | 10000000   | 3600       | 500000 | 100000 | 2    | yes   | …               |
      | 1000000000 | 600        | 500000 | 100000 | 3    | yes   | …               |
      | 1000000000 | 3600       | 500000 | 100000 | 4    | yes   | 500000          |
      | 100000000  | 3600       | 10000  | 300    | 5    | yes   | 9900            |
      # Of these batches, many expire and are asked again.
      | 1000000    | 80000      | 500000 | 100000 | 6    | yes   | …               |

  Scenario: Little's law holds for random loads, exactly, and for each place where requests wait
    Then random loads are sound as follows
      | loads | seed | some are answered | some expire |
      | 40    | 17   | yes               | yes         |

  Scenario: Below the limit, the API has the rate times the turnaround
    Then simulated loads come near the law as follows
      | month     | turnaround | predicted | near |
      | 10000000  | 600        | 2315      | yes  |
      | 100000000 | 1200       | 46296     | yes  |
      | 300000000 | 1200       | 138889    | yes  |
      # Beyond it, the limit is all it has.
      | 300000000 | 14400      | 1666667   | no   |

  Scenario: A batch is full, or its oldest request has waited
    Then a simulated load packs as follows
      | month      | bytes | largest | batches |
      | 1000000000 | 2000  | 17672   | 2879          |
      | 1000000000 | 40000 | 6400    | 5245          |

  Scenario: The page has what the model says
    Then the pages agree with the code about
      | subject                          |
      | the tables of the model of scale |
