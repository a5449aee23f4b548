*** Settings ***
Documentation       Conversations with tools outlive the process that has them: each goes on at the
...                 turn where it stood, and no tool whose result was recorded is run again.

Library             String

Resource            resources/common.resource

Suite Setup         Use No Company
Test Setup          Prepare A Pilot
Test Teardown       Stop Sandbox
Test Template       A Killed Conversation Goes On
Test Timeout        120 seconds


*** Variables ***
${MORTAL}               ${CURDIR}/resources/mortal.py
${MODULE}               ${CURDIR}/scripts/logbook.py
@{COMMAND}              run    pilot.yaml    prompts.jsonl    -o    answers.jsonl


*** Test Cases ***
# The point of death, for the how-manieth time.
Before The First Turn Is Collected          between_results_and_state:1
After The First Turn Is Collected           after_collected:1
Before The Second Turn Is Queued            before_next_turn:1
After The Second Turn Is Queued             after_next_turn:1
Before The Third Turn Is Queued             before_next_turn:2
After The Third Turn Is Queued              after_next_turn:2
While The Third Turn Is Sent                after_record:3

When The First Result Is Recorded
    [Template]    NONE
    A Lone Conversation Killed At    after_tool_recorded:1

When The Second Result Is Recorded
    [Template]    NONE
    A Lone Conversation Killed At    after_tool_recorded:2

A Tool That Had Started Is Not Run Again Unless It Is Repeatable
    [Template]    NONE
    A Command Is Killed    after_tool_started:1
    ${done} =    Run Claude Batch    @{COMMAND}
    # Both conversations had begun to sound the depth, and none had been told that it may repeat.
    Exit Code Should Be    ${done}    1
    ${answers} =    Read Answers    answers.jsonl
    FOR    ${answer}    IN    @{answers}
        Should Be Equal    ${answer}[error][type]    tool_interrupted
        Should Contain    ${answer}[error][message]    the tool depth had started
    END
    Calls Should Be    depth=0    tide=0

A Repeatable Tool That Had Started Is Run Again
    [Template]    NONE
    Copy With Change    pilot.yaml    logbook:depth    logbook:sounding
    A Command Is Killed    after_tool_started:1
    Claude Batch Should End With    0    @{COMMAND}
    The Answers Should Have Both Results
    Calls Should Be    sounding=2    tide=2
    Each Request Should Be Paid Once    6

A Result That Nobody Had Recorded Is Not Asked For Twice
    [Template]    NONE
    A Command Is Killed    after_tool_run:1
    Run Claude Batch    @{COMMAND}
    ${calls} =    Calls Of The Tools
    # It had run, and its process ended before that was written anywhere.
    Should Be True    $calls.get("depth", 0) <= 2 and $calls.get("tide", 0) == 0

Another Command Finds The Functions From Another Folder
    [Template]    NONE
    A Command Is Killed    after_collected:1
    ${done} =    Run Python    -c    import os, sys; os.makedirs("away", exist_ok=True); os.chdir("away"); from claude_batch.cli import main; sys.argv[1:] = ["resume", "--allow-tools-from-ledger"]; main()
    Exit Code Should Be    ${done}    0
    The Answers Should Have Both Results
    Calls Should Be    depth=2    tide=2
    Each Request Should Be Paid Once    6


*** Keywords ***
Use No Company
    Set Variable For Commands    CLAUDE_BATCH_TURN_LINGER    5s

Prepare A Pilot
    Use A Sandbox    --latency    50ms
    ${text} =    Get File    ${MODULE}
    ${lines} =    Split To Lines    ${text}
    Write Lines    logbook.py    @{lines}
    Write Lines    pilot.yaml
    ...    name: tests/pilot
    ...    model: claude-haiku-4-5
    ...    batch_processing: true
    ...    tools: [logbook:depth, logbook:tide]
    Write Lines    prompts.jsonl
    ...    {"id": "kiel", "prompt": "Kiel [[sandbox:tools]]"}
    ...    {"id": "brest", "prompt": "Brest [[sandbox:tools]]"}

Copy With Change
    [Arguments]    ${name}    ${old}    ${new}
    ${folder} =    Scratch Folder
    ${text} =    Get File    ${folder}/${name}
    ${lines} =    Evaluate    $text.replace($old, $new).splitlines()
    Write Lines    ${name}    @{lines}

A Command Is Killed
    [Documentation]    Run the command until it dies at that point.
    [Arguments]    ${death}
    ${done} =    Run Python    ${MORTAL}    ${death}    -    claude-batch    @{COMMAND}
    Exit Code Should Be    ${done}    -9
    Output Should Not Exist

A Killed Conversation Goes On
    [Arguments]    ${death}
    A Command Is Killed    ${death}
    Claude Batch Should End With    0    @{COMMAND}
    The Answers Should Have Both Results
    Calls Should Be    depth=2    tide=2
    # Two conversations of three turns each.
    Each Request Should Be Paid Once    6

A Lone Conversation Killed At
    [Documentation]    Alone, since a tool of another one might be in its middle then.
    [Arguments]    ${death}
    Write Lines    prompts.jsonl    {"id": "kiel", "prompt": "Kiel [[sandbox:tools]]"}
    A Command Is Killed    ${death}
    Claude Batch Should End With    0    @{COMMAND}
    The Answers Should Have Both Results    kiel
    Calls Should Be    depth=1    tide=1
    Each Request Should Be Paid Once    3

The Answers Should Have Both Results
    [Arguments]    @{ids}
    ${answers} =    Read Answers    answers.jsonl
    IF    not $ids    VAR    @{ids}    kiel    brest
    Ids Should Be    ${answers}    @{ids}
    FOR    ${answer}    IN    @{answers}
        Should Match Regexp    ${answer}[text]    ^The tools gave: .* m; high at noon$
    END

Calls Of The Tools
    [Documentation]    How often each tool was called, as it noted itself.
    ${folder} =    Scratch Folder
    Touch    ${folder}/calls.txt
    ${text} =    Get File    ${folder}/calls.txt
    ${calls} =    Evaluate    collections.Counter($text.split())    modules=collections
    RETURN    ${calls}

Calls Should Be
    [Arguments]    &{expected}
    ${calls} =    Calls Of The Tools
    FOR    ${name}    ${count}    IN    &{expected}
        ${found} =    Evaluate    $calls.get($name, 0)
        Should Be Equal As Integers    ${found}    ${count}    ${name}
    END

Output Should Not Exist
    ${folder} =    Scratch Folder
    File Should Not Exist    ${folder}/answers.jsonl
