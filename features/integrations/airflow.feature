@airflow @slow
Feature: A task of Airflow asks a run, and its worker is free while the batches are in progress
  `nox -s airflow` plays these scenarios with a real Airflow: a scheduler, a triggerer, an API server and its
  database. Tasks and triggers are processes of it, and call the sandbox.

  Scenario: Tasks ask, wait in the triggerer, and give their results on
    Given an API that takes 3 seconds for a batch
    And an Airflow with this Dag
      """
      with DAG("reviews", schedule=None, is_paused_upon_creation=False) as dag:
          ask = ClaudeBatchOperator(
              task_id="ask",
              actor="{{ params.folder }}/actor.yaml",
              input_file="{{ params.folder }}/prompts.jsonl",
              output_file="{{ params.folder }}/{{ dag_run.run_id }}.jsonl",
              params={"folder": FOLDER},
              **QUICK,
          )

          @task
          def name(value: dict) -> list[list[str]]:
              return [[f"What is in {Path(value['output_file']).name}?"], ["one", "two"]]

          ClaudeBatchOperator.partial(task_id="mapped", actor=ACTOR, **QUICK).expand(
              requests=name(ask.output)
          )
      """
    When a Dag run "first" of "reviews" is over
    Then its tasks ended as follows
      | task     | state   | attempts | waited |
      | ask      | success | 1        | yes    |
      | name     | success | 1        | no     |
      | mapped 0 | success | 1        | yes    |
      | mapped 1 | success | 1        | yes    |
    And the command line has written 3 answers in order to "first.jsonl"
    And the API has processed 6 requests, none twice
    And the ledger's runs are labelled reviews/first/ask, reviews/first/mapped/0, reviews/first/mapped/1
    When a Dag run "second" of "reviews" is over
    # Another Dag run asks anew.
    Then the command line's ledger has 6 runs

  Scenario Outline: An attempt that is killed <when> is followed by one that goes on with its run
    Given an API that takes 3 seconds for a batch
    And an Airflow with this Dag
      """
      class Killed(ClaudeBatchOperator):
          def execute(self, context):
              if context["ti"].try_number == 1:
                  die_at("<point>")
              super().execute(context)

          def execute_complete(self, context, event):
              if context["ti"].try_number == 1:
                  os.kill(os.getpid(), signal.SIGKILL)
              return super().execute_complete(context, event)


      with DAG("killed", schedule=None, is_paused_upon_creation=False) as dag:
          Killed(
              task_id="ask", actor=ACTOR, requests=["one", "two"], retries=1,
              retry_delay=timedelta(seconds=1), **QUICK,
          )
      """
    When a Dag run "only" of "killed" is over
    Then its tasks ended as follows
      | task | state   | attempts |
      | ask  | success | 2        |
    And the API has processed 2 requests, none twice
    And the ledger's runs are labelled killed/only/ask

    Examples:
      | when                         | point                    |
      | before its batch was sent    | after_intent             |
      | after its batch was accepted | after_post_before_record |
      | with the results             | nowhere                  |

  Scenario: Requests that fail fail the task, whose results are written; and a trigger says why it cannot end
    Given an API
    And an Airflow with this Dag
      """
      with DAG("failing", schedule=None, is_paused_upon_creation=False) as dag:
          bad = ["one", "[[sandbox:errored:invalid_request_error]] two"]
          for allowed in (False, True):
              ClaudeBatchOperator(
                  task_id=f"allowed_{allowed}", actor=ACTOR, requests=bad, allow_failures=allowed,
                  output_file=f"{FOLDER}/{allowed}.jsonl", **QUICK,
              )
          ClaudeBatchOperator(
              task_id="no_key", actor=ACTOR, requests=["one"], **QUICK | {"conn_id": "refused"}
          )
      """
    When a Dag run "only" of "failing" is over
    Then its tasks ended as follows
      | task          | state   | attempts |
      | allowed_False | failed  | 1        |
      | allowed_True  | success | 1        |
      | no_key        | failed  | 1        |
    And the log of the task allowed_False says "1 request of run-"
    And the log of the task no_key says "invalid"
    And the file "False.jsonl" has 2 lines
    And the file "True.jsonl" has 2 lines
    And no row of Airflow's database has the key

  Scenario Outline: A user ends a task that waits: <what becomes of the run>
    Given an API that takes 3600 seconds for a batch
    And an Airflow with this Dag
      """
      with DAG("ended", schedule=None, is_paused_upon_creation=False) as dag:
          ClaudeBatchOperator(
              task_id="ask", actor=ACTOR, requests=["one", "two"], cancel_on_kill=<cancels>, **QUICK
          )
      """
    When a Dag run "only" of "ended" waits in the triggerer
    And a user marks its task "ask" as failed
    Then the ledger's run becomes <state>

    Examples:
      | cancels | state      | what becomes of the run |
      | True    | cancelling | it is cancelled         |
      | False   | parked     | its batches go on       |

  Scenario: A user ends a task that still sends, and its run is cancelled
    Given an API
    And the API has the faults
      """
      {"rules": [{"route": "create", "action": {"type": "delay", "seconds": 600}}]}
      """
    And an Airflow with this Dag
      """
      with DAG("ended", schedule=None, is_paused_upon_creation=False) as dag:
          ClaudeBatchOperator(task_id="ask", actor=ACTOR, requests=["one", "two"], **QUICK)
      """
    When a Dag run "only" of "ended" sends
    And a user marks its task "ask" as failed
    Then the ledger's run becomes cancelling
