*** Settings ***
Documentation       The Python API in processes of its own: asked, killed, and opened again.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        90 seconds


*** Variables ***
${SCRIPTS}          ${CURDIR}/scripts
${EXAMPLES}         ${CURDIR}/../examples


*** Test Cases ***
Single Calls Share A Batch, And A Table Comes Back In Order
    Use A Sandbox    --latency    200ms
    Set Variable For Commands    CLAUDE_BATCH_LINGER    2s
    ${done} =    Python Should End With    0    ${SCRIPTS}/ask.py    ${REVIEWER}    300
    ${said} =    Evaluate    json.loads($done.stdout)
    Should Be Equal As Integers    ${said}[call_batches]    1
    Should Be Empty    ${said}[errors]
    Should Be True    $said["keys"] == [f"row-{at}" for at in range(300)]
    Should Be True    all(f"call number {at}" in text for at, text in enumerate($said["calls"]))
    Should Be True    all(f"row number {at}" in text for at, text in enumerate($said["rows"]))
    Calls Of Route Should Be    create    2
    Each Request Should Be Paid Once    601

A Killed Script's Run Is Opened Again In Another Process
    Use A Sandbox    --latency    1h
    ${running} =    Start Python    ${SCRIPTS}/submit.py    ${REVIEWER}    40
    Wait For Output    ${running}    submitted run-
    Kill Command    ${running}
    ${run} =    Run Id In    ${running.stdout}
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    parked
    Should Be Equal    ${status}[label]    api
    Advance Sandbox Clock    3601
    ${done} =    Python Should End With    0    ${SCRIPTS}/reopen.py    ${run}
    @{lines} =    Evaluate    $done.stdout.splitlines()
    Length Should Be    ${lines}    41
    Should Be True    all(f"number {at}" in line for at, line in enumerate($lines[:40], 1))
    Should Be Equal    ${lines}[40]    finished
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    40

The Same Script Again Goes On Where It Was Killed
    Use A Sandbox    --latency    1h
    ${running} =    Start Python    ${SCRIPTS}/submit.py    ${REVIEWER}    40
    Wait For Output    ${running}    submitted run-
    Kill Command    ${running}
    Advance Sandbox Clock    3601
    ${done} =    Python Should End With    0    ${SCRIPTS}/submit.py    ${REVIEWER}    40
    ${before} =    Run Id In    ${running.stdout}
    ${after} =    Run Id In    ${done.stdout}
    Should Be Equal    ${before}    ${after}
    Should Contain    ${done.stdout}    finished
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    40

A Script Reads A Run That The Command Line Began
    Use A Sandbox    --latency    100ms
    Write Prompts    prompts.jsonl    5
    ${sent} =    Claude Batch Should End With    0    submit    ${REVIEWER}    prompts.jsonl
    ${run} =    Run Id In    ${sent.stdout}
    ${done} =    Python Should End With    0    ${SCRIPTS}/reopen.py    ${run}
    Should Contain    ${done.stdout}    question number 5
    Each Request Should Be Paid Once    5

A Wrong Key Raises At Once
    Use A Sandbox
    Set Variable For Commands    ANTHROPIC_API_KEY    sk-ant-invalid
    ${done} =    Python Should End With    1    ${SCRIPTS}/ask.py    ${REVIEWER}    3
    Should Contain    ${done.stderr}    halted: credentials
    Each Request Should Be Paid Once    0

Agents Of Another Framework Share Batches With Actors
    Use A Sandbox    --latency    200ms
    Set Variable For Commands    CLAUDE_BATCH_LINGER    3s
    ${done} =    Python Should End With    0    ${SCRIPTS}/agents.py    ${REVIEWER}    20
    Should Contain    ${done.stdout}    20 agents and 20 calls
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    40

The Examples Run
    Use A Sandbox    --latency    200ms
    ${source} =    Normalize Path    ${EXAMPLES}/review.py
    ${done} =    Python Should End With    0    ${EXAMPLES}/review.py    ${source}
    Should Contain    ${done.stdout}    ── ${source}
    ${done} =    Python Should End With    0    ${EXAMPLES}/plan.py
    Should Contain    ${done.stdout}    ── digitise a paper archive
    Each Request Should Be Paid Once    7
