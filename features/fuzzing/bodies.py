"""Bodies and headers as the API sends them: what recordings of the real service show."""

from __future__ import annotations

from typing import Any

__all__ = [
    "BATCH",
    "BATCH_ID",
    "COUNT",
    "ERRORS",
    "FILE",
    "FILE_PAGE",
    "HEADERS",
    "KEY",
    "LINES",
    "MESSAGES",
    "PAGE",
]

KEY = "sk-ant-api03-marked-for-the-search-0123456789"
"""The key of every call, which some errors repeat."""

BATCH_ID = "msgbatch_01HkcTjaV5uDC8jWR4ZsDV8d"
FILE_ID = "file_011CNha8iCJcU1wXNR6q4V8w"

USAGE: dict[str, Any] = {
    "input_tokens": 212,
    "cache_creation_input_tokens": 3000,
    "cache_read_input_tokens": 1200,
    "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 2000},
    "output_tokens": 87,
    "output_tokens_details": {"thinking_tokens": 30},
    "server_tool_use": {"web_search_requests": 2},
    "service_tier": "batch",
    "inference_geo": "global",
}


def _message(content: list[dict[str, Any]], stop_reason: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_01FqfsLoHwgeFbguDgpz48m7",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5-20251001",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": USAGE,
        **more,
    }


_CITATION = {
    "type": "char_location",
    "cited_text": "The grass is green.",
    "document_index": 0,
    "document_title": "My Document",
    "start_char_index": 0,
    "end_char_index": 20,
    "file_id": None,
}

MESSAGES: list[dict[str, Any]] = [
    _message([{"type": "text", "text": "Grüße, “world” \U0001f30d\n\tline"}], "end_turn"),
    _message([{"type": "text", "text": '{"name": "Ada", "age": 36}'}], "end_turn"),
    _message(
        [
            {"type": "thinking", "thinking": "Let me see.", "signature": "EuYBCkQYAiJA"},
            {"type": "text", "text": "The grass is ", "citations": None},
            {"type": "text", "text": "green", "citations": [_CITATION]},
        ],
        "end_turn",
        usage={"input_tokens": 12, "output_tokens": 9, "service_tier": "standard"},
    ),
    _message(
        [
            {"type": "text", "text": "I look it up."},
            {
                "type": "tool_use",
                "id": "toolu_01A09q90qw90lq917835lq9",
                "name": "get_weather",
                "input": {"city": "Zürich", "days": 3, "nested": {"list": [1, 2.5, None, True]}},
                "caller": {"type": "direct"},
            },
        ],
        "tool_use",
        container={
            "id": "container_011CPR5CNjB747bTd36fQLFk",
            "expires_at": "2026-08-14T09:12:33Z",
        },
    ),
    _message(
        [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {"type": "web_search_result", "url": "https://x.example", "title": "x"}
                ],
            },
        ],
        "pause_turn",
    ),
    _message([], "refusal", stop_details={"type": "refusal", "category": None}),
    _message([{"type": "text", "text": "cut"}], "max_tokens"),
    _message([{"type": "text", "text": "full"}], "model_context_window_exceeded"),
]


def _error(error_type: str, words: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": error_type, "message": words, **more},
        "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
    }


ERRORS: list[tuple[int, dict[str, Any]]] = [
    (400, _error("invalid_request_error", "requests.0.custom_id: String should match pattern")),
    (400, _error("invalid_request_error", "Your credit balance is too low to access the API.")),
    (401, _error("authentication_error", f"API key {KEY} is invalid.")),
    (403, _error("permission_error", "Your API key does not have permission.")),
    (404, _error("not_found_error", "Not found")),
    (413, _error("request_too_large", "Request exceeds the maximum size")),
    (
        429,
        _error(
            "rate_limit_error",
            "This request would exceed your rate limit.",
            details={"error_code": "enforced_spend_limit_reached"},
        ),
    ),
    (500, _error("api_error", "Internal server error", details=None)),
    (529, _error("overloaded_error", "Overloaded", details={"error_visibility": "user_facing"})),
]

LINES: list[dict[str, Any]] = [
    *({"type": "succeeded", "message": message} for message in MESSAGES),
    *(
        {"type": "errored", "error": {**error, "request_id": identifier}}
        for identifier in (None, "workerreq_011CSHoEeqs5C35K2UUqR7Fy")
        for _, error in ERRORS
    ),
    {"type": "canceled"},
    {"type": "expired"},
]
"""``result`` of each kind of result line."""

BATCH: dict[str, Any] = {
    "id": BATCH_ID,
    "type": "message_batch",
    "processing_status": "ended",
    "request_counts": {
        "processing": 0,
        "succeeded": 95,
        "errored": 1,
        "canceled": 2,
        "expired": 2,
    },
    "created_at": "2026-08-14T09:12:33.123456+00:00",
    "expires_at": "2026-08-15T09:12:33.123456+00:00",
    "ended_at": "2026-08-14T09:42:33.123456+00:00",
    "cancel_initiated_at": None,
    "archived_at": None,
    "results_url": f"https://api.anthropic.com/v1/messages/batches/{BATCH_ID}/results",
}

PAGE: dict[str, Any] = {
    "data": [
        {**BATCH, "id": f"{BATCH_ID}{number}", "processing_status": status}
        for number, status in enumerate(("in_progress", "canceling", "ended"))
    ],
    "has_more": True,
    "first_id": f"{BATCH_ID}0",
    "last_id": f"{BATCH_ID}2",
}

COUNT: dict[str, Any] = {"input_tokens": 2095}

FILE: dict[str, Any] = {
    "id": FILE_ID,
    "type": "file",
    "filename": "document.pdf",
    "mime_type": "application/pdf",
    "size_bytes": 1024000,
    "created_at": "2026-01-01T00:00:00Z",
    "downloadable": False,
}

FILE_PAGE: dict[str, Any] = {"data": [FILE], "has_more": False, "first_id": FILE_ID}

_LIMITS = {
    f"anthropic-ratelimit-{name}-{what}": value
    for name in ("requests", "input-tokens", "output-tokens", "tokens")
    for what, value in (
        ("limit", "4000"),
        ("remaining", "3999"),
        ("reset", "2026-08-14T09:12:34Z"),
    )
}

HEADERS: dict[str, str] = {
    "date": "Fri, 14 Aug 2026 09:12:33 GMT",
    "content-type": "application/json",
    "request-id": "req_011CSHoEeqs5C35K2UUqR7Fy",
    "anthropic-organization-id": "5b2ad9e2-12a5-4f3d-9d5c-2f9c8e5f2f10",
    "anthropic-workspace-id": "wrkspc_01JwQvzr7rXLA5AGx3HKfFUJ",
    "retry-after": "10",
    "retry-after-ms": "10000",
    "x-should-retry": "false",
    "server": "cloudflare",
    **_LIMITS,
}
