"""async-batch-llm's middleware: code before each request and after each response.

python examples/from/async_batch_llm_middleware.py "Name a knot." "Name a sail."
"""

import sys

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


with cb.make_actor("claude-haiku-4-5", middleware=[LoggingMiddleware()]) as answerer:
    for result in answerer.respond_all_sync(sys.argv[1:]):
        if not result.ok:
            print(f"Failed: {result.position} - {result.error}")
