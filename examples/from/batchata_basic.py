"""batchata's quick start: a summary of each file, for at most $5.

python examples/from/batchata_basic.py README.md CONTRIBUTING.md
"""

from argparse import ArgumentParser

import claude_batch as cb

parser = ArgumentParser(description=__doc__)
parser.add_argument("paths", nargs="+")
requests = [cb.ActorRequest("Summarize", documents=[p], key=p) for p in parser.parse_args().paths]
with cb.make_actor("claude-sonnet-4-5", budget_usd=5) as summarizer:
    for result in summarizer.respond_all_sync(requests, results_dir="output"):
        print(result.key, result.text if result.ok else result.error)
