"""The fault plan: a JSON object that lists the faults and the calls that they affect.

docs/how-to/sandbox.md describes it. Every rule counts the calls (or requests) in its scope, from
the moment the plan was set. The plan is deterministic: each rule has its own random stream, seeded
by the seed and the rule's position.

Rate limits are a part of the plan, enforced and reported as by the API; those of batch calls are
only reported. Each limit is a bucket that fills evenly and is full after a minute. Every answer
reports limit, remaining amount and time of the reset in the `anthropic-ratelimit-*` headers. A
message for which a bucket is empty gets a 429 with `retry-after`. Input tokens are counted when the
message comes in, output tokens when it is answered.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import msgspec

from .api_errors import STATUS_OF, ApiError

# Rate limits --------------------------------------------------------------------------------------

NAMES = ("requests", "input-tokens", "output-tokens")


class RateLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Limits per minute of one workspace's live messages; a None is neither enforced nor reported.

    `requests_left` and so on are the amounts at the start, if less than the limit.
    """

    requests: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    requests_left: float | None = None
    input_tokens_left: float | None = None
    output_tokens_left: float | None = None


BATCH_CALLS = RateLimits(requests=4_000)
"""Calls per minute of all batch routes of a workspace: the highest tier's. It is not enforced."""


LEAST_LIMIT = 0.01
MOST_LIMIT = 1e12
"""Bounds of a limit: a bucket is full within years, and its time has a date."""


def _number(limit: float) -> str:
    """Return the limit without an exponent, which no client reads as an integer."""
    return f"{limit:.3f}".rstrip("0").rstrip(".")


class _Bucket:
    def __init__(self, limit: float, left: float | None, now: float) -> None:
        self.limit = limit
        self.left = limit if left is None else min(left, limit)
        self.at = now

    def refill(self, now: float) -> None:
        self.left = min(self.limit, self.left + max(0.0, now - self.at) * self.limit / 60)
        self.at = now


class Meter:
    """The usage of one workspace."""

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._buckets: dict[str, _Bucket] = {}
        for name in NAMES:
            field = name.replace("-", "_")
            limit = getattr(limits, field)
            if limit is not None:
                self._buckets[name] = _Bucket(limit, getattr(limits, f"{field}_left"), now)

    def admit(self, now: float, input_tokens: float) -> None:
        """Count one message; raises `ApiError` (429) if it exceeds a limit."""
        needs = {"requests": 1.0, "input-tokens": input_tokens, "output-tokens": 1.0}
        for name, bucket in self._buckets.items():
            bucket.refill(now)
            short = min(needs[name], bucket.limit) - bucket.left
            if short > 0:
                wait = short * 60 / bucket.limit
                raise ApiError(
                    "rate_limit_error",
                    f"This request would exceed your organization's rate limit of "
                    f"{_number(bucket.limit)} {name.replace('-', ' ')} per minute.",
                    headers={"retry-after": f"{wait:.3f}", **self.headers(now)},
                )
        for name in ("requests", "input-tokens"):
            if name in self._buckets:
                self._buckets[name].left -= needs[name]

    def count(self, now: float) -> None:
        """Count one call, even if it exceeds the limit of requests."""
        bucket = self._buckets["requests"]
        bucket.refill(now)
        bucket.left = max(bucket.left - 1, 0)

    def answered(self, now: float, usage: Mapping[str, Any]) -> None:
        """Count the tokens of an answer."""
        bucket = self._buckets.get("output-tokens")
        if bucket is not None:
            bucket.refill(now)
            bucket.left -= usage["output_tokens"]

    def headers(self, now: float) -> dict[str, str]:
        """Return the rate limit headers of an answer."""
        headers: dict[str, str] = {}
        for name, bucket in self._buckets.items():
            full = now + (bucket.limit - bucket.left) * 60 / bucket.limit
            reset = datetime.fromtimestamp(math.ceil(full), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            headers[f"anthropic-ratelimit-{name}-limit"] = _number(bucket.limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, math.floor(bucket.left)))
            headers[f"anthropic-ratelimit-{name}-reset"] = reset
        return headers


# The plan -----------------------------------------------------------------------------------------

Route = Literal[
    "create", "list", "retrieve", "cancel", "delete", "results",
    "messages", "count_tokens", "models",
    "upload_file", "list_files", "retrieve_file", "delete_file", "download_file", "any",
]  # fmt: skip
ROUTES: tuple[str, ...] = get_args(Route)
Outcome = Literal["errored", "expired", "canceled", "refused"]
PLANNED_OUTCOMES: tuple[str, ...] = get_args(Outcome)


class PlanError(ValueError):
    """An invalid fault plan; the message names the place."""


