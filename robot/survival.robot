*** Settings ***
Documentation       Whatever ends a process, an account or a connection: nothing is lost or paid
...                 for twice, and the next command goes on.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        90 seconds


*** Variables ***
@{COMMAND}              run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl


*** Test Cases ***
A Killed Run Is Resumed And Writes Its Output
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    50
    ${running} =    Start Claude Batch    @{COMMAND}
    Wait For Output    ${running}    at the API
    Kill Command    ${running}
    Output Should Not Exist
    Advance Sandbox Clock    3601
    Claude Batch Should End With    0    resume
    The Output Should Answer    50
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    50

An Interrupted Run Tells How To Go On
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    50
    ${running} =    Start Claude Batch    @{COMMAND}
    A Batch Should Be At The API
    Interrupt Command    ${running}
    ${done} =    Wait For Command    ${running}    timeout=30
    Exit Code Should Be    ${done}    3
    No Traceback In    ${done}
    Output Should Not Exist
    @{resume} =    Resume Command In    ${done.stderr}
    Advance Sandbox Clock    3601
    Claude Batch Should End With    0    @{resume}
    The Output Should Answer    50
    Each Request Should Be Paid Once    50

The Same Command Goes On With A Terminated Run
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    50
    ${running} =    Start Claude Batch    @{COMMAND}
    A Batch Should Be At The API
    Send Signal To Command    ${running}    SIGTERM
    ${done} =    Wait For Command    ${running}    timeout=30
    Exit Code Should Be    ${done}    3
    No Traceback In    ${done}
    Advance Sandbox Clock    3601
    ${again} =    Claude Batch Should End With    0    @{COMMAND}
    Should Contain    ${again.stderr}    so it is continued
    The Output Should Answer    50
    Each Request Should Be Paid Once    50

A Run That Is Killed While Its Results Come Is Collected Whole
    Use A Sandbox    --latency    100ms
    Post Fault Plan    {"rules": [{"route": "results", "nth": 1, "action": {"type": "delay", "seconds": 600}}]}
    Write Prompts    prompts.jsonl    50
    ${running} =    Start Claude Batch    @{COMMAND}
    Wait Until Keyword Succeeds    30s    50ms    A Fault Should Have Fired
    Kill Command    ${running}
    Claude Batch Should End With    0    resume
    The Output Should Answer    50
    Each Request Should Be Paid Once    50

Advance Does It All From Cron
    Use A Sandbox    --latency    200ms
    Set Variable For Commands    ANTHROPIC_BASE_URL    http://127.0.0.1:9
    Write Prompts    prompts.jsonl    20
    ${url} =    Sandbox Url
    ${sent} =    Claude Batch Should End With    0
    ...    submit    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --base-url    ${url}
    Wait Until Keyword Succeeds    60s    100ms    Advance Should Have Written The Output    ${url}
    The Output Should Answer    20
    ${run} =    Run Id In    ${sent.stdout}
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    finished
    Should Be True    $status["delivered"] is not None
    Each Request Should Be Paid Once    20

A Sending Without An Answer Is Found, And Paid For Once
    Use A Sandbox    --latency    100ms
    Post Fault Plan    {"rules": [{"route": "create", "nth": 1, "action": {"type": "drop_after"}}]}
    Write Prompts    prompts.jsonl    10
    ${done} =    Claude Batch Should End With    0    @{COMMAND}
    The Output Should Answer    10
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    10
    ${said} =    Claude Batch Should End With    0    unknown
    Should Contain    ${said.stdout}    no requests are unknown

A Sending That Was Never Taken Is Sent Again When That Is Certain
    Use A Sandbox    --latency    100ms
    Post Fault Plan    {"rules": [{"route": "create", "nth": 1, "action": {"type": "drop_before"}}]}
    Write Prompts    prompts.jsonl    10
    ${waiting} =    Claude Batch Should End With    3    @{COMMAND}    --max-wait    2s
    Wait Until Keyword Succeeds    60s    0s    A Wait Should End With The Sending Unknown
    Calls Of Route Should Be    create    1
    ${run} =    Run Id In    ${waiting.stderr}
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[batches][0][state]    unknown
    Claude Batch Should End With    0    resume    --settling    1s
    The Output Should Answer    10
    Calls Of Route Should Be    create    2
    Each Request Should Be Paid Once    10

A Process That Dies While It Sends Leaves An Unknown Sending To The Next
    Use A Sandbox    --latency    100ms
    VAR    ${plan}
    ...    {"rules": [{"route": "create", "nth": 1,
    ...    "action": {"type": "hang", "seconds": 600, "processed": true}}]}
    Post Fault Plan    ${plan}
    Write Prompts    prompts.jsonl    10
    ${running} =    Start Claude Batch    @{COMMAND}
    Wait Until Keyword Succeeds    30s    50ms    Each Request Should Be Paid Once    10
    Kill Command    ${running}
    Claude Batch Should End With    0    resume
    The Output Should Answer    10
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    10

A Waiting Process Takes The Leader Lock Of A Killed Driver
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    10
    Write Lines    others.jsonl    "one"    "two"    "three"
    ${first} =    Start Claude Batch    @{COMMAND}
    A Batch Should Be At The API
    ${second} =    Start Claude Batch    run    ${REVIEWER}    others.jsonl    -o    others.out
    Wait Until Keyword Succeeds    30s    50ms    Calls Of Route Should Be    create    2
    Kill Command    ${first}
    Advance Sandbox Clock    3601
    ${done} =    Wait For Command    ${second}    timeout=30
    Exit Code Should Be    ${done}    0
    Claude Batch Should End With    0    @{COMMAND}
    The Output Should Answer    10
    Calls Of Route Should Be    create    2
    Each Request Should Be Paid Once    13

