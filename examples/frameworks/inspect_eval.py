"""inspect-ai: an evaluation of 200 samples in one batch."""

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

import claude_batch as cb

samples = [Sample(f"Name knot number {number}.", target="knot") for number in range(200)]
task = inspect_ai.Task(dataset=samples, solver=generate(), scorer=includes())
model = get_model("anthropic/claude-haiku-4-5", http_client=cb.http_client())

[log] = inspect_ai.eval(task, model, max_connections=200, display="none")
print(log.status, log.results.completed_samples, "samples")
