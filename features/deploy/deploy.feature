Feature: The files of deploy/ say what the programs understand
  In each table the first row changes nothing. The others show that a mistake is found.

  Scenario: The manifests are valid, fit together, and are of no cloud in particular
    The schemas are those of the newest version of Kubernetes that the checker knows.
    Then the manifests, after a change, have problems as follows
      | file                    | field                                                          | value                              | problem                                                                 |
      |                         |                                                                |                                    |                                                                         |
      | worker.yaml             | spec.replica                                                   | 3                                  | worker.yaml is not valid: …'replica'…                                   |
      | kustomization.yaml      | resources                                                      | ["worker.yaml"]                    | the kustomization lists worker.yaml                                     |
      | worker-disruptions.yaml | spec.selector.matchLabels                                      | {"app": "worker"}                  | the PodDisruptionBudget claude-batch-worker selects nothing             |
      | gateway-service.yaml    | spec.selector                                                  | {}                                 | the Service claude-batch-gateway selects claude-batch-gateway, claude-batch-worker |
      | gateway-service.yaml    | spec.ports.0.targetPort                                        | 8790                               | the service leads to the port 8790                                      |
      | gateway-service.yaml    | spec.type                                                      | "LoadBalancer"                     | gateway-service.yaml is a LoadBalancer                                  |
      | gateway-service.yaml    | metadata.annotations                                           | {"a": "b"}                         | gateway-service.yaml has annotations                                    |
      | gateway.yaml            | spec.template.spec.containers.0.readinessProbe.httpGet.port    | "health"                           | the readinessProbe of gateway asks the port health                      |
      | gateway.yaml            | spec.template.spec.containers.0.ports.0.containerPort          | 8791                               | the command of gateway does not serve the port 8791                     |
      | worker.yaml             | spec.template.spec.containers.0.args.2                         | "8790"                             | the command of worker does not serve the port 8791                      |
      | secret.yaml             | stringData.tokens                                              |                                    | tokens of the secret claude-batch is not both wanted and in the example |
      | secret.yaml             | stringData.more                                                | ""                                 | more of the secret claude-batch is not both wanted and in the example   |
      | worker.yaml             | spec.template.spec.containers.0.command                        | ["python"]                         | it starts ['python']                                                    |
      | worker.yaml             | spec.template.spec.containers.0.args.1                         | "--healthy"                        | …No such option…--healthy…                                              |
      | worker.yaml             | spec.template.spec.containers.0.env.2.name                     | "CLAUDE_BATCH_STATES"              | nothing reads the variable CLAUDE_BATCH_STATES                          |

  Scenario: Compose builds this project, is reached from this machine alone, and what it starts exists
    Then Compose, after a change, has problems as follows
      | field                             | value                     | problem                                                 |
      |                                   |                           |                                                         |
      | services.worker.build             | "."                       | worker builds .                                         |
      | services.gateway.ports.0          | "8788:8788"               | other machines reach the port 8788:8788 of gateway      |
      | services.gateway.volumes.0        | "tokens:/tokens"          | gateway names the volume tokens                         |
      | volumes                           | {}                        | postgres names the volume postgres                      |
      | services.worker.command           | ["workers"]               | …there is no command 'workers'…                         |
      | services.worker.entrypoint        | ["python"]                | it starts ['python']                                    |
      | services.worker.environment.OTHER | "x"                       | nothing reads the variable OTHER                        |

  Scenario: Compose starts workers once PostgreSQL answers, and asks each service where it serves
    Then the services of Compose are started as follows
      | service   | command                                                      | replicas | once healthy | health check                                       |
      | postgres  |                                                              | 1        |              | pg_isready --host=127.0.0.1 --username=claude_batch |
      | worker    | worker --health 8791                                         | 3        | postgres     | …http://127.0.0.1:8791/healthz…                    |
      | gateway   | gateway --host 0.0.0.0 --tokens /etc/claude-batch/tokens     | 1        | postgres     | …http://127.0.0.1:8788/healthz…                    |
      | dashboard | dashboard --host 0.0.0.0 --no-open                           | 1        | postgres     | …http://127.0.0.1:8790/login…                      |

  Scenario: The image comes from Debian and PyPI, and runs what the manifests and Compose start
    Then the Dockerfile, after a change, fits the project, the manifests and Compose, as follows
      | this                | becomes                        | fits |
      |                     |                                | yes  |
      | debian:trixie-slim  | python:3.13                    | no   |
      | && rm -rf           | && curl https://example.com    | no   |
      | COPY src src        | COPY src source                | no   |
      | COPY src src        | ADD src src                    | no   |
      | COPY src src        | COPY deploy deploy             | no   |
      | README.md           | CHANGELOG.md                   | no   |
      | dashboard,          | dashboards,                    | no   |
      | dashboard,          |                                | no   |
      | USER 10001:10001    | USER 0:0                       | no   |
      | USER 10001:10001    |                                | no   |
      | --uid 10001         | --uid 1000                     | no   |
      | ["claude-batch"]    | ["python"]                     | no   |
      | PATH=/opt/claude-batch/bin | PATH=/opt/bin           | no   |
      | CLAUDE_BATCH_LEDGER | CLAUDE_BATCH_LEDGERS           | no   |