A Paused Driver That Wakes Is Fenced, And Sees What Others Have Collected
    [Documentation]    While it slept its lock file was removed, as cleaners of folders do.
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    10
    Write Lines    others.jsonl    "one"    "two"    "three"
    ${first} =    Start Claude Batch    @{COMMAND}
    # A process that is stopped while it writes would keep all others from writing.
    A Batch Should Be In The Ledger
    Send Signal To Command    ${first}    SIGSTOP
    ${ledger} =    Ledger Path
    Remove File    ${ledger}.seat-*
    ${second} =    Start Claude Batch    run    ${REVIEWER}    others.jsonl    -o    others.out
    Wait Until Keyword Succeeds    30s    50ms    Calls Of Route Should Be    create    2
    Advance Sandbox Clock    3601
    ${done} =    Wait For Command    ${second}    timeout=30
    Exit Code Should Be    ${done}    0
    Send Signal To Command    ${first}    SIGCONT
    ${woken} =    Wait For Command    ${first}    timeout=30
    Exit Code Should Be    ${woken}    0
    No Traceback In    ${woken}
    The Output Should Answer    10
    Calls Of Route Should Be    create    2
    Each Request Should Be Paid Once    13

Batches That The API Refuses For Now Are Sent Again
    Use A Sandbox    --latency    100ms
    VAR    ${plan}
    ...    {"rules": [
    ...    {"route": "create", "nth": 1, "action": {"type": "error", "status": 529, "retry_after": 0.2}},
    ...    {"route": "retrieve", "nth": 1, "action": {"type": "drop_before"}},
    ...    {"route": "results", "nth": 1, "action": {"type": "cut_inside_line", "after_lines": 7}},
    ...    {"route": "results", "nth": 2, "action": {"type": "error", "status": 500}}]}
    Post Fault Plan    ${plan}
    Write Prompts    prompts.jsonl    20
    Claude Batch Should End With    0    @{COMMAND}
    The Output Should Answer    20
    Each Request Should Be Paid Once    20

A Wrong Key Halts, And The Right One Goes On
    Use A Sandbox    --latency    100ms
    Write Prompts    prompts.jsonl    10
    Set Variable For Commands    ANTHROPIC_API_KEY    sk-ant-invalid
    ${done} =    Claude Batch Should End With    4    @{COMMAND}
    Should Contain    ${done.stderr}    ANTHROPIC_API_KEY
    ${run} =    Run Id In    ${done.stderr}
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    halted
    Should Be Equal    ${status}[halt][reason]    credentials
    Should Be Equal As Integers    ${status}[counts][queued]    10
    @{resume} =    Resume Command In    ${done.stderr}
    Set Variable For Commands    ANTHROPIC_API_KEY    sk-ant-right
    Claude Batch Should End With    0    @{resume}
    The Output Should Answer    10
    Each Request Should Be Paid Once    10

A Missing Key Is Bad Usage
    Write Prompts    prompts.jsonl    1
    Set Variable For Commands    ANTHROPIC_API_KEY    ${None}
    ${done} =    Claude Batch Should End With    2    @{COMMAND}
    Should Contain    ${done.stderr}    ANTHROPIC_API_KEY

An Unreachable Server Parks, And Is Found Later
    Look Often
    Write Prompts    prompts.jsonl    10
    ${url} =    Start Sandbox    --latency    100ms
    ${port} =    Evaluate    $url.rpartition(":")[2]
    Stop Sandbox
    Use Base Url    ${url}
    ${done} =    Claude Batch Should End With    3    @{COMMAND}
    Should Contain    ${done.stderr}    ${url}
    Should Contain    ${done.stderr}    cannot be reached
    @{resume} =    Resume Command In    ${done.stderr}
    Start Sandbox    --latency    100ms    --port    ${port}
    Claude Batch Should End With    0    @{resume}
    The Output Should Answer    10
    Each Request Should Be Paid Once    10

A Run That Takes Too Long Is Parked Or Cancelled As Wanted
    Use A Sandbox    --latency    1h    --cancel-latency    100ms
    Write Prompts    prompts.jsonl    10
    ${done} =    Claude Batch Should End With    3    @{COMMAND}    --max-wait    1s
    Should Contain    ${done.stderr}    timed out
    Should Contain    ${done.stderr}    continue with: claude-batch resume
    Output Should Not Exist
    Claude Batch Should End With    3    resume    --max-wait    1s    --on-timeout    cancel
    ${answers} =    Read Answers    answers.jsonl
    Length Should Be    ${answers}    10
    Should Be Equal    ${answers}[0][error][type]    canceled
    Each Request Should Be Paid Once    0


*** Keywords ***
The Output Should Answer
    [Arguments]    ${count}
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Count Up    ${answers}    ${count}

Output Should Not Exist
    [Documentation]    Neither the output nor a part of it.
    ${folder} =    Scratch Folder
    Should Not Exist    ${folder}/answers.jsonl
    ${parts} =    List Directory    ${folder}    *.partial
    Should Be Empty    ${parts}

A Wait Should End With The Sending Unknown
    ${waiting} =    Claude Batch Should End With    3    resume    --max-wait    2s
    Should Contain    ${waiting.stderr}    it is unknown whether the API accepted

A Fault Should Have Fired
    [Documentation]    A call that hangs is in the log only when it has ended.
    ${counters} =    Fault Counters
    Should Be True    any(rule["fired"] for rule in $counters["rules"])

Advance Should Have Written The Output
    [Arguments]    ${url}
    Claude Batch Should End With    0    advance    --base-url    ${url}
    ${folder} =    Scratch Folder
    File Should Exist    ${folder}/answers.jsonl
