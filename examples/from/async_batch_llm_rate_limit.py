"""async-batch-llm's rate limit: live calls that stay below limits of one's own.

python examples/from/async_batch_llm_rate_limit.py "Name a knot." "Name a sail."
"""

from argparse import ArgumentParser

import claude_batch as cb

parser = ArgumentParser(description=__doc__)
parser.add_argument("prompts", nargs="+")
limits = {"requests_per_minute": 60, "tokens_per_minute": 40_000}
with cb.make_actor("claude-haiku-4-5", mode="live", **limits) as answerer:
    for result in answerer.respond_all_sync(parser.parse_args().prompts):
        print(result.position, result.text if result.ok else result.error)
