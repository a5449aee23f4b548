"""async-batch-llm's quick start: prompts, and a bar that shows how far they are.

python examples/from/async_batch_llm_progress.py "Summarize A" "Summarize B"
"""

import sys

import claude_batch as cb

with cb.make_actor("claude-haiku-4-5") as answerer:
    for result in answerer.respond_all_sync(sys.argv[1:], progress=True):
        print(result.position, result.text if result.ok else result.error)
