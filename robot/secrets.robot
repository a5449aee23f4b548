*** Settings ***
Documentation       The key is nowhere: not in a ledger, a backup, a mark, a log, an output, an error or
...                 on a screen, whatever goes well or wrong.

Resource            resources/common.resource
Library             KeySearch.py

Test Teardown       Stop Sandbox
Test Timeout        3 minutes


*** Variables ***
${KEY}                  sk-marked-for-the-search-0123456789
@{COMMAND}              run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl
${FAILURES}             ${CURDIR}/scripts/failures.py


*** Test Cases ***
The Key Is Nowhere
    Use A Sandbox    --latency    300ms
    Tell All That Can Be Told
    Write Prompts    prompts.jsonl    5
    Write Prompts    more.jsonl    3

    # What goes well: a run, and everything that looks at it.
    Claude Batch Should End With    0    @{COMMAND}
    Claude Batch Should End With    0    status
    Claude Batch Should End With    0    ledger    show
    Claude Batch Should End With    0    ledger    backup    copy.db
    Claude Batch Should End With    0    advance

    # What goes wrong: the account, the way there, the answer.
    When The API Answers    any    {"type": "error", "status": 401}
    Claude Batch Should End With    4    run    ${REVIEWER}    more.jsonl    -o    more-answers.jsonl
    Claude Batch Should End With    4    advance
    Claude Batch Should End With    4    ledger    recover    --even-if-whole
    The Python API Should Fail
    When The API Answers    create    {"type": "redirect", "location": "http://127.0.0.1:9/"}
    Claude Batch Should Not Succeed    run    ${REVIEWER}    more.jsonl    -o    more-answers.jsonl
    ...    --max-wait    3s
    When The API Answers    create    {"type": "error", "status": 402}
    Claude Batch Should End With    4    resume
    When The API Answers    list    {"type": "redirect", "location": "http://127.0.0.1:9/"}
    Claude Batch Should Not Succeed    resume    --max-wait    3s
    Claude Batch Should Not Succeed    run    ${REVIEWER}    more.jsonl    --base-url    http://127.0.0.1:9
    ...    --max-wait    3s

    # A key that cannot be one, a bug with its traceback, and a ledger that was damaged.
    Set Variable For Commands    ANTHROPIC_API_KEY    ${KEY}\n
    Claude Batch Should End With    2    run    ${REVIEWER}    more.jsonl
    Set Variable For Commands    ANTHROPIC_API_KEY    ${KEY}
    ${done} =    Run Python    -c    ${A BUG}
    Should Contain    ${done.stderr}    Traceback
    Clear Fault Plan
    Claude Batch Should End With    0    run    ${REVIEWER}    more.jsonl    -o    more-answers.jsonl

    ${folder} =    Scratch Folder
    @{files} =    The Key Should Be Nowhere    ${folder}    ${KEY}
    Should Contain    ${files}    ledger.db
    Should Contain    ${files}    copy.db
    Should Contain    ${files}    answers.jsonl
    Should Contain    ${files}    more-answers.jsonl
    Should Contain    ${files}    halted.pickle
    Should Contain    ${files}    ledger.db.seat-1
    Should Contain    ${files}    stderr
    Should Contain Match    ${files}    high-water-*.json

The Search Finds What Is There
    Write Lines    state/ledger.db    before ${KEY} after
    ${folder} =    Scratch Folder
    Run Keyword And Expect Error    the key * is in *    The Key Should Be Nowhere    ${folder}    ${KEY}


*** Keywords ***
Tell All That Can Be Told
    Set Variable For Commands    ANTHROPIC_API_KEY    ${KEY}
    Set Variable For Commands    ANTHROPIC_LOG    debug
    Set Variable For Commands    CLAUDE_BATCH_DEBUG    1
    Set Variable For Commands    CLAUDE_BATCH_SETTLING    100ms
    Set Variable For Commands    CLAUDE_BATCH_PROBE_INTERVAL    1s
    VAR    ${A BUG}
    ...    import claude_batch.providers.batch as b, sys
    ...    from claude_batch.cli import main
    ...    b.ClaudeBatchProvider.store = lambda self, *a, **k: self.credentials()["absent"]
    ...    sys.argv = ["claude-batch", "run", r"${REVIEWER}", "more.jsonl"]
    ...    main()
    ...    separator=\n    scope=TEST

When The API Answers
    [Arguments]    ${route}    ${action}
    Post Fault Plan    {"rules": [{"route": "${route}", "action": ${action}}]}

Claude Batch Should Not Succeed
    [Arguments]    @{arguments}
    ${done} =    Run Claude Batch    @{arguments}
    # The SDK's own log shows tracebacks of connections, as it was told to.
    Should Be True    $done.exit_code in (3, 4)

The Python API Should Fail
    ${folder} =    Scratch Folder
    Write Lines    batched.yaml    name: tests/asker    provider: anthropic    model: claude-haiku-4-5
    ...    batch_processing: true
    Write Lines    live.yaml    name: tests/live    provider: anthropic    model: claude-haiku-4-5
    ${done} =    Run Python    ${FAILURES}    ${folder}/batched.yaml    ${folder}
    Exit Code Should Be    ${done}    0
    Should Contain    ${done.stdout}    halted AccountHaltedError
    Should Contain    ${done.stderr}    DEBUG
