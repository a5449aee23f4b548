*** Settings ***
Documentation       Finished messages of every kind, which the TypeScript SDK's helpers read as streams.
...                 `features/integrations/sse.feature` has the same for the Python SDK.

Resource            resources/gateway.resource

Test Tags           clients
Test Timeout        120 seconds


*** Test Cases ***
The TypeScript SDK Puts Each Message Together Again
    [Documentation]    What it cannot hold is written in the program.
    ${server} =    Start Python    ${CLIENTS}/streaming_server.py
    Wait For Output    ${server}    listening on http://
    ${url} =    Evaluate    $server.stdout.split("listening on ")[1].split()[0]
    Use Base Url    ${url}
    ${client} =    Start Node Program    ${CLIENTS}/finished_messages.mts
    ${done} =    Wait For Command    ${client}
    Exit Code Should Be    ${done}    0
    ${read} =    Evaluate    [json.loads(line) for line in $done.stdout.splitlines()]    modules=json
    ${wrong} =    Evaluate    [each for each in $read if each["problem"]]
    Should Be Empty    ${wrong}
    FOR    ${helper}    IN    messages    beta.messages
        ${count} =    Evaluate    [each["helper"] for each in $read].count($helper)
        Should Be True    ${count} >= 35
    END
