*** Settings ***
Documentation       Documents and shapes through the command line: PDFs that are cited, rows that fail.

Resource            resources/common.resource

Test Teardown       Stop Sandbox
Test Timeout        90 seconds


*** Variables ***
${INVOICES}     ${CURDIR}/../examples/invoices


*** Test Cases ***
PDFs Are Asked About, And Cited By Page
    Use A Sandbox    --latency    200ms
    Write Lines    asks.jsonl
    ...    {"id": "harbour", "prompt": "What was billed?", "documents": ["${INVOICES}/harbour.pdf"]}
    ...    {"id": "both", "prompt": "Which is higher?", "documents": ["${INVOICES}/print.pdf", "${INVOICES}/sails.pdf"]}
    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    asks.jsonl    --citations    -o    answers.jsonl
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    harbour    both
    ${cited} =    Evaluate
    ...    [[c["document_title"] for b in a["content"] for c in b.get("citations") or []] for a in $answers]
    Should Be Equal    ${cited}    ${{[["harbour.pdf"], ["print.pdf", "sails.pdf"]]}}
    ${place} =    Set Variable    ${answers}[0][content][0][citations][0]
    Should Be Equal As Integers    ${place}[start_page_number]    1
    Nothing Should Be Paid Twice

A Document Of Every Request Is Uploaded Once, And Leaves With Its Run
    Use A Sandbox    --latency    200ms
    Write Prompts    prompts.jsonl    30
    ${rules} =    Evaluate    "No boat leaves the harbour at night. " * 20000
    Write Lines    rules.txt    ${rules}
    ${done} =    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    prompts.jsonl    --document    rules.txt    --citations    -o    answers.jsonl
    Should Contain    ${done.stderr}    rules.txt (740,001 bytes) is uploaded once
    Calls Of Route Should Be    upload_file    1
    ${answers} =    Read Answers    answers.jsonl
    ${files} =    Evaluate
    ...    sum(c["file_id"] is not None for a in $answers for b in a["content"] for c in b.get("citations") or [])
    Should Be Equal As Integers    ${files}    29
    Claude Batch Should End With    0
    ...    run    ${REVIEWER}    prompts.jsonl    --document    rules.txt    --citations    -o    again.jsonl
    Calls Of Route Should Be    upload_file    1
    Each Request Should Be Paid Once    30
    ${done} =    Claude Batch Should End With    0    ledger    prune    --older-than    0s
    Should Contain    ${done.stderr}    removed 1 run with 30 requests
    Should Contain    ${done.stderr}    deleted 1 uploaded file at
    Calls Of Route Should Be    delete_file    1

A Document That Cannot Be Used Is Named, And Nothing Is Sent
    Use A Sandbox    --latency    200ms
    Write Lines    half.pdf    %PDF-1.4
    Write Lines    asks.jsonl
    ...    {"id": "good", "prompt": "a"}
    ...    {"id": "bad", "prompt": "b", "documents": ["half.pdf"]}
    ${done} =    Claude Batch Should End With    2    run    ${REVIEWER}    asks.jsonl    -o    answers.jsonl
    Should Contain    ${done.stderr}    asks.jsonl:2
    Should Contain    ${done.stderr}    half.pdf: is a truncated PDF
    Calls Of Route Should Be    create    0

Rows Of A Shape Come Back In It, And Those That Fail Say Why
    Use A Sandbox    --latency    200ms
    VAR    ${plan}
    ...    {"requests": [{"contains": "too odd", "outcome": "errored",
    ...    "error": {"type": "invalid_request_error", "message": "it is too odd"}},
    ...    {"contains": "too late", "outcome": "expired"}]}
    Post Fault Plan    ${plan}
    Write Lines    shaped.yaml
    ...    name: tests/shaped
    ...    model: ${MODEL}
    ...    batch_processing: {max_attempts: 1}
    ...    response_format:
    ...    ${SPACE * 2}type: json_schema
    ...    ${SPACE * 2}schema: {type: object, properties: {total: {type: number}}, required: [total]}
    Write Lines    rows.csv    id,prompt    a,One    b,Two is too odd    c,Three is too late    d,Four
    ${done} =    Claude Batch Should End With    1    run    shaped.yaml    rows.csv    -o    answers.jsonl
    Should Contain    ${done.stderr}    2 succeeded
    ${answers} =    Read Answers    answers.jsonl
    Ids Should Be    ${answers}    a    b    c    d
    ${total} =    Evaluate    json.loads($answers[0]["text"])["total"]
    Should Be True    isinstance($total, (int, float))
    Should Be Equal    ${answers}[1][error][type]    invalid_request_error
    Should Contain    ${answers}[1][error][message]    it is too odd
    Should Be Equal    ${answers}[2][error][type]    expired
    Should Be True    $answers[3]["ok"]
