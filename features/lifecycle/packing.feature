@every_python
Feature: Packing fills batches to the API's limits and no further

  Scenario: A cut takes as many as the limits allow
    Then of queued requests a cut takes as many as follows
      | requests | bytes of each | most requests | most bytes | taken   |
      | 5        | 10            | 100000        | 10000      | 5       |
      | 5        | 10            | 3             | 10000      | 3       |
      | 5        | 100           | 100000        | 360        | 2       |
      | 5        | 100           | 100000        | 359        | 1       |
      | 1        | 5000          | 100000        | 100        | 1       |
      | 0        | 1             | 100000        | 10000      | nothing |

  Scenario: The smallest max_requests of the runs in it counts, the shortest intervals too
    Then of runs with these settings, one request each, a cut is as follows
      | runs                                                                                                                                                  | bytes of each | count | of all | poll_interval | max_poll_interval |
      | [{"max_requests": 5, "poll_interval": 30}, {"max_requests": 2, "poll_interval": 7, "max_poll_interval": 70}, {"max_requests": 9, "poll_interval": 1}] | 1             | 2     | no     | 7             | 70                |
      | [{"max_requests": 2, "poll_interval": 30}, {"max_requests": 3, "poll_interval": 7}]                                                                   | 1             | 2     | yes    | 7             | 300               |
      | [{}, {}, {}]                                                                                                                                          | 90000000      | 2     | no     | 30            | 300               |
      | [{}, {}]                                                                                                                                              | 90000000      | 2     | yes    | 30            | 300               |
    And of runs with these settings, one request each, a cut is as follows
      | runs | bytes of each | count | of all |
      | []   | 1             | 0     | no     |

  Scenario: A lane is packed when no call has arrived for a while
    Then the requests that wait in a lane are packed as follows
      | runs                                                                                       | now | at   | why                            |
      | [{"calls": [0]}]                                                                           | 0   | 2    | a call alone waits for linger  |
      | [{"calls": [0, 1.5, 3]}]                                                                   | 3   | 5    | from the last arrival          |
      | [{"calls": [0, 29]}]                                                                       | 29  | 30   | at most max_linger             |
      | [{"calls": [0, 5]}, {"calls": [6]}]                                                        | 6   | 8    | whatever process they are of   |
      | [{"calls": [0, 6], "max_linger": 7}, {"calls": [6]}]                                       | 6   | 7    | the shortest of any run        |
      | [{"calls": [0, 5]}, {"calls": [6], "linger": 1}]                                           | 6   | 7    | the shortest of any run        |
      | [{"calls": [0, 50], "linger": 60}]                                                         | 50  | 60   | linger is never cut short      |
      | [{"calls": [0], "linger": 0}]                                                              | 0   | 0    | no linger                      |
      | [{"calls": [8], "queued": [9]}]                                                            | 9   | 10   | a retry waits with new calls   |
      | [{"queued": [9]}]                                                                          | 9   | 9    | a retry alone does not         |
      | [{"kind": "run", "queued": [9]}, {"calls": [8]}]                                           | 9   | 9    | a run does not                 |
      | [{"calls": [0, 1, 2], "max_requests": 3}]                                                  | 2   | 2    | a full batch                   |
      | [{"calls": [0, 1]}, {"calls": [2], "max_requests": 3}]                                     | 2   | 2    | a full batch of two runs       |
      | [{"calls": [0, 1], "params_bytes": 256000000}]                                             | 1   | 1    | a full batch by its bytes      |
      | [{"calls": [0, 19], "max_wait": 20}]                                                       | 19  | 10   | half of max_wait is for others |
      | [{"calls": [0, 1], "max_wait": 0.4}]                                                       | 1   | 2    | linger is never cut short      |
      | [{"calls": [0, 19], "deadline": 100, "deadline_margin": 90}]                               | 19  | 5    | half of the time to the margin |
      | [{"calls": [0, 29], "deadline": 100}]                                                      | 29  | 25   | the longest margin learned     |
      | [{"calls": [50, 60], "deadline": 100, "deadline_margin": 10}]                              | 60  | 62   | there is time enough           |
      | [{"calls": [95], "deadline": 100, "deadline_margin": 10}]                                  | 95  | 97   | linger is never cut short      |
      | [{"calls": [3600]}]                                                                        | 0   | 0    | the clock jumped back          |

  Scenario: The body is counted exactly
    Then bodies of params with these sizes are sent as follows
      | sizes        | bytes | calculated |
      | []           | 15    | 15         |
      | [2]          | 89    | 89         |
      | [2, 3]       | 165   | 165        |
      | [5, 4, 3, 2] | 320   | 320        |

  Scenario: A long queue is read in part, and packed as if it were read whole
    Then random queues are packed alike, whether they are read whole or in part
