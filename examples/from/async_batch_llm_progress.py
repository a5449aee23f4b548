"""async-batch-llm's quick start: prompts, and a bar that shows how far they are.

python examples/from/async_batch_llm_progress.py "Summarize A" "Summarize B"
"""

import sys

import claude_batch as cb

answerer = cb.ActorConfiguration(model="claude-haiku-4-5", batch_processing=True)
with cb.ClaudeBatchProvider() as provider:
    for result in cb.Actor(answerer, provider).respond_all_sync(sys.argv[1:], progress=True):
        print(result.position, result.response.text if result.response else result.error)
