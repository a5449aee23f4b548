@long
Feature: Workers of procrastinate send and collect what a ledger holds

  The workers have the app of examples/procrastinate.

  Background:
    Given a PostgreSQL server
    And a ledger on that server

  Scenario: A worker that is stopped is replaced, and does no harm when it goes on
    Given a command's API with {"latency": 3600}
    And 2 workers of procrastinate
    And a command's file "asks.jsonl" of 30 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl --poll-interval 0.2s
    And a worker of procrastinate drives
    And that worker is stopped
    Then a worker of procrastinate drives within 20 seconds
    And the jobs drive have ended as failed
    When the stopped worker goes on
    And the API's clock goes 2 hours on
    Then the run is over within 20 seconds
    And the jobs drive have ended as failed, succeeded
    When a command runs: results RUN -o out.jsonl
    Then the command line exits with 0
    And the command line has written 30 answers in order to "out.jsonl"
    And the command line has caused 1 batches of 30 requests

  Scenario: The jobs of procrastinate can be lost
    Given a command's API with {"latency": 3600}
    And 2 workers of procrastinate
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl --poll-interval 0.2s
    And a worker of procrastinate drives
    And procrastinate loses all of its jobs
    And the API's clock goes 2 hours on
    Then the run is over within 20 seconds
    Given a command's file "more.jsonl" of 4 prompts
    When a command runs: submit actor.yaml more.jsonl --poll-interval 0.2s
    And the API's clock goes 2 hours on
    Then the run is over within 20 seconds
    When the workers of procrastinate are asked to end
    Then they have ended with 0 within 30 seconds

  Scenario: A worker with a new key drives again once the key is confirmed
    Given an API with {"latency": 3600, "workspace_header": false}
    When this program runs
      """
      from claude_batch.integrations.procrastinate import claude_batch_tasks
      from claude_batch.providers.ledger_care import confirm_key

      class Job:
          def should_abort(self):
              return False

      with cb.ClaudeBatchProvider(api_key="sk-former", **settings) as former:
          run_id = cb.Actor(asker, former).submit_sync(["one"]).id
      tasks = claude_batch_tasks(api_key="sk-rotated").tasks
      [drive] = [task.func for name, task in tasks.items() if name.endswith("drive")]
      asyncio.run(drive(Job()))

      def jobs():
          return [need.task for need in drive.__self__._needs()]

      print(jobs())
      with cb.ClaudeBatchProvider(api_key="sk-rotated", **settings) as rotated:
          confirm_key(rotated, run_id)
      print(jobs())
      """
    Then the program has printed
      """
      []
      ['drive']
      """

  Scenario: The workers run the tools that runs name
    Given a command's API
    And a command's file "counted.py"
      """
      import os, time


      def look(city: str) -> str:
          "Look at a city."
          with open("calls.txt", "a") as file:
              file.write(f"{os.getpid()}\n")
          time.sleep(3)
          return city
      """
    And a command's file "tools.yaml"
      """
      name: tests/looker
      provider: anthropic
      model: claude-haiku-4-5
      batch_processing: {turn_linger: 0.5s, poll_interval: 0.2s}
      tools: ["counted:look"]
      """
    And a command's file "asks.jsonl"
      """
      "Look at Kiel [[sandbox:tools]]"
      "Look at Bonn [[sandbox:tools]]"
      """
    And 2 workers of procrastinate with the tools counted
    When a command runs: submit tools.yaml asks.jsonl
    Then the run is over within 30 seconds
    And a job run_tools has succeeded
    And the tool has run 2 times

  Scenario: While one batch is fetched, jobs fetch the others
    Given an API that takes 3600 seconds for a batch
    And the API has the faults
      """
      {"rules": [{"route": "results", "action": {"type": "delay", "seconds": 4}}]}
      """
    And a batch provider with {"max_requests": 110}
    And 2 workers of procrastinate
    When a run of 440 prompts is submitted
    And the API's clock goes 2 hours on
    Then a job collect has succeeded
    When the results are read in order
    Then there are 440 results in the order of the prompts
    And the API has processed 440 requests, none twice
    And no offer is left in the ledger

  Scenario: An option that makes no sense is refused before a worker starts
    Given a command's folder
    Then tasks of procrastinate are made as follows
      | settings                  | tasks                           |
      | {}                        | collect, drive, run_tools, sweep |
      | {"take_over": "soon"}     | …take_over…                     |
      | {"drive": true}           | …drive…                         |
      | {"poll_interval": "1ms"}  | …poll_interval…                 |
