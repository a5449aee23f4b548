"""async-batch-llm's middleware: code before each request and after each response.

python examples/from/async_batch_llm_middleware.py "Name a knot." "Name a sail."
"""

from argparse import ArgumentParser

import claude_batch as cb


class LoggingMiddleware(cb.Middleware):
    def before_request(self, actor: str, request: cb.ActorRequest, /) -> cb.ActorRequest:
        print(f"Starting {request.prompt}")
        return request

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse, /
    ) -> cb.ActorResponse:
        print(f"Success: {response.text}")
        return response


parser = ArgumentParser(description=__doc__)
parser.add_argument("prompts", nargs="+")
with cb.make_actor("claude-haiku-4-5", middleware=[LoggingMiddleware()]) as answerer:
    for result in answerer.respond_all_sync(parser.parse_args().prompts):
        if not result.ok:
            print(f"Failed: {result.position} - {result.error}")
