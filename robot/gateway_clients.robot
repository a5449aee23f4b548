*** Settings ***
Documentation       Libraries for Claude's API as clients of the gateway, which is nothing but a base URL to them.
...                 Their time-outs are shorter than a batch: what keeps them waiting are its signs of life.

Resource            resources/gateway.resource

Test Teardown       End The Gateway
Test Timeout        120 seconds


*** Variables ***
${EXAMPLES}     ${CURDIR}/../examples/gateway
${CURL}         ${{shutil.which("curl")}}


*** Test Cases ***
The Python SDK
    Use A Gateway
    ${client} =    Start Python    ${CLIENTS}/anthropic_sdk.py
    Each Call Should End Well    ${client}    BadRequestError    APIStatusError

LangChain
    Use A Gateway
    ${client} =    Start Python    ${CLIENTS}/langchain_chat.py
    Each Call Should End Well    ${client}    AnthropicInvalidRequestError    APIStatusError

curl
    Skip If    $CURL is None    curl is not installed
    Use A Gateway
    ${client} =    Start Python    ${CLIENTS}/curl_calls.py
    Each Call Should End Well    ${client}    CurlError    CurlError

A Client That Gives Up Without Signs Of Life Gets Its Answers Later
    Use A Gateway    latency=60s    ping=60s    time_out=1
    ${client} =    Start Python    ${CLIENTS}/anthropic_sdk.py
    ${done} =    Wait For Command    ${client}
    ${times} =    Evaluate    $done.stdout.count("APITimeoutError")
    Should Be Equal As Integers    ${times}    6
    # Each call was made three times. When the program comes again, it gets what was paid for.
    Advance Sandbox Clock    60
    ${client} =    Start Python    ${CLIENTS}/anthropic_sdk.py
    Each Call Should End Well    ${client}    BadRequestError    BadRequestError

Claude Code, Whose Watchdog Asks Again After 30 Pings
    [Documentation]    Its pings come each 100 ms instead of 50 s: the batch takes 37 minutes.
    Use A Sandbox    --latency    4500ms
    ${gateway} =    Start Python    ${CLIENTS}/hasty_gateway.py
    Use The Address Of    ${gateway}
    ${client} =    Start Python    ${CLIENTS}/claude_code.py
    ${done} =    Wait For Command    ${client}
    Exit Code Should Be    ${done}    0
    ${result} =    Evaluate    json.loads($done.stdout)    modules=json
    Should Be True    len($result["pings"]) > 1 and $result["pings"][0] > 30
    Should Contain    ${result}[text]    Sandbox answer
    Each Request Should Be Paid Once    1
    Calls Of Route Should Be    create    1

Other Routes Of The Python SDK
    Use A Gateway    latency=200ms
    ${client} =    Start Python    ${CLIENTS}/other_routes.py
    Other Routes Should Work    ${client}

Other Routes Of The TypeScript SDK
    [Tags]    clients
    Use A Gateway    latency=200ms
    ${client} =    Start Node Program    ${CLIENTS}/other_routes.mts
    Other Routes Should Work    ${client}

The First Python SDK That Takes Tools
    [Tags]    clients
    Use A Gateway
    ${client} =    Start Program    %{CLAUDE_BATCH_OLD_SDK_PYTHON}    ${CLIENTS}/anthropic_sdk.py
    Each Call Should End Well    ${client}    BadRequestError    APIStatusError

LiteLLM
    [Documentation]    It asks again if it is told to.
    [Tags]    clients
    Use A Gateway
    ${client} =    Start Python    ${CLIENTS}/litellm_completions.py
    Each Call Should End Well    ${client}    BadRequestError    MidStreamFallbackError

The TypeScript SDK
    [Documentation]    It does not ask again once an answer has begun; the program's next call gets the true status.
    [Tags]    clients
    Use A Gateway
    ${client} =    Start Node Program    ${CLIENTS}/anthropic_sdk.mts
    Each Call Should End Well    ${client}    TypeError    APIError    None    terminated
    ${client} =    Start Node Program    ${CLIENTS}/anthropic_sdk.mts
    ${calls} =    Calls Of    ${client}
    Call Should Have Failed    ${calls}[json late-error]    BadRequestError    The request was invalid.    400
    Call Should Have Failed    ${calls}[stream late-error]    BadRequestError    The request was invalid.    400
    ${bill} =    Billing Summary
    Should Be Equal As Integers    ${bill}[outcomes][errored]    2

Vercel's AI SDK
    [Documentation]    Its error names the one of the last attempt.
    [Tags]    clients
    Use A Gateway
    ${client} =    Start Node Program    ${CLIENTS}/ai_sdk.mts
    Each Call Should End Well    ${client}    RetryError    APICallError    None

A TypeScript Program Gets 200 Answers From One Batch
    [Documentation]    It knows nothing of the gateway but its address.
    [Tags]    clients
    Use A Gateway    time_out=${None}
    Set Variable For Commands    CLAUDE_BATCH_LINGER    ${None}
    ${client} =    Start Node Program    ${EXAMPLES}/knots.mts
    ${done} =    Wait For Command    ${client}
    Exit Code Should Be    ${done}    0
    ${answers} =    Evaluate    [line for line in $done.stdout.splitlines() if line.startswith("Sandbox answer")]
    Length Should Be    ${{set($answers)}}    200
    Calls Of Route Should Be    create    1
    Each Request Should Be Paid Once    200

Each Program Of The Page Is Answered
    [Tags]    clients
    Use A Gateway    latency=200ms    time_out=${None}
    ${programs} =    List Files In Directory    ${EXAMPLES}
    Length Should Be    ${programs}    5
    FOR    ${program}    IN    @{programs}
        IF    $program.endswith(".mts")
            ${client} =    Start Node Program    ${EXAMPLES}/${program}
        ELSE
            ${client} =    Start Python    ${EXAMPLES}/${program}
        END
        ${done} =    Wait For Command    ${client}
        Exit Code Should Be    ${done}    0
        Should Match Regexp    ${done.stdout}    (?m)^Sandbox answer
    END

Time-Outs As The Clients Have Them
    [Documentation]    All clients at once, with their own time-outs and the gateway's own signs of life.
    [Tags]    clients    real_time
    [Timeout]    25 minutes
    Use A Gateway    --hold    20s    --ping    15s    latency=13m    time_out=${None}
    Set Variable For Commands    CLAUDE_BATCH_POLL_INTERVAL    5s
    ${python} =    Start Python    ${CLIENTS}/anthropic_sdk.py
    ${old} =    Start Program    %{CLAUDE_BATCH_OLD_SDK_PYTHON}    ${CLIENTS}/anthropic_sdk.py
    ${langchain} =    Start Python    ${CLIENTS}/langchain_chat.py
    ${litellm} =    Start Python    ${CLIENTS}/litellm_completions.py
    ${curl} =    Start Python    ${CLIENTS}/curl_calls.py
    ${node} =    Start Node Program    ${CLIENTS}/anthropic_sdk.mts
    ${ai} =    Start Node Program    ${CLIENTS}/ai_sdk.mts
    FOR    ${client}    IN    ${python}    ${old}    ${langchain}    ${litellm}    ${curl}    ${node}    ${ai}
        ${calls} =    Calls Of    ${client}    timeout=1200
        Each Answer Should Be Whole    ${calls}
    END
    Each Request Should Be Processed Once    42