class Action(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """Base of all actions; every action may also wait first."""

    delay: float = 0.0
    """Seconds before anything happens."""


class Delay(Action, tag="delay", kw_only=True):
    """Wait, then answer normally."""

    seconds: float = 1.0


class Unanswered(Action, kw_only=True):
    """A fault that may hide the outcome of a call from the client."""

    listed_after: float = 0.0
    """Age from which a batch of the call is listed, unless the settings have a later one."""


class Error(Unanswered, tag="error", kw_only=True):
    """Answer with an error, by default instead of processing the call."""

    processed: bool = False
    """Whether the call took effect, and is billed, nevertheless."""
    status: int = 500
    error: str | None = None
    """Error type; by default the one of the status."""
    message: str | None = None
    retry_after: float | None = None
    """Seconds, sent as the `retry-after` header."""
    details: dict[str, Any] | None = None
    json: bool = True
    """False: a plain-text body without `request-id`, as from a proxy in front."""


class Proxy413(Action, tag="proxy_413", kw_only=True):
    """Send a 413 as a proxy: an HTML body, no `request-id`; the upload was read first."""


class Early413(Action, tag="early_413", kw_only=True):
    """Send a 413 as a proxy that answers before it has read the body."""

    after_bytes: int = 0
    """Bytes of the body to read before answering."""
    drain: bool = True
    """Read and discard the rest after answering, so that the client finishes sending and sees the
    413.

    False: close at once, which looks like a broken upload to the client.
    """


class Html200(Unanswered, tag="html_200", kw_only=True):
    """Send a 200 with an HTML page, as a captive portal does."""

    processed: bool = False
    """Whether the call took effect nevertheless."""


class Redirect(Action, tag="redirect", kw_only=True):
    """Redirect the client, without processing the call."""

    location: str
    status: int = 307


class Hang(Unanswered, tag="hang", kw_only=True):
    """Read the call, stay silent, then drop the connection."""

    seconds: float = 3600.0
    processed: bool = False
    """Whether the call took effect before the silence."""


class DropBefore(Action, tag="drop_before", kw_only=True):
    """Close the connection without having processed the call."""

    after_bytes: int | None = None
    """Bytes of the body to read first; null reads all of it."""


class DropAfter(Unanswered, tag="drop_after", kw_only=True):
    """Process the call, then close the connection without an answer."""

    processed_after: float = 0.0
    """Seconds from the close to the processing, in reverse order.

    The connection closes once the body has been read, and the call is processed that much later.
    """


class UnknownFields(Action, tag="unknown_fields", kw_only=True):
    """Answer correctly, with fields in every object that no client knows yet."""


class LineAction(Action, kw_only=True):
    """A fault of the results stream, from line `after_lines` on (0: from the first)."""

    after_lines: int = 0


class CutInsideLine(LineAction, tag="cut_inside_line", kw_only=True):
    """Close the connection in the middle of the line after `after_lines` whole ones."""


class CutBetweenLines(LineAction, tag="cut_between_lines", kw_only=True):
    """End the stream after `after_lines` lines; the client sees no error."""

    framing: Literal["chunked", "close"] = "chunked"
    """`chunked`: a proper end of the body. `close`: a body without framing that ends with its
    connection (which no client can distinguish from a proper end either).
    """


class CountedLines(LineAction, kw_only=True):
    """A fault of `count` lines of the results stream."""

    count: int = 1


class DoubledLines(CountedLines, tag="doubled_lines", kw_only=True):
    """Send `count` lines twice."""


class MissingLines(CountedLines, tag="missing_lines", kw_only=True):
    """Leave `count` lines out."""


class ContradictingLines(CountedLines, tag="contradicting_lines", kw_only=True):
    """Send a second line with another outcome for `count` requests."""

    first: bool = False
    """Whether the false line comes before the true one."""
    replace: bool = False
    """Whether it replaces the true one."""
    outcome: Literal["errored", "canceled", "expired"] = "errored"
    """Outcome of a false line for a success. A false line for a failure is a success."""
    error: str = "api_error"
    """Error type of the outcome `errored`."""


class GarbageLine(CountedLines, tag="garbage_line", kw_only=True):
    """Send `count` lines that are not JSON."""

    replace: bool = False
    """Whether they replace true lines, or come between them."""


class ForeignLines(CountedLines, tag="foreign_lines", kw_only=True):
    """Send `count` lines for a `custom_id` that is not in the batch."""


AnyAction = (
    Delay | Error | Proxy413 | Early413 | Html200 | Redirect | Hang | DropBefore | DropAfter
    | UnknownFields | CutInsideLine | CutBetweenLines | DoubledLines | MissingLines
    | ContradictingLines | GarbageLine | ForeignLines
)  # fmt: skip
ACTIONS = tuple(str(each.__struct_config__.tag) for each in get_args(AnyAction))


class Selector(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Selects the calls (or requests) of a rule's scope for which it fires."""

    nth: int | list[int] | None = None
    """The first is 1."""
    every: int | None = None
    """Each `every`-th one."""
    probability: float | None = None
    times: int | None = None
    """Maximum number of times that it fires."""


class CallRule(Selector, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A rule for API calls."""

    route: Route
    action: AnyAction


class LineError(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The error of an errored request."""

    type: str = "api_error"
    message: str | None = None
    details: dict[str, Any] | None = None


class RequestRule(Selector, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A rule for single requests: those that match `contains` and `custom_id` (by default all)."""

    outcome: Outcome
    error: LineError | None = None
    """For `errored`; an `api_error` by default."""
    contains: str | None = None
    """A part of the params' text."""
    custom_id: str | None = None
    """A pattern as in file names: `*-0007`."""
    once: bool = False
    """Fire only the first time that equal params are processed."""


class Plan(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The whole plan, as it is written."""

    seed: int = 0
    rules: list[CallRule] = []
    requests: list[RequestRule] = []
    workspaces: dict[str, str] | None = None
    """API key to workspace id; replaces the settings' own while the plan is in force."""
    spared_keys: list[str] = []
    """API keys whose calls no rule counts or affects: for a second client without faults."""
    workspace_header: bool | None = None
    """Whether answers carry `anthropic-workspace-id`; replaces the settings' own."""
    rate_limits: RateLimits | None = None
    """Limits of each workspace's live messages, with their headers; without them there are none."""


class Match:
    """Counters of one rule: calls seen, and times fired."""

    def __init__(self, selector: Selector, seed: str) -> None:
        self.selector = selector
        self.seen: int = 0
        self.fired: int = 0
        self._random = random.Random(seed)

    def selects(self) -> bool:
        """Count one more call, and return whether the rule applies to it."""
        selector = self.selector
        self.seen += 1
        drawn = selector.probability is None or self._random.random() < selector.probability
        nth = selector.nth
        return not (
            not drawn
            or (nth is not None and self.seen not in (nth if isinstance(nth, list) else [nth]))
            or (selector.every is not None and self.seen % selector.every)
            or (selector.times is not None and self.fired >= selector.times)
        )


class FaultPlan:
    """A plan in force, with its counters."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan: Plan = plan or Plan()
        seed = self.plan.seed
        self._calls = [
            (rule, Match(rule, f"{seed}:rule:{position}"))
            for position, rule in enumerate(self.plan.rules)
        ]
        self._requests = [
            (rule, Match(rule, f"{seed}:request:{position}"))
            for position, rule in enumerate(self.plan.requests)
        ]
        self._once: set[tuple[int, str]] = set()
        self._meters: dict[str, Meter] = {}

    @property
    def about_requests(self) -> bool:
        """Return whether any rule applies to single requests."""
        return bool(self._requests)

    def meter(self, workspace: str, now: float) -> Meter | None:
        """Return the meter of a workspace's live messages, or None without limits."""
        if self.plan.rate_limits is None:
            return None
        if workspace not in self._meters:
            self._meters[workspace] = Meter(self.plan.rate_limits, now)
        return self._meters[workspace]

    def action(self, route: str, key: str | None = None) -> AnyAction | None:
        """Return the action for this call of `route`; every rule for the route counts it."""
        if key is not None and key in self.plan.spared_keys:
            return None
        chosen: AnyAction | None = None
        for rule, match in self._calls:
            if rule.route in (route, "any") and match.selects() and chosen is None:
                match.fired += 1
                chosen = rule.action
        return chosen

    def take_back(self, action: AnyAction) -> None:
        """Do not count an action as fired: the call was refused before it could follow."""
        for rule, match in self._calls:
            if rule.action is action:
                match.fired -= 1

    def ending(self, custom_id: str | None, text: str, identity: str) -> RequestRule | None:
        """Return the rule for a request's ending; `identity` is the SHA-256 of its params."""
        chosen: RequestRule | None = None
        for position, (rule, match) in enumerate(self._requests):
            if rule.contains is not None and not _contains(text, rule.contains):
                continue
            if rule.custom_id is not None and not (
                custom_id is not None and fnmatchcase(custom_id, rule.custom_id)
            ):
                continue
            if rule.once and (position, identity) in self._once:
                continue
            if match.selects() and chosen is None:
                match.fired += 1
                self._once.add((position, identity))
                chosen = rule
        return chosen

    def as_written(self) -> dict[str, Any]:
        """Return the plan as JSON values, API keys shortened to their last four characters."""
        plan = msgspec.to_builtins(self.plan)
        if self.plan.spared_keys:
            plan["spared_keys"] = [f"…{key[-4:]}" for key in self.plan.spared_keys]
        if self.plan.workspaces:
            plan["workspaces"] = {
                f"…{key[-4:]}": name for key, name in self.plan.workspaces.items()
            }
        return plan

    def counters(self) -> dict[str, list[dict[str, int]]]:
        """Return for each rule, in the plan's order, calls seen and times fired."""
        return {
            name: [{"seen": match.seen, "fired": match.fired} for _, match in matches]
            for name, matches in (("rules", self._calls), ("requests", self._requests))
        }


def _contains(text: str, part: str) -> bool:
    # Params are matched as the JSON in which they came; a client may or may not have escaped the
    # non-ASCII characters.
    return any(
        json.dumps(part, ensure_ascii=ascii_only)[1:-1] in text for ascii_only in (False, True)
    )


def load_plan(plan: Mapping[str, Any] | bytes | str) -> FaultPlan:
    """Load a plan from JSON text or from the decoded object; raises `PlanError`."""
    try:
        if isinstance(plan, (bytes, str)):
            decoded = msgspec.json.decode(plan, type=Plan)
        else:
            decoded = msgspec.convert(dict(plan), type=Plan)
    except msgspec.ValidationError as error:
        message = str(error)
        if ".action.type" in message:
            message += f"; the actions are {', '.join(ACTIONS)}"
        elif ".route" in message:
            message += f"; the routes are {', '.join(ROUTES)}"
        elif ".outcome" in message:
            message += f"; the outcomes are {', '.join(PLANNED_OUTCOMES)}"
        raise PlanError(f"fault plan: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"fault plan: not valid JSON: {error}") from None
    _check(decoded)
    return FaultPlan(decoded)


_NOT_NEGATIVE = (
    "delay", "seconds", "after_lines", "count", "after_bytes", "retry_after", "listed_after",
    "processed_after",
)  # fmt: skip


def _check(plan: Plan) -> None:
    limits = plan.rate_limits
    if limits is not None and any(
        each is not None and not LEAST_LIMIT <= each <= MOST_LIMIT
        for each in (limits.requests, limits.input_tokens, limits.output_tokens)
    ):
        raise PlanError(f"fault plan: rate_limits must be from {LEAST_LIMIT} to {MOST_LIMIT:.0f}")
    for name in ("requests_left", "input_tokens_left", "output_tokens_left"):
        left = getattr(limits, name, None)
        if left is not None and not left >= 0:
            raise PlanError(f"fault plan: rate_limits: {name} must not be negative")
    for position, rule in enumerate(plan.rules):
        where = f"fault plan: rules[{position}]"
        _check_selector(rule, where)
        action = rule.action
        if isinstance(action, LineAction) and rule.route != "results":
            raise PlanError(f"{where}: {_tag(action)} is only for the route results")
        if isinstance(action, Error) and not 400 <= action.status <= 599:
            raise PlanError(f"{where}: status must be from 400 to 599, not {action.status}")
        if isinstance(action, Redirect) and not 300 <= action.status <= 399:
            raise PlanError(f"{where}: status must be from 300 to 399, not {action.status}")
        if isinstance(action, Redirect) and not (
            action.location.isascii() and action.location.isprintable()
        ):
            raise PlanError(f"{where}: location must be printable ASCII, as a header is")
        for name in _NOT_NEGATIVE:
            value = getattr(action, name, None)
            if value is not None and value < 0:
                raise PlanError(f"{where}: {name} must not be negative")
    for position, rule in enumerate(plan.requests):
        where = f"fault plan: requests[{position}]"
        _check_selector(rule, where)
        if rule.error is not None:
            if rule.outcome != "errored":
                raise PlanError(f"{where}: error is only for the outcome errored")
            if rule.error.type not in STATUS_OF:
                raise PlanError(
                    f"{where}: no error type {rule.error.type!r}; there are {', '.join(STATUS_OF)}"
                )


def _check_selector(selector: Selector, where: str) -> None:
    nth = selector.nth if isinstance(selector.nth, list) else [selector.nth or 1]
    if any(each < 1 for each in nth) or selector.nth == 0:
        raise PlanError(f"{where}: nth counts from 1")
    if selector.every is not None and selector.every < 1:
        raise PlanError(f"{where}: every must be 1 or more")
    if selector.probability is not None and not 0 <= selector.probability <= 1:
        raise PlanError(f"{where}: probability must be from 0 to 1")
    if selector.times is not None and selector.times < 0:
        raise PlanError(f"{where}: times must not be negative")


def _tag(action: AnyAction) -> str:
    return str(action.__struct_config__.tag)
