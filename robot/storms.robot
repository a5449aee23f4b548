*** Settings ***
Documentation       Storms: whatever goes wrong at the API and whenever processes die, nothing is
...                 lost and nothing is paid for twice. Each is drawn from a seed, and can be
...                 played again: see the head of resources/storms.py.

Library             storms.py

Test Timeout        15 minutes


*** Variables ***
${FIRST}            1
${COUNT}            20


*** Test Cases ***
Storms Are Weathered
    Storms Should Be Weathered    ${FIRST}    ${COUNT}

A Spoiled Build Is Found Out
    [Documentation]    Real processes of a build with a mistake in it.
    [Template]    Storm Should See Through
    sends-again    processed again after a success
    fetches-once    processed again after a success
    drops-a-line    has no line in the output
    runs-tools-again    ran 2 times, and is not repeatable
    notes-tools-late    ran 2 times, and is not repeatable
    calls-again    processed again after a success
    calls-after-errors    processed again after a success
    repeats-nothing    no tool was interrupted that must not be run again

Spoiled Evidence Is Found Out
    [Documentation]    What a real storm left, with one thing changed.
    [Setup]    Play The Storm Whose Evidence Is Spoiled    run    10
    [Template]    Forgery Should Be Found Out
    pay twice    processed again after a success
    send twice at once    while the first was not accounted for
    try a final outcome again    processed again after a final outcome
    forget why it was sent again    without a recorded outcome
    process one sending twice    was processed 2 times
    lose what was missing for a moment    a paid answer is lost
    lose an answer    a paid answer is lost
    lose a line    has no line in the output
    double a line    has 2 lines in the output
    mix up the order    not in the order of the input
    give another answer    has another prompt's answer
    give up early    given up too early
    leave a batch behind    no batch of the ledger knows of it
    cancel a foreign batch    a foreign batch was cancelled
    make a run twice    made 2 runs
    pass the budget    under a budget of 1000
    forget what was spent    are accounted for
    ask both ways    processed again after a success

Spoiled Evidence Of Conversations Is Found Out
    [Documentation]    What a real storm of conversations left, with one thing changed.
    [Setup]    Play The Storm Whose Evidence Is Spoiled    talks    270
    [Template]    Forgery Should Be Found Out
    run a tool again    ran 2 times, and is not repeatable
    run a recorded tool again    ran again after its result was recorded
    repeat a tool for nothing    which ran it, was not killed
    invent a result    has a result which is no run's
    forget a result    has no result, and its conversation went on
    run a tool unnoted    no call of it is in the ledger
    answer without a result    is answered without what record gave
    interrupt without a death    no death has interrupted a tool
    blame the death of another    no death has interrupted a tool
    interrupt without need    no tool was interrupted that must not be run again
    give up what may be repeated    no tool was interrupted that must not be run again
    pay a turn twice    processed again after a success
    go on before the answer    was sent before the one before it was answered
    go on from nothing    follows from no answer
    stop between two turns    is continuing, though all has ended

Spoiled Evidence Of Haste Is Found Out
    [Documentation]    What a real storm of live calls left, with one thing changed.
    [Setup]    Play The Storm Whose Evidence Is Spoiled    haste    26
    [Template]    Forgery Should Be Found Out
    call twice    processed again after a success
    lose a live answer    a paid answer is lost
    pass the budget    under a budget of 1000
    forget what was spent    are accounted for


*** Keywords ***
Play The Storm Whose Evidence Is Spoiled
    [Arguments]    ${family}    ${seed}
    ${evidence} =    Evidence Of A Storm    ${family}    ${seed}
    VAR    ${EVIDENCE}    ${evidence}    scope=TEST

Forgery Should Be Found Out
    [Arguments]    ${forgery}    ${words}
    Forged Evidence Should Be Found Out    ${EVIDENCE}    ${forgery}    ${words}
