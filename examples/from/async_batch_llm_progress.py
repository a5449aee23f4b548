"""async-batch-llm's quick start: prompts, and a bar that shows how far they are.

python examples/from/async_batch_llm_progress.py "Summarize A" "Summarize B"
"""

from argparse import ArgumentParser

import claude_batch as cb

parser = ArgumentParser(description=__doc__)
parser.add_argument("prompts", nargs="+")
with cb.make_actor("claude-haiku-4-5") as answerer:
    for result in answerer.respond_all_sync(parser.parse_args().prompts, progress=True):
        print(result.position, result.text if result.ok else result.error)
