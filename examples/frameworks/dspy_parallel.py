"""DSPy: a module for 200 inputs in one batch."""

import os
from collections.abc import Iterator
from typing import Any, Self

import dspy
from dspy.clients.engines.lm15_engine import LM15Engine
from dspy.lm15 import RouterConfig

import claude_batch as cb


class BatchedTransport:
    """Passes the requests of DSPy's own engine to claude-batch."""

    def __init__(self) -> None:
        self.batches = cb.http_client_sync()

    def stream(self, asked: Any) -> "Answer":
        sent = {"headers": asked.headers, "content": asked.body}
        return Answer(self.batches.request(asked.method, asked.url, **sent))


class Answer:
    """An answer as DSPy's engine reads it."""

    http_version = "HTTP/1.1"

    def __init__(self, answer: Any) -> None:
        self.status, self.reason = answer.status_code, answer.reason_phrase
        self.headers, self.body = list(answer.headers.items()), answer.content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[bytes]:
        yield self.body

    def read(self) -> bytes:
        return self.body

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name.lower())


url = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
config = RouterConfig(transport=BatchedTransport(), base_urls={"anthropic": f"{url}/v1"})
dspy.configure(lm=dspy.LM("anthropic/claude-haiku-4-5", engine=LM15Engine(config)))

explain = dspy.Predict("question -> answer")
questions = [
    dspy.Example(question=f"What is knot number {number}?").with_inputs("question")
    for number in range(200)
]
# With its own `timeout` of 120 s, DSPy asks the last few again, and both are paid for.
done = explain.batch(questions, num_threads=200, timeout=0, disable_progress_bar=True)
for prediction in done:
    print(prediction.answer)
