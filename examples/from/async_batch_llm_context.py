"""async-batch-llm's context passing: an object that travels beside each request.

python examples/from/async_batch_llm_context.py README.md CONTRIBUTING.md
"""

from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

import claude_batch as cb


@dataclass
class FileContext:
    filepath: str
    original_content: str


def request_about(filepath: str) -> cb.ActorRequest:
    content = Path(filepath).read_text("utf-8")
    context = FileContext(filepath=filepath, original_content=content)
    return cb.ActorRequest(f"Summarize: {content}", key=filepath, context=context)


parser = ArgumentParser(description=__doc__)
parser.add_argument("paths", nargs="+")
with cb.make_actor("claude-haiku-4-5") as summarizer:
    for result in summarizer.respond_all_sync(map(request_about, parser.parse_args().paths)):
        if result.response:
            print(f"File: {result.context.filepath}")
            print(f"Summary: {result.response.text}")
