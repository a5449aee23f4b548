Feature: A changed key goes on where the first one stopped, once it is known to be of that workspace

  Scenario: If the API names the workspace, another key of it continues automatically
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API's clock goes 2 hours on
    And a command's key is changed to "sk-rotated"
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice

  Scenario: If the API does not report the workspace, the user confirms the key
    Given a command's API with {"latency": 3600, "workspace_header": false}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API's clock goes 2 hours on
    And a command's key is changed to "sk-rotated"
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      waits in the workspace of another key; use that key. If both keys belong to one workspace, confirm it with `claude-batch ledger confirm-key RUN`
      """
    When a command runs: ledger confirm-key RUN
    Then the command line exits with 0 and says
      """
      the key was accepted for the workspace of RUN. Continue with: claude-batch resume RUN
      """
    When a command runs: resume RUN
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the API has taken 1 batches, and processed no request twice
    When a command runs: ledger confirm-key RUN
    Then the command line exits with 0 and says
      """
      nothing was changed
      """

  Scenario Outline: A key that the API refuses ends the wait for a batch at the API, too: <workspace>
    Given a command's API with {"latency": 3600, "workspace_header": <workspace>}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's key is changed to "sk-invalid"
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      halted: sending is halted (credentials)
      check the key in the variable ANTHROPIC_API_KEY
      continue with: claude-batch resume RUN
      """
    When the API's clock goes 2 hours on
    And a command's key is changed to "sk-ant-marked-for-the-search-0123456789"
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"

    Examples:
      | workspace |
      | true      |
      | false     |

  Scenario: A key that was good at first, and is refused at a check, is named
    Given a command's API with {"latency": 3600}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"rules": [{"route": "retrieve", "action": {"type": "error", "status": 401}}]}
      """
    And the API's clock goes 1 hours on
    And a command runs: resume RUN --max-wait 3 --poll-interval 0.1
    Then the command line exits with 3 and says
      """
      ; the last check: 401 authentication_error
      """

  Scenario: Requests sent with the new key meanwhile join the same workspace
    Given a command's API with {"latency": 3600, "workspace_header": false}
    And a command's file "asks.jsonl" of 3 prompts
    And a command's file "more.jsonl"
      """
      "another prompt"
      "and yet another"
      """
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's key is changed to "sk-rotated"
    And a command runs besides: submit actor.yaml more.jsonl -o more-out.jsonl
    And a command runs: ledger confirm-key RUN
    Then the command line exits with 0
    When the API's clock goes 2 hours on
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"
    And the command line has written to "more-out.jsonl"
      | id | ok  | says            |
      | 1  | yes | another prompt  |
      | 2  | yes | and yet another |
    And the API has taken 2 batches, and processed no request twice

  Scenario: A name that the API tells later is the workspace's
    Given a command's API with {"latency": 3600, "workspace_header": false}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"workspace_header": true}
      """
    And a command's key is changed to "sk-rotated"
    And a command runs: ledger confirm-key RUN
    Then the command line exits with 0
    When the API's clock goes 2 hours on
    And a command runs: resume
    Then the command line exits with 0
    And the command line has written 3 answers in order to "out.jsonl"

  Scenario: A key of which the API says that it is another workspace's is not confirmed
    Given a command's API with {"latency": 3600, "workspaces": {"sk-other": "wrkspc_other"}}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's key is changed to "sk-other"
    And a command runs: resume
    Then the command line exits with 4 and says
      """
      waits in the workspace of another key (wrkspc_01SandboxDefault); use that key. Everything is kept
      """
    When a command runs: advance
    Then the command line exits with 4 and says
      """
      RUN waits in the workspace of another key (wrkspc_01SandboxDefault); use that key. Everything is kept
      """
    When a command runs: ledger confirm-key RUN
    Then the command line exits with 2 and says
      """
      the API reports that this key belongs to the workspace wrkspc_other
      """

  Scenario: A key is confirmed for a run that is there, by a key that works, while nobody drives
    Given a command's API with {"latency": 3600, "workspace_header": false}
    And a command's file "asks.jsonl" of 3 prompts
    When a command runs: submit actor.yaml asks.jsonl -o out.jsonl
    And a command's key is changed to "sk-rotated"
    And a command runs: ledger confirm-key run-nothing
    Then the command line exits with 2
    When a command runs while another process holds its leader lock: ledger confirm-key RUN
    Then the command line exits with 3 and says
      """
      another process drives the ledger
      """
    When a command runs: ledger confirm-key RUN --base-url http://127.0.0.1:1
    Then the command line exits with 3 and says
      """
      cannot be reached
      """
    When the API has the faults
      """
      {"rules": [{"route": "any", "action": {"type": "error", "status": 401}}]}
      """
    And a command runs: ledger confirm-key RUN
    Then the command line exits with 4 and says
      """
      Nothing was confirmed
      """

  Scenario Outline: A halt for a refused key ends once <end>
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's environment has ANTHROPIC_API_KEY = sk-invalid-key-0123456789
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    Then the command line exits with 4
    When a command runs: doctor
    Then the command line exits with 4
    And the command line prints
      """
      fault    sending: halted at http://127.0.0.1:
               Correct the cause, then run: claude-batch resume
      """
    When a command's key is changed to "sk-good"
    And a command runs: <words>
    Then the command line exits with 0
    When a command runs: doctor
    Then the command line exits with 0
    And the command line prints
      """
      0 faults, 0 warnings
      """

    Examples:
      | end                               | words      |
      | a good key has taken up the work  | resume     |
      | nothing waits for that key        | cancel RUN |

  Scenario: A process that waits to drive with a confirmed key sees the halts of what that key has joined, and drives it
    Given an API with {"latency": 0.1, "workspace_header": false}
    When this program runs
      """
      import time
      from claude_batch.core.settings import default_ledger
      from claude_batch.ledger.store import Ledger
      from claude_batch.ledger.workspaces import clear_halt, halt, join_workspaces

      def provider(key):
          return cb.ClaudeBatchProvider(api_key=key, **settings)

      with provider("sk-former") as former:
          run_id = cb.Actor(asker, former).submit_sync(["one"]).id
      with provider("sk-rotated") as rotated:
          cb.Actor(asker, rotated).respond_sync("two")
      ledger = Ledger(default_ledger(None))
      others = ledger.leader_lock(2)
      print(others.take())
      with provider("sk-rotated") as waiting:
          run = waiting.open_run(run_id)
          print(run.status().state, waiting.contact.failures)
          time.sleep(0.5)
          with ledger.write() as tx:
              join_workspaces(tx, source=2, target=1, name=None)
              why = {"reason": "refused", "error_type": None, "message": "as a test"}
              halt(tx, 1, **why, now=time.time(), interval=60.0)
          print(waiting.why_not_sending())
          with ledger.write() as tx:
              clear_halt(tx, 1)
          others.release()
          run.wait_sync()
          print(run.status().state)
      ledger.close()
      """
    Then the program has printed
      """
      True
      parked 0
      sending is halted (refused): as a test
      finished
      """

  Scenario: What a process sends is kept while another one learns that its key belongs to a workspace with another row
    Given an API
    When this program runs
      """
      import os, subprocess, sys, time
      import httpx
      from claude_batch.core.settings import default_ledger
      from claude_batch.ledger import live_calls, queries
      from claude_batch.ledger.store import Ledger

      def set_api(**plan):
          httpx.post(f"{os.environ['ANTHROPIC_BASE_URL']}/sandbox/faults", json=plan)

      def advance():
          env = os.environ | {"ANTHROPIC_API_KEY": "sk-rotated"}
          command = [sys.executable, "-m", "claude_batch", "advance"]
          print(subprocess.run(command, env=env, capture_output=True).returncode)
          print("row", ledger.query(lambda tx: queries.run_row(tx, run.id)).workspace_id)

      with cb.ClaudeBatchProvider(api_key="sk-former", **settings) as former:
          cb.Actor(asker, former).respond_sync("one")
      slow = {"route": "messages", "action": {"type": "delay", "seconds": 4}}
      set_api(rules=[slow], workspace_header=False)
      ledger = Ledger(default_ledger(None))
      with cb.ClaudeBatchProvider(api_key="sk-rotated", **settings) as rotated:
          run = cb.Actor(asker, rotated).submit_sync(["two"], mode="live")
          while not ledger.query(lambda tx: live_calls.under_way(tx, None)):
              time.sleep(0.05)
          set_api(rules=[slow], workspace_header=True)
          advance()
          run.wait_sync()
          print([answer.text is not None for answer in run.results_sync()])
      advance()
      ledger.close()
      """
    Then the program has printed
      """
      0
      row 2
      [True]
      0
      row 1
      """

  Scenario: What a dead process left under a key of unknown workspace is looked for, although another process drives the workspace
    Given a command's API
    And a command's file "asks.jsonl" of 2 prompts
    And a command's file "more.jsonl" of 3 prompts
    When a command runs: run actor.yaml asks.jsonl -o out.jsonl
    And the API has the faults
      """
      {"workspace_header": false}
      """
    And a command's key is changed to "sk-rotated"
    And a command's process dies at after_armed: run actor.yaml more.jsonl -o more-out.jsonl --new
    And the API has the faults
      """
      {"workspace_header": true}
      """
    And a command runs while another process holds its leader lock: advance
    Then in the ledger the states of the batches are ["collected", "unknown"]

  Scenario: Live calls that were claimed and not sent are sent, if the key's row is merged before its driver is back
    Given an API
    When this program runs
      """
      import os
      import httpx
      from claude_batch.core.errors import LedgerError
      from claude_batch.ledger.backends.backend import Backend
      from claude_batch.ledger.high_water import HighWater

      def name_workspace(named):
          plan = {"rules": [], "workspace_header": named}
          httpx.post(f"{os.environ['ANTHROPIC_BASE_URL']}/sandbox/faults", json=plan)

      with cb.ClaudeBatchProvider(api_key="sk-former", **settings) as former:
          cb.Actor(asker, former).respond_sync("one")
      name_workspace(False)
      with cb.ClaudeBatchProvider(api_key="sk-rotated", **settings) as rotated:
          actor = cb.Actor(asker, rotated)
          actor.respond_sync("two")
          name_workspace(True)
          actor.respond_sync("three")
          raise_to = HighWater.raise_to

          def lose_server(*_, **__):
              HighWater.raise_to = raise_to
              raise LedgerError("the server is gone for a moment", fault="unreachable")

          # The claim is stored, and its process waits for the server of the ledger.
          Backend.outlasts = frozenset(("unreachable",))
          HighWater.raise_to = lose_server
          run = actor.submit_sync(["four"], mode="live")
          run.wait_sync()
          print([result.text is not None for result in run.results_sync()])
      """
    Then the program has printed
      """
      [True]
      """
