"""LangChain as a client of the gateway."""

from typing import Any

from client_calls import MODEL, OPTIONS, Call, report
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import BaseMessage

model = ChatAnthropic(model_name=MODEL, max_tokens_to_sample=500, **OPTIONS)


def ask(call: Call) -> dict[str, Any]:
    runnable = model.bind_tools(call.tools) if call.tools else model
    if call.stream:
        first, *rest = runnable.stream(call.prompt)
        message: BaseMessage = sum(rest, first)
    else:
        message = runnable.invoke(call.prompt)
    tools = [{"name": each["name"], "input": each["args"]} for each in message.tool_calls]
    return {"text": message.text, "tools": tools}


report("langchain", ask)
