"""A provider for litellm, ``claude-batch/MODEL``, whose calls are answered from batches.

litellm makes its requests for Anthropic with httpx. `BatchedTransport` passes them on to
claude-batch, which is an httpx2 client.
"""

from typing import Any

import httpx
import litellm

import claude_batch as cb


class BatchedTransport(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self.batches = cb.http_client()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body, headers = await request.aread(), list(request.headers.items())
        url = str(request.url)
        answer = await self.batches.request(request.method, url, headers=headers, content=body)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


class Batches(litellm.CustomLLM):
    def __init__(self) -> None:
        super().__init__()
        self.handler = litellm.AsyncHTTPHandler()
        self.handler.client = httpx.AsyncClient(transport=BatchedTransport())

    async def acompletion(
        self, model: str, messages: list[Any], optional_params: dict[str, Any], **_: Any
    ) -> litellm.ModelResponse:
        return await litellm.acompletion(
            f"anthropic/{model}", messages=messages, client=self.handler, **optional_params
        )


litellm.custom_provider_map = [{"provider": "claude-batch", "custom_handler": Batches()}]
