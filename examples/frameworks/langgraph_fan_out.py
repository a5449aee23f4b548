"""LangGraph: a graph that sends 200 topics to one node, in one batch."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import claude_batch as cb

llm = cb.ClaudeBatchProvider().create_chat_model("claude-haiku-4-5")


class State(TypedDict):
    numbers: list[int]
    answers: Annotated[list[str], operator.add]


def explain(number: int) -> dict[str, Any]:
    return {"answers": [llm.invoke(f"Explain knot number {number}.").text]}


def fan_out(state: State) -> list[Send]:
    return [Send("explain", number) for number in state["numbers"]]


graph = StateGraph(State)
graph.add_node("explain", explain)
graph.add_conditional_edges(START, fan_out, ["explain"])
graph.add_edge("explain", END)

# Without `max_concurrency`, LangGraph runs a few nodes at a time.
done = graph.compile().invoke({"numbers": list(range(200))}, {"max_concurrency": 200})
print("\n".join(done["answers"]))
