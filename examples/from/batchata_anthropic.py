"""batchata's demo of messages: texts in, objects out.

python examples/from/batchata_anthropic.py
"""

from pydantic import BaseModel

import claude_batch as cb


class Analysis(BaseModel):
    summary: str
    sentiment: str
    key_points: list[str]


TEXTS = (
    "The harbour was full every weekend of the season.",
    "Twice as many boats as last year came back with a broken mast.",
    "More and more guests ask for an electric engine.",
)
requests = [
    cb.ActorRequest(messages=[{"role": "user", "content": f"Analyze this business update: {text}"}])
    for text in TEXTS
]
with cb.make_actor("claude-sonnet-4-5", options={"temperature": 0.7}, budget_usd=5) as analyst:
    for result in analyst.respond_all_sync(requests, output_format=Analysis, progress=True):
        if result.response is None:
            print(f"{result.position} failed: {result.error}")
            continue
        analysis = result.response.parsed_output
        print(f"{result.position}: {analysis.sentiment}. {analysis.summary}")
        print(f"  Key points: {', '.join(analysis.key_points)}")
