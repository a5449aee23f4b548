Feature: The files of deploy/ say what the programs understand

  Scenario: Each manifest is valid, in the newest version of Kubernetes that the schemas know
    Then the manifests are valid, and unknown fields are errors

  Scenario: The manifests fit together
    Then the kustomization lists all manifests but the secret
    And selectors find the pods that they are meant for
    And each probe and service names a port of its container
    And each key of a secret that a container wants is in the example

  Scenario: Nothing is of one cloud only
    Then no manifest has an annotation, a storage class, or a load balancer

  Scenario: The commands and variables exist
    Then each command of the manifests and of Compose can be parsed
    And each variable of them is read by the package or by PostgreSQL
    And each health check asks the port that its command serves

  Scenario: Compose builds this project, and starts workers once PostgreSQL answers
    Then Compose builds the root of the project
    And Compose has 3 workers, which wait for PostgreSQL
    And each volume that Compose names is declared
    And only this machine reaches what Compose serves

  Scenario: The image comes from Debian and PyPI, and runs what the manifests and Compose start
    Then the Dockerfile fits the project, the manifests and Compose
    And the Dockerfile does not fit if
      | this                | is                             |
      | debian:trixie-slim  | python:3.13                    |
      | && rm -rf           | && curl https://example.com    |
      | COPY src src        | COPY src source                |
      | COPY src src        | ADD src src                    |
      | COPY src src        | COPY deploy deploy             |
      | README.md           | CHANGELOG.md                   |
      | dashboard,          | dashboards,                    |
      | dashboard,          |                                |
      | USER 10001:10001    | USER 0:0                       |
      | USER 10001:10001    |                                |
      | --uid 10001         | --uid 1000                     |
      | ["claude-batch"]    | ["python"]                     |
      | PATH=/opt/claude-batch/bin | PATH=/opt/bin           |
      | CLAUDE_BATCH_LEDGER | CLAUDE_BATCH_LEDGERS           |

  Scenario Outline: A mistake is found: <mistake>
    Given the manifests with <mistake>
    Then a check of the manifests fails

    Examples:
      | mistake                           |
      | an unknown field                  |
      | a disruption budget for no pods   |
      | a probe of an unknown port        |
      | a key that the secret lacks       |
      | an option that there is not       |
