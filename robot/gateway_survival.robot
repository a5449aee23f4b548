*** Settings ***
Documentation       A gateway, and the clients that wait at it, may end at any moment: every call is answered,
...                 and every request is paid for once.

Resource            resources/gateway.resource

Test Teardown       End The Gateway
Test Timeout        180 seconds


*** Variables ***
${CALLS}    1000


*** Test Cases ***
Clients And The Gateway Are Killed With A Thousand Calls Under Way
    Use A Sandbox    --latency    1h
    Set Variable For Commands    CLAUDE_BATCH_LINGER    200ms
    ${port} =    Evaluate    (lambda s: (s.bind(("127.0.0.1", 0)), s.getsockname()[1], s.close())[1])(socket.socket())    modules=socket
    Use Base Url    http://127.0.0.1:${port}
    ${gateway} =    Start A Gateway At    ${port}
    ${client} =    Start Python    ${CLIENTS}/many_calls.py    ${CALLS}    answered.jsonl
    Calls Should Wait At The Gateway    ${port}    ${CALLS}
    Kill Command    ${gateway}
    ${gateway} =    Start A Gateway At    ${port}
    Calls Should Wait At The Gateway    ${port}    ${CALLS}
    Kill Command    ${client}
    ${client} =    Start Python    ${CLIENTS}/many_calls.py    ${CALLS}    answered.jsonl
    Calls Should Wait At The Gateway    ${port}    ${CALLS}
    Send Signal To Command    ${gateway}    SIGTERM
    ${done} =    Wait For Command    ${gateway}    timeout=10
    No Traceback In    ${done}
    ${gateway} =    Start A Gateway At    ${port}
    Calls Should Wait At The Gateway    ${port}    ${CALLS}
    Advance Sandbox Clock    3601
    Wait Until Keyword Succeeds    30s    10ms    Some Calls Should Be Answered
    Kill Command    ${gateway}
    ${gateway} =    Start A Gateway At    ${port}
    Wait Until Keyword Succeeds    120s    2s    Client Should Have Ended    ${client}
    ${done} =    Wait For Command    ${client}
    Exit Code Should Be    ${done}    0
    Should Contain    ${done.stdout}    ${CALLS} answered
    Each Request Should Be Paid Once    ${CALLS}


*** Keywords ***
Start A Gateway At
    [Documentation]    A gateway that clients find again after its end.
    [Arguments]    ${port}
    ${sandbox} =    Sandbox Url
    ${running} =    Start Claude Batch
    ...    gateway    --base-url    ${sandbox}    --port    ${port}    --hold    500ms    --ping    500ms
    Wait For Output    ${running}    gateway listening on http://
    VAR    ${GATEWAY} =    ${running}    scope=TEST
    RETURN    ${running}

Calls Should Wait At The Gateway
    [Arguments]    ${port}    ${count}
    Wait Until Keyword Succeeds    60s    100ms    Waiting Calls Should Be    ${port}    ${count}

Waiting Calls Should Be
    [Documentation]    As the gateway counts them itself; their requests may be sent or not.
    [Arguments]    ${port}    ${count}
    ${text} =    Evaluate    urllib.request.urlopen("http://127.0.0.1:${port}/metrics").read().decode()    modules=urllib.request
    Should Contain    ${text}    claude_batch_gateway_calls_waiting ${count}.0

Some Calls Should Be Answered
    [Documentation]    Some, and not yet all of them.
    ${folder} =    Scratch Folder
    ${answered} =    Evaluate    len((pathlib.Path($folder) / "answered.jsonl").read_text().split())    modules=pathlib
    Should Be True    ${answered} > 0

Client Should Have Ended
    [Documentation]    Requests that were not sent when the clock was advanced are in a later batch.
    [Arguments]    ${client}
    Advance Sandbox Clock    3601
    Should Not Be Equal    ${client.process.poll()}    ${None}
