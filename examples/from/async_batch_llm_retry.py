"""async-batch-llm's smart retry: what failed is asked again, and what was wrong is in the question.

python examples/from/async_batch_llm_retry.py "Ann, 34, ann@example.com" "Bob, 27, bob@example.com"
"""

from argparse import ArgumentParser

from pydantic import BaseModel, Field

import claude_batch as cb


class Person(BaseModel):
    name: str
    age: int = Field(le=150)
    email: str


parser = ArgumentParser(description=__doc__)
parser.add_argument("prompts", nargs="+")
# Faults of the API are tried again 3 times, and so are answers that do not validate.
with cb.make_actor("claude-haiku-4-5", max_attempts=3, validation_attempts=3) as extractor:
    for result in extractor.respond_all_sync(parser.parse_args().prompts, output_format=Person):
        if result.response is None:
            print(f"{result.position}: {result.error}")
            continue
        person = result.response.parsed_output
        print(f"{result.position}: {person.name}, attempt {result.response.attempt}")
