*** Settings ***
Documentation       Deadlines and live calls through the command line; the sandbox's bill is the judge.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        120 seconds


*** Test Cases ***
A Deadline Falls Back Live For Exactly What Did Not Run
    Use A Sandbox    --latency    12s
    Write Prompts    prompts.jsonl    60
    ${done} =    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl
    ...    --deadline    40s    --deadline-margin    35s
    Should Contain    ${done.stderr}    60 succeeded
    Should Contain    ${done.stderr}    its deadline was met
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Count Up    ${answers}    60
    ${live} =    Evaluate    sum(a["via"] == "live" for a in $answers)
    ${batch} =    Evaluate    sum(a["via"] == "batch" for a in $answers)
    Should Be True    ${live} > 0 and ${batch} > 0 and ${live} + ${batch} == 60
    ${summary} =    Billing Summary
    Should Be Equal As Integers    ${summary}[live]    ${live}
    Should Be Equal As Integers    ${summary}[paid]    60
    Nothing Should Be Paid Twice
    # A live answer costs twice as much as the same one in a batch.
    ${wrong} =    Evaluate
    ...    [a for a in $answers if abs(a["cost_usd"] * (1 if a["via"] == "live" else 2) - a["usage"]["input_tokens"] * 1e-6 - a["usage"]["output_tokens"] * 5e-6) > 1e-9]
    Should Be Empty    ${wrong}

Without Fallback A Run Ends With What There Is
    Use A Sandbox    --latency    600s
    Write Prompts    prompts.jsonl    5
    ${done} =    Claude Batch Should End With    1
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl
    ...    --deadline    20s    --deadline-margin    18s    --fallback    none
    Should Contain    ${done.stderr}    5 expired
    Should Contain    ${done.stderr}    its deadline was missed: 5 requests did not run before it
    ${answers} =    Read Answers    answers.jsonl
    Should Be Equal    ${answers}[0][error][type]    expired
    Should Contain    ${answers}[0][error][message]    did not run before its run's deadline
    ${summary} =    Billing Summary
    Should Be Equal As Integers    ${summary}[paid]    0

A Process Killed Between Live Calls Asks None Of Them Twice
    Use A Sandbox    --live-latency    1s
    Write Prompts    prompts.jsonl    12
    ${command} =    Start Claude Batch
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --mode    live
    ...    --live-concurrency    3
    Wait Until Keyword Succeeds    60s    100ms    Some Live Call Was Answered
    Kill Command    ${command}
    ${done} =    Claude Batch Should End With    1
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --mode    live
    ${answers} =    Read Answers    answers.jsonl
    Length Should Be    ${answers}    12
    ${lost} =    Evaluate    [a for a in $answers if not a["ok"]]
    Should Be True    1 <= len($lost) <= 3
    Should Contain    ${lost}[0][error][message]    may have been billed
    Nothing Should Be Paid Twice


*** Keywords ***
Some Live Call Was Answered
    ${summary} =    Billing Summary
    Should Be True    ${summary}[paid] >= 3
