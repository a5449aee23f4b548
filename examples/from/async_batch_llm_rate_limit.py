"""async-batch-llm's rate limit: live calls that stay below limits of one's own.

python examples/from/async_batch_llm_rate_limit.py "Name a knot." "Name a sail."
"""

import sys

import claude_batch as cb

answerer = cb.ActorConfiguration(model="claude-haiku-4-5", batch_processing={"mode": "live"})
with cb.ClaudeBatchProvider(requests_per_minute=60, tokens_per_minute=40_000) as provider:
    for result in cb.Actor(answerer, provider).respond_all_sync(sys.argv[1:]):
        print(result.position, result.response.text if result.response else result.error)
