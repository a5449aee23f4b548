@every_python
Feature: One table decides what follows an outcome

  Scenario: The table in the architecture page is the decision, for every case that there is
    Then the pages agree with the code about
      | subject               |
      | the table of outcomes |

  Scenario: Only one module writes what a request is
    Then no other module than "ledger/transitions.py" updates these columns of a request
      | column      |
      | state       |
      | attempts    |
      | forgiven    |
      | sendings    |
      | batch_id    |
      | answered_by |
      | finished    |
      | cancelled   |
