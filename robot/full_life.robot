*** Settings ***
Documentation       The life of a batch through the command line, from INPUT to OUT.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        90 seconds


*** Test Cases ***
JSON Lines Of Every Kind Come Back In Order, Some Failed
    Use A Sandbox    --latency    200ms
    VAR    ${plan}
    ...    {"requests": [{"contains": "overload", "outcome": "errored",
    ...    "error": {"type": "overloaded_error", "message": "too much"}}]}
    Post Fault Plan    ${plan}
    Write Lines    prompts.jsonl
    ...    "a plain string"
    ...    {"id": "named", "prompt": "a prompt"}
    ...    ${EMPTY}
    ...    {"id": "talk", "messages": [{"role": "user", "content": "a message"}]}
    ...    {"params": {"model": "claude-haiku-4-5", "max_tokens": 99, "messages": [{"role": "user", "content": "raw"}]}}
    ...    {"id": "bad", "prompt": "overload"}
    ...    "the last"
    ${done} =    Claude Batch Should End With    1
    ...    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --label    mixed
    Should Be Empty    ${done.stdout}
    Should Contain    ${done.stderr}    5 succeeded
    Should Contain    ${done.stderr}    1 errored
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    1    named    talk    5    bad    7
    Should Contain    ${answers}[0][text]    a plain string
    Should Contain    ${answers}[2][text]    a message
    Should Contain    ${answers}[3][text]    raw
    Should Be Equal    ${answers}[0][content][0][text]    ${answers}[0][text]
    Should Be Equal    ${answers}[0][stop_reason]    end_turn
    Should Start With    ${answers}[0][model]    ${MODEL}-20
    Should Be True    $answers[0]["usage"]["output_tokens"] > 0
    Should Start With    ${answers}[0][batch_id]    msgbatch_
    Should Be Equal As Integers    ${answers}[0][attempt]    1
    Should Be Equal    ${answers}[4][error][type]    overloaded_error
    Should Contain    ${answers}[4][error][message]    too much
    Nothing Should Be Paid Twice

Standard Input To Standard Output
    Use A Sandbox    --latency    200ms
    ${done} =    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    -    stdin="first"\n{"id": "x", "prompt": "second"}\n
    ${answers} =    Answers In    ${done.stdout}
    Ids Should Be    ${answers}    1    x
    Should Contain    ${answers}[1][text]    second
    Should Contain    ${done.stderr}    2 succeeded

A CSV Names Its Column And Its Ids
    Use A Sandbox    --latency    200ms
    Write Lines    table.csv    id,question    a,"one, with a comma"    b,two    ,three
    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    table.csv    --prompt-column    question    -o    answers.jsonl
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    a    b    4
    Should Contain    ${answers}[0][text]    one, with a comma

Text Files By Glob Are One Request Each
    Use A Sandbox    --latency    200ms
    Write Lines    texts/b.txt    about bees
    Write Lines    texts/a.txt    about ants
    Write Lines    texts/deep/c.txt    about cats
    Claude Batch Should End With    0
    ...    run    --model    ${MODEL}    --system    Be brief.    texts/**/*.txt    -o    answers.jsonl
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    texts/a.txt    texts/b.txt    texts/deep/c.txt
    Should Contain    ${answers}[0][text]    about ants
    Should Contain    ${answers}[2][text]    about cats

Submit, Look, Resume, Read Again
    Use A Sandbox    --latency    1h
    Write Prompts    prompts.jsonl    20
    ${sent} =    Claude Batch Should End With    0
    ...    submit    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl    --label    evening
    ${run} =    Run Id In    ${sent.stdout}
    Should Be Equal    ${sent.stdout.strip()}    ${run}
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    parked
    Should Be Equal    ${status}[label]    evening
    Should Be Equal As Integers    ${status}[counts][packed]    20
    Should Be Equal    ${status}[batches][0][state]    in_progress
    Should Start With    ${status}[batches][0][batch_id]    msgbatch_
    ${shown} =    Claude Batch Should End With    0    status    ${run}
    Should Contain    ${shown.stdout}    ${status}[batches][0][batch_id]
    ${early} =    Claude Batch Should End With    3    results    ${run}    -o    early.jsonl
    Should Contain    ${early.stderr}    not finished
    ${folder} =    Scratch Folder
    Should Not Exist    ${folder}/early.jsonl
    Advance Sandbox Clock    3601
    Claude Batch Should End With    0    resume    ${run}
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Count Up    ${answers}    20
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    finished
    Should Be True    $status["delivered"] is not None
    Claude Batch Should End With    0    results    ${run}    -o    again.jsonl
    ${again} =    Read Answers    again.jsonl
    Lists Should Be Equal    ${again}    ${answers}
    Each Request Should Be Paid Once    20

