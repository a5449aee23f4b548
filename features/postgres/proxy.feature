Feature: Tests put a proxy before PostgreSQL that fails as networks do

  Background:
    Given a PostgreSQL server
    And a schema with a table of marks
    And a proxy before the PostgreSQL server

  Scenario Outline: A COMMIT fails in the <protocol> protocol: <fault>
    Given a COMMIT that has "INSERT INTO marks" fails by "<fault>"
    # Another transaction is none of the fault's.
    When a client reads in the <protocol> protocol, it sees success
    And a client commits mark 1 in the <protocol> protocol, it <sees>
    Then the fault has happened
    # A fault is for one COMMIT.
    When a client commits mark 2 in the <protocol> protocol, it sees success
    Then the marks are <marks>

    Examples:
      | protocol | fault       | sees                 | marks |
      | simple   | lose_answer | loses its connection | 1, 2  |
      | extended | lose_answer | loses its connection | 1, 2  |
      | prepared | lose_answer | loses its connection | 1, 2  |
      | simple   | lose_commit | loses its connection | 2     |
      | extended | lose_commit | loses its connection | 2     |
      | prepared | lose_commit | loses its connection | 2     |
      | simple   | hold_answer | waits                | 1, 2  |
      | extended | hold_answer | waits                | 1, 2  |

  Scenario: A link that is cut resets connections, and comes back
    Given a client in a transaction of mark 1
    When the proxy is cut
    Then that client loses its connection
    And a client commits mark 2 in the simple protocol, it loses its connection
    When the proxy is restored
    And a client commits mark 3 in the simple protocol, it sees success
    Then the marks are 3

  Scenario: A link that is stalled delivers late what was sent
    Given a client in a transaction of mark 1
    When the proxy is stalled
    And that client commits, it waits
    Then there are no marks
    When the proxy is restored
    Then that client sees success
    And the marks are 1

  Scenario: On a stalled link a client does not learn that the server has restarted
    Given a client in a transaction of mark 1
    When the proxy is stalled
    And the PostgreSQL server is restarted "immediate"
    And that client commits, it waits
    When the proxy is restored
    Then that client loses its connection
    And there are no marks

  Scenario: New connections are led to a standby that was promoted
    Given a standby of it
    When a client commits mark 1 in the simple protocol, it sees success
    And the standby has everything and is detached
    And the PostgreSQL server crashes, and the standby is promoted
    Then a client commits mark 2 in the simple protocol, it loses its connection
    When the proxy is led to the standby
    Then a client commits mark 2 in the simple protocol, it sees success
    And the marks are 1, 2

  Scenario: A megabyte passes whole, both ways
    Then bytes that the server receives and returns are unchanged as follows
      | bytes     | unchanged |
      | 1         | yes       |
      | 1,000,000 | yes       |
