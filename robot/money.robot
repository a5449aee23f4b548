*** Settings ***
Documentation       What a run may cost, from the estimate to the report, with real processes.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        90 seconds


*** Test Cases ***
A Held Run Goes On When Its Budget Is Raised
    Use A Sandbox    --latency    200ms
    @{lines} =    Evaluate    ['"Review module %d."' % n for n in range(1, 21)]
    Write Lines    prompts.jsonl    @{lines}
    ${done} =    Claude Batch Should End With    0    estimate    ${REVIEWER}    prompts.jsonl
    Should Contain    ${done.stdout}    20 requests
    Should Contain    ${done.stdout}    estimated from the API's count of a few
    Calls Of Route Should Be    create    0
    ${done} =    Claude Batch Should End With    3
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --budget    0.0045
    Should Contain    ${done.stderr}    estimate: about $
    Should Contain    ${done.stderr}    held: the run's budget is $0.0045
    ${run} =    Evaluate    re.search(r"run-\\w{10}", $done.stderr)[0]    modules=re
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    held
    Bill Should Be Within    4500000
    ${running} =    Start Claude Batch    resume    ${run}    --max-wait    60s
    ${stuck} =    Wait For Command    ${running}
    Exit Code Should Be    ${stuck}    3
    Claude Batch Should End With    0    budget    ${run}    1
    Claude Batch Should End With    0    resume    ${run}
    ${answers} =    Read Answers    answers.jsonl
    Length Should Be    ${answers}    20
    Each Request Should Be Paid Once    20
    ${done} =    Claude Batch Should End With    0    cost    ${run}    --json
    ${report} =    Evaluate    json.loads($done.stdout)
    ${bill} =    Bill
    Should Be Equal As Integers    ${report}[cost]    ${bill}[cost]
    Should Be Equal As Integers    ${report}[tokens][input]    ${bill}[input]
    Should Be Equal As Integers    ${report}[tokens][output]    ${bill}[output]

A Run That Can Cost More Than Is Confirmed Is Not Sent
    Use A Sandbox    --latency    200ms
    Write Lines    prompts.jsonl    "one"    "two"
    ${done} =    Claude Batch Should End With    2
    ...    run    ${REVIEWER}    prompts.jsonl    --confirm-above    0.001
    Should Contain    ${done.stderr}    there is no terminal to confirm it on
    Calls Of Route Should Be    create    0


*** Keywords ***
Bill
    [Documentation]    Of all that was paid: nano-dollars at the batch prices of the model, tokens.
    ${records} =    Billing
    ${paid} =    Evaluate    [r["usage"] for r in $records if r["outcome"] == "succeeded"]
    ${input} =    Evaluate    sum(u["input_tokens"] for u in $paid)
    ${output} =    Evaluate    sum(u["output_tokens"] for u in $paid)
    ${cost} =    Evaluate    ${input} * 500 + ${output} * 2500
    VAR    &{bill}    input=${input}    output=${output}    cost=${cost}
    RETURN    ${bill}

Bill Should Be Within
    [Arguments]    ${nano}
    ${bill} =    Bill
    Should Be True    0 < ${bill}[cost] <= ${nano}
