"""batchata's quick start: a summary of each file, for at most $5.

python examples/from/batchata_basic.py README.md CONTRIBUTING.md
"""

import sys

import claude_batch as cb

requests = [cb.ActorRequest("Summarize", documents=[path], key=path) for path in sys.argv[1:]]
with cb.make_actor("claude-sonnet-4-5", budget_usd=5) as summarizer:
    for result in summarizer.respond_all_sync(requests, results_dir="output"):
        print(result.key, result.text if result.ok else result.error)