The Same Command Again Costs Nothing
    Use A Sandbox    --latency    200ms
    Write Prompts    prompts.jsonl    30
    VAR    @{command}    run    ${REVIEWER}    prompts.jsonl    -o
    Claude Batch Should End With    0    @{command}    first.jsonl
    ${again} =    Claude Batch Should End With    0    @{command}    second.jsonl
    Should Contain    ${again.stderr}    no cost
    ${first} =    Read Answers    first.jsonl
    ${second} =    Read Answers    second.jsonl
    Lists Should Be Equal    ${first}    ${second}
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    30
    Claude Batch Should End With    0    @{command}    third.jsonl    --new
    ${bill} =    Billing Summary
    Should Be Equal As Integers    ${bill}[paid]    60

Cancel Ends What Is At The API
    Use A Sandbox    --latency    1h    --cancel-latency    100ms
    Write Prompts    prompts.jsonl    5
    ${sent} =    Claude Batch Should End With    0
    ...    submit    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl
    ${run} =    Run Id In    ${sent.stdout}
    ${done} =    Claude Batch Should End With    0    cancel    ${run}
    Should Contain    ${done.stderr}    cancelled
    Calls Of Route Should Be    cancel    1
    Claude Batch Should End With    1    resume    ${run}
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    1    2    3    4    5
    Should Be Equal    ${answers}[0][error][type]    canceled
    ${status} =    Status Of    ${run}
    Should Be Equal    ${status}[state]    cancelled
    ${again} =    Claude Batch Should End With    0    cancel    ${run}
    Should Contain    ${again.stderr}    nothing to cancel
    Each Request Should Be Paid Once    0

Ten Thousand Requests Come Back Complete And In Order
    Use A Sandbox    --latency    1s
    Write Prompts    prompts.jsonl    10000
    Claude Batch Should End With    0    run    ${REVIEWER}    prompts.jsonl    -o    answers.jsonl
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Count Up    ${answers}    10000
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    10000

A Sandbox Of Its Own Reviews This Project
    ${sources} =    Normalize Path    ${CURDIR}/../src/claude_batch/core
    ${done} =    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    ${sources}/*.py    -o    reviews.jsonl    --sandbox
    Should Contain    ${done.stderr}    answers are made up
    ${answers} =    Read Answers    reviews.jsonl
    ${files} =    Evaluate    sorted(map(str, __import__("pathlib").Path($sources).glob("*.py")))
    Ids Should Be    ${answers}    @{files}
    ${ledger} =    Ledger Path
    File Should Not Exist    ${ledger}

Unusable Arguments Are Named Before Anything Is Sent
    [Template]    Input Is Refused
    lines.jsonl    "good"|{not json    lines.jsonl:2
    lines.jsonl    {"id": "a", "prompt": "x"}|{"id": "a", "prompt": "y"}    lines.jsonl:2
    empty.jsonl    ${EMPTY}    empty.jsonl
    table.csv    id,other|a,b    table.csv:1

An Invalid Line Is Left Out Where That Is Wanted
    Use A Sandbox    --latency    200ms
    Write Lines    lines.jsonl    "first"    {not json    "third"
    ${done} =    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    lines.jsonl    --skip-invalid    -o    answers.jsonl
    Should Contain    ${done.stderr}    skipped: lines.jsonl:2
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    1    3

Files That Are Missing Or Cannot Be Written Are Named
    [Template]    Command Is Refused
    absent.jsonl    run    ${REVIEWER}    absent.jsonl
    no file matches    run    ${REVIEWER}    *.none
    absent.yaml    run    absent.yaml    prompts.jsonl
    is a directory    run    ${REVIEWER}    prompts.jsonl    -o    .
    ACTOR    run    prompts.jsonl
    soon    run    ${REVIEWER}    prompts.jsonl    --max-wait    soon
    there is no ledger    results    run-0000000000
    there is no ledger    resume    run-0000000000

Actors Are Validated Without A Key
    Set Variable For Commands    ANTHROPIC_API_KEY    ${None}
    ${done} =    Claude Batch Should End With    0    actors    validate    ${REVIEWER}
    Should Contain    ${done.stdout}    fine
    Write Lines    bad.yaml    name: local/bad    provider: anthropic    model: [1
    ${done} =    Claude Batch Should End With    2    actors    validate    ${REVIEWER}    bad.yaml
    Should Contain    ${done.stderr}    bad.yaml

Help Lists The Exit Codes
    ${done} =    Claude Batch Should End With    0    run    --help
    Should Contain    ${done.stdout}    Exit codes:
    Should Contain    ${done.stdout}    sending was halted


*** Keywords ***
Input Is Refused
    [Documentation]    Exit code 2 with a message that names the place; the API hears nothing.
    [Arguments]    ${name}    ${lines}    ${place}
    @{lines} =    Evaluate    $lines.split("|") if $lines else []
    Write Lines    ${name}    @{lines}
    ${done} =    Claude Batch Should End With    2    run    ${REVIEWER}    ${name}    -o    out.jsonl
    Should Contain    ${done.stderr}    ${place}
    ${folder} =    Scratch Folder
    Should Not Exist    ${folder}/out.jsonl

Command Is Refused
    [Arguments]    ${expected}    @{command}
    Write Prompts    prompts.jsonl    1
    ${done} =    Claude Batch Should End With    2    @{command}
    Should Contain    ${done.stderr}    ${expected}
