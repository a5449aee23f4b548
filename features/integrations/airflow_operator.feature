Feature: A task of Airflow reads its input file as the command line does
  Its base classes are stand-ins here. `airflow.feature` has tasks of a real Airflow.

  Background:
    Given a command's API
    And a command's file "stand_in.py"
      """
      import logging
      import sys
      from types import ModuleType, SimpleNamespace


      class BaseOperator:
          def __init__(self, task_id):
              self.task_id, self.log = task_id, logging.getLogger(task_id)


      def module(name, **content):
          sys.modules[name] = ModuleType(name)
          vars(sys.modules[name]).update(content, __path__=[])


      module("airflow")
      module("airflow.sdk", BaseHook=object, BaseOperator=BaseOperator)
      module("airflow.sdk.definitions")
      module("airflow.sdk.definitions.connection", Connection=object)
      module("airflow.sdk.definitions.context", Context=dict)
      module("airflow.sdk.exceptions", AirflowException=Exception)
      module("airflow.triggers")
      module("airflow.triggers.base", BaseTrigger=object, TriggerEvent=object)

      from claude_batch.integrations.airflow import ClaudeBatchOperator


      class Operator(ClaudeBatchOperator):
          def defer(self, *, trigger, **_):
              with self._provider(drive=True) as provider:
                  provider.open_run(trigger.run_id).wait_sync()
              self.value = self.execute_complete(context, {"run_id": trigger.run_id, "error": None})


      context = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)}


      def attempt(**arguments):
          task = Operator(task_id="t", actor="actor.yaml", **arguments)
          try:
              task.execute(context)
              return task.value
          except Exception as error:
              print(f"{type(error).__name__}: {error}")
      """

  Scenario: Documents are relative to the input file, and an id is the number of its line
    Given a command's file "in/asks.jsonl"
      """
      {"prompt": "What is it?", "documents": ["note.txt"]}

      "second"
      """
    And a command's file "in/note.txt"
      """
      the right text
      """
    And a command's file "note.txt"
      """
      a text of the worker's folder
      """
    When this program runs
      """
      exec(open("stand_in.py").read())
      for result in attempt(input_file="in/asks.jsonl")["results"]:
          print(result["id"], "the right text" in result["text"])
      """
    Then the program has printed
      """
      1 True
      3 False
      """

  Scenario: A line that cannot be used is refused with its file and number, before anything is sent
    Given a command's file "twice.jsonl"
      """
      "first"
      {"id": "a", "id": "b", "prompt": "second"}
      """
    And a command's file "missing.jsonl"
      """
      "first"
      {"prompt": "second", "documents": ["missing.txt"]}
      """
    When this program runs
      """
      exec(open("stand_in.py").read())
      attempt(input_file="twice.jsonl")
      attempt(input_file="missing.jsonl")
      """
    Then the program has printed
      """
      InvalidRequestError: twice.jsonl:2: the key 'id' is given twice; keep one
      InvalidRequestError: missing.jsonl:2: request '2': document missing.txt: cannot be read: No such file or directory
      """
    And the API has seen 0 batches

  Scenario: An output file that cannot be written is refused before anything is sent
    Given a command's file "answers/note.txt"
      """
      the folder is there
      """
    When this program runs
      """
      exec(open("stand_in.py").read())
      attempt(requests=["one"], output_file="answers.xlsx")
      attempt(requests=["one"], output_file="missing/answers.jsonl")
      attempt(requests=["one"], output_file="answers")
      print(attempt(requests=["one"], output_file="answers/one.jsonl")["output_file"])
      """
    Then the program has printed
      """
      ActorConfigurationError: answers.xlsx: .xlsx is not a format of the answers; they are written as JSON lines (.jsonl) or CSV (.csv). For other formats, read the run in Python with cb.to_frame, whose frame writes them
      ActorConfigurationError: missing/answers.jsonl: cannot be written: No such file or directory
      ActorConfigurationError: answers: is a directory
      answers/one.jsonl
      """
    And the API has seen 1 batch

  Scenario: A text in the place of a list of requests is refused, and not asked letter by letter
    When this program runs
      """
      exec(open("stand_in.py").read())
      attempt(requests="['one']")
      """
    Then the program has printed
      """
      InvalidRequestError: requests must be a list or another iterable, not one str ("['one']")
      """
    And the API has seen 0 batches
