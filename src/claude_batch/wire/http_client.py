"""The HTTP client under the SDK's: every response is bounded in decompressed size.

A few kilobytes of gzip can become gigabytes, and the SDK reads error bodies whole. httpx2
decompresses in pieces of a mebibyte, so it is enough to count its output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anthropic
import httpx2

MOST_BODY_BYTES = 32 * 1024 * 1024
"""Most bytes of a response that is read whole.

An answer must fit into the next request of its conversation, and the API accepts 32 MB
(https://platform.claude.com/docs/en/api/overview). A list of 1,000 batches has about 1 MB."""

_ENCODED = (b"content-encoding", b"content-length", b"transfer-encoding")
"""Headers of the compressed body; they are dropped, because the stream is decompressed already."""


class ResponseTooLarge(httpx2.TransportError):
    """A response has more than `MOST_BODY_BYTES`; the rest was not read."""


class _Bounded(httpx2.AsyncByteStream):
    """The decompressed bytes of a response, at most ``most`` of them."""

    def __init__(self, response: httpx2.Response, most: int | None) -> None:
        self._response = response
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async with aclosing(self._response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                count += len(chunk)
                if self._most is not None and count > self._most:
                    raise ResponseTooLarge(
                        f"the response has more than {self._most:,} bytes after decompression",
                        request=self._response.request,
                    )
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


class BoundedClient(anthropic.DefaultAsyncHttpxClient):
    """The SDK's own HTTP client, with `ResponseTooLarge` for huge responses.

    Only a success that the caller streams has no bound; the code that reads its lines bounds it.
    The client keeps no cookies: one with a character that is invalid in headers would break every
    later call.
    """

    def __init__(self, **options: Any) -> None:
        """Set up the client; ``options`` are those of the base class."""
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        super().__init__(cookies=no_cookies, **options)

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """Send a request like the base class, and bound its response."""
        response = await super().send(request, stream=True, **options)
        whole = not stream or not response.is_success
        headers = [item for item in response.headers.raw if item[0].lower() not in _ENCODED]
        bounded = httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_Bounded(response, MOST_BODY_BYTES if whole else None),
            request=request,
            extensions=response.extensions,
            history=response.history,
        )
        if whole:
            # Here, so that the SDK converts a failure into its own exceptions.
            try:
                await bounded.aread()
            finally:
                await bounded.aclose()
        return bounded
