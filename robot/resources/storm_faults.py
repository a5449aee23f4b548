"""What a storm is made of: drawn from its family and its seed, and from nothing else.

A seed decides the inputs, the sandbox's settings and fault plan, how and when each process dies,
and what a stranger does in the same workspace. What it cannot decide is how a machine interleaves
processes; a storm that fails is the same storm when it is played again, not the same history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from claude_batch.core.crash_points import CrashPoint

Json = dict[str, Any]
Family = Literal["run", "calls", "cron", "pair", "cancel", "talks", "haste"]
FAMILIES: tuple[Family, ...] = ("run", "calls", "cron", "pair", "cancel", "talks", "haste")
"""`run`: one command. `calls`: a program that awaits single calls. `cron`: `submit`, then `advance`
again and again. `pair`: two of these on one ledger. `cancel`: a run that is cancelled midway.
`talks`: any of the first four, whose requests are conversations with tools. `haste`: the same
without tools, asked live, or in batches that a deadline cancels."""

STRANGERS_KEY = "sk-ant-stranger"

RESERVED = 3_500_000
"""Nano-dollars, a little more than a request of a storm reserves."""

ELSEWHERE = "http://127.0.0.1:9/elsewhere"
"""Where redirects point: nobody listens there, and nobody may go there."""


@dataclass(frozen=True)
class Death:
    """How one process ends before its time, or (`freeze`) stands still for a while."""

    kind: Literal["point", "kill", "term", "interrupt", "freeze"]
    point: str = ""
    after: float = 0.0
    """Seconds after its start; of a `point`, the longest that it is waited for."""


@dataclass(frozen=True)
class Role:
    """One command (or program) that is started again until its output is there."""

    name: str
    kind: Literal["run", "calls", "cron"]
    prompts: list[str]
    deaths: list[Death]
    keys: bool = True
    """Whether single calls have keys; without, a call is known by its bytes."""
    cancel: str = ""
    """`between` two processes, `during` the first that says its run's id, or not at all."""


@dataclass(frozen=True)
class Stranger:
    """What somebody else does in the workspace, so many seconds after the storm has begun."""

    at: float
    deed: Literal["create", "delete"]
    count: int
    """Requests of the batch that is created; batches that are deleted."""


@dataclass(frozen=True)
class Storm:
    """All that a seed decides."""

    family: Family
    seed: int
    sandbox: Json
    plan: Json
    variables: dict[str, str]
    """The environment of its processes, beside what all storms have in common."""
    roles: list[Role]
    strangers: list[Stranger] = field(default_factory=list)
    budget: int = 0
    """What all of it may cost, in nano-dollars, until it is raised; 0 for no budget."""

    @property
    def missing_after(self) -> float:
        """Seconds for which results must be missing before they are lost."""
        return float(self.variables.get("CLAUDE_BATCH_MISSING_AFTER", "86400s").removesuffix("s"))


def draw(family: Family, seed: int) -> Storm:
    """The storm of this family and seed."""
    return _Draw(family, seed).storm()


def drawn_for(breakage: str) -> Storm:
    """A short storm in which a spoiled build (see `mortal.BREAKAGES`) shows what it does."""
    rules: dict[str, Json] = {
        "sends-again": {"route": "create", "nth": 1, "action": {"type": "drop_after"}},
        "fetches-once": {
            "route": "results",
            "nth": 1,
            "action": {"type": "cut_between_lines", "after_lines": 3},
        },
        "calls-after-errors": {
            "route": "messages",
            "nth": 1,
            "action": {"type": "error", "status": 500, "processed": True},
        },
    }
    family: Family = "run"
    ending = ""
    deaths: list[Death] = []
    haste: dict[str, str] = {}
    if breakage in _TOLD_BY:
        family, ending = "talks", " [[sandbox:tools]]"
        deaths = [Death("point", _TOLD_BY[breakage], 60.0)]
    if breakage in ("calls-again", "calls-after-errors"):
        family, haste = "haste", {"CLAUDE_BATCH_MODE": "live"}
    if breakage == "calls-again":
        deaths = [Death("point", f"{CrashPoint.AFTER_LIVE_ANSWER}:1", 60.0)]
    return Storm(
        family=family,
        seed=0,
        sandbox={"latency": 0.1},
        plan={"rules": [rules[breakage]] if breakage in rules else []},
        variables={
            "CLAUDE_BATCH_SETTLING": "1s",
            "CLAUDE_BATCH_POLL_INTERVAL": "50ms",
            **haste,
        },
        roles=[
            Role("one", "run", [f"Storm 0 prompt {at:03d}.{ending}" for at in range(1, 9)], deaths)
        ],
    )


_TOLD_BY = {
    "runs-tools-again": f"{CrashPoint.AFTER_TOOL_RUN}:1",
    "notes-tools-late": f"{CrashPoint.AFTER_TOOL_RUN}:1",
    # The first of those that may be repeated, which the second turns call.
    "repeats-nothing": f"{CrashPoint.AFTER_TOOL_RUN}:9",
}
"""Spoiled builds that only a death in a conversation shows: where it comes."""


class _Draw:
    def __init__(self, family: Family, seed: int) -> None:
        self.family: Family = family
        self.seed = seed
        self.random = random.Random(f"{family}:{seed}")
        self.settling = self.random.choice((2.0, 3.0))
        # Server time has whole seconds, so a second of settling may be lost to them.
        self.late = self.settling - 1.5
        self.lists_late = False
        self.max_requests = self.random.randint(3, 20)
        self.deleting = self.random.random() < 0.12
        self.alone = not self.deleting and self.random.random() < 0.15
        self.patience = self.random.random() < 0.1

    def storm(self) -> Storm:
        sandbox = self._sandbox()
        self.lists_late = sandbox["listed_after"] > 0
        return Storm(
            family=self.family,
            seed=self.seed,
            sandbox=sandbox,
            plan=self._plan(),
            variables=self._variables(),
            roles=self._roles(),
            strangers=self._strangers(),
            budget=self._budget(),
        )

    def _budget(self) -> int:
        # Drawn by itself, so that a storm without a budget is the one that it was before.
        chance = random.Random(f"budget:{self.family}:{self.seed}")
        # A live call reserves twice as much, and what can never fit is refused.
        least = 2 if self.family == "haste" else 1
        return chance.randint(least, 9) * RESERVED if chance.random() < 0.3 else 0

    def _chance(self, of: float) -> bool:
        return self.random.random() < of

    def _sandbox(self) -> Json:
        return {
            "latency": self.random.choice(
                (0.3, 3.0, 8.0, 20.0) if self.family == "haste" else (0.05, 0.3, 0.3, 0.8)
            ),
            **(
                {"live_latency": self.random.choice((0.0, 0.1, 0.4))}
                if self.family == "haste"
                else {}
            ),
            "cancel_latency": self.random.choice((0.05, 0.5)),
            "counts_after": 0.7 if self._chance(0.2) else 0.0,
            "listed_after": self.late if self._chance(0.15) else 0.0,
            "queue_limit": self.max_requests * 2 if self._chance(0.15) else 500_000,
            # Without a name, only a batch that the ledger sent before shows that a deleted one is
            # gone. A stranger may delete the first one, and the storm would wait for 29 days.
            "workspace_header": not self._chance(0.1) or self.deleting,
            # The server's clock is the one that counts, however wrong it is.
            "clock_offset": self.random.choice((0.0, 0.0, 0.0, -90.0, 3600.0, -1e6, 1e6)),
            "seed": self.seed,
        }

    def _variables(self) -> dict[str, str]:
        variables = {
            "CLAUDE_BATCH_SETTLING": f"{self.settling:g}s",
            "CLAUDE_BATCH_LOOKBACK": "1m",
            "CLAUDE_BATCH_PROBE_INTERVAL": self.random.choice(("300ms", "1s", "5m")),
            "CLAUDE_BATCH_POLL_INTERVAL": "50ms",
            "CLAUDE_BATCH_MAX_POLL_INTERVAL": self.random.choice(("100ms", "500ms")),
            "CLAUDE_BATCH_LINGER": "100ms",
            "CLAUDE_BATCH_MAX_REQUESTS": str(self.max_requests),
        }
        if self.family == "talks":
            variables["CLAUDE_BATCH_TURN_LINGER"] = self.random.choice(("50ms", "300ms", "1s"))
            # `resume` and `advance` are given no actor file.
            variables["CLAUDE_BATCH_ALLOW_TOOLS_FROM_LEDGER"] = "true"
        if self.family == "haste":
            variables.update(self._haste())
        if self.deleting:
            variables["CLAUDE_BATCH_NOT_FOUND_AFTER"] = "1500ms"
        # Drawn by itself, so that all else of a storm is what it was before.
        patience = random.Random(f"missing:{self.family}:{self.seed}")
        if patience.random() < 0.6:
            variables["CLAUDE_BATCH_MISSING_AFTER"] = patience.choice(("0s", "1s", "3s"))
        if self.alone:
            variables["CLAUDE_BATCH_EXCLUSIVE_WORKSPACE"] = "true"
        if self.patience:
            variables["CLAUDE_BATCH_MAX_WAIT"] = "3s"
        return variables

    def _haste(self) -> dict[str, str]:
        """What has requests asked live: at once, where they are few, or near a deadline."""
        concurrency = {"CLAUDE_BATCH_LIVE_CONCURRENCY": str(self.random.choice((1, 2, 4, 8)))}
        mode = self.random.choice(("live", "auto", "batch", "batch", "batch"))
        if mode != "batch":
            most = str(self.random.choice((5, 10, 20)))
            return {**concurrency, "CLAUDE_BATCH_MODE": mode, "CLAUDE_BATCH_AUTO_THRESHOLD": most}
        until = self.random.uniform(3.0, 15.0)
        return {
            **concurrency,
            "CLAUDE_BATCH_DEADLINE": f"{until:.1f}s",
            "CLAUDE_BATCH_DEADLINE_MARGIN": f"{until * self.random.uniform(0.2, 0.9):.1f}s",
            "CLAUDE_BATCH_FALLBACK": self.random.choice(("live", "live", "live", "none")),
        }

    # Who asks, and how they die

    def _roles(self) -> list[Role]:
        if self.family == "haste":
            kinds = self.random.choice((("run",), ("run",), ("cron",), ("calls",), ("run", "calls"),
                                        ("run", "cron")))  # fmt: skip
            # With fewer names than kinds there is one role.
            return [
                self._role(name, kind) for name, kind in zip(("one", "two"), kinds, strict=False)
            ]
        if self.family == "pair":
            kinds = self.random.choice((("run", "run"), ("calls", "cron"), ("run", "cron"),
                                        ("run", "calls")))  # fmt: skip
            return [
                self._role(name, kind) for name, kind in zip(("one", "two"), kinds, strict=True)
            ]
        if self.family == "cancel":
            kind = self.random.choice(("run", "cron"))
            cancel = self.random.choice(("between", "during"))
            return [self._role("one", kind, cancel=cancel)]
        if self.family == "talks":
            kinds = self.random.choice((("run",), ("run",), ("cron",), ("calls",), ("run", "run"),
                                        ("run", "cron"), ("cron", "calls")))  # fmt: skip
            chance = random.Random(f"cancel:{self.family}:{self.seed}")
            if kinds in (("run",), ("cron",)) and chance.random() < 0.3:
                cancel = chance.choice(("between", "during"))
                return [self._role("one", kinds[0], cancel=cancel)]
            # With fewer names than kinds there is one role.
            return [
                self._role(name, kind) for name, kind in zip(("one", "two"), kinds, strict=False)
            ]
        return [self._role("one", self.family)]

    def _role(self, name: str, kind: Any, *, cancel: str = "") -> Role:
        most = self.max_requests * 6 if self.family != "pair" else self.max_requests * 3
        # A conversation takes a few batches, one after another.
        most = min(60, most) if self.family != "talks" else min(16, self.max_requests * 2)
        count = self.random.randint(5, max(5, most))
        prompts = [f"Storm {self.seed} {name} prompt {at:03d}." for at in range(1, count + 1)]
        if self.family == "talks":
            prompts = [prompt + self.random.choice(_TURNS) for prompt in prompts]
        deaths = [self._death(kind) for _ in range(self.random.choice((0, 1, 2, 2, 3, 3, 4, 5)))]
        keys = self._chance(0.5) or self.family == "haste"
        return Role(name, kind, prompts, deaths, keys=keys, cancel=cancel)

    def _death(self, kind: str) -> Death:
        if self.family == "talks" and self._chance(0.6):
            # Tools run side by side, so that it matters for the how-manieth of them.
            number = self.random.choice((1, 1, 2, 3, 5, 8, 13))
            place = f"{self.random.choice(_TALKING)}:{number}"
            return Death("point", place, self.random.uniform(4.0, 9.0))
        if self.family == "haste" and self._chance(0.6):
            place = f"{self.random.choice(_HASTENING)}:{self.random.choice((1, 1, 2, 3, 5))}"
            return Death("point", place, self.random.uniform(4.0, 12.0))
        if self._chance(0.65):
            point = self.random.choice(_POINTS[kind])
            number = self.random.choice((1, 1, 1, 2, 2, 3, 5))
            return Death("point", f"{point}:{number}", self.random.uniform(3.0, 7.0))
        how: Any = self.random.choice(("kill", "kill", "kill", "term", "interrupt", "freeze"))
        # Before a second has passed a process has hardly been imported.
        return Death(how, after=self.random.uniform(0.8, 4.5))

    def _strangers(self) -> list[Stranger]:
        deeds: list[Stranger] = []
        if self.deleting:
            at = self.random.uniform(0.5, 3.0)
            # A 404 counts only while another batch of the workspace can be seen.
            deeds.append(Stranger(0.0, "create", 1))
            deeds.append(Stranger(at, "delete", self.random.randint(1, 3)))
        if not self.alone and self._chance(0.7):
            for _ in range(self.random.randint(1, 6)):
                count = self.random.choice((self.max_requests, self.max_requests, 1, 7))
                deeds.append(Stranger(self.random.uniform(0.0, 6.0), "create", count))
        return sorted(deeds, key=lambda deed: deed.at)

    # What goes wrong

    def _plan(self) -> Json:
        rules: list[Json] = []
        live = ("messages",) * 9 if self.family == "haste" else ()
        for _ in range(self.random.choice((0, 1, 1, 2, 3, 4, 6, 8, 12))):
            route = self.random.choice(("create",) * 5 + ("results",) * 3 + ("list", "list")
                                       + ("retrieve", "cancel", "any") + live)  # fmt: skip
            rules.append({"route": route, **self._when(), "action": self._action(route)})
        if self._chance(0.15):
            rules.append({"route": "results", "times": 9, "action": self._lasting_gap()})
        requests = [self._ending() for _ in range(self.random.choice((0, 0, 1, 2, 4)))]
        plan = {"seed": self.seed, "rules": rules, "requests": requests}
        # The stranger is in good health: all that goes wrong happens to us.
        return {**plan, "spared_keys": [STRANGERS_KEY]}

    def _when(self) -> Json:
        """Selectors under which a rule fires a few times and no more."""
        times = self.random.choice((1, 1, 2, 2, 3, 4))
        if self._chance(0.5):
            # Later turns have their troubles, too.
            talks = self.family == "talks"
            first = self.random.choice((1, 2, 3, 4, 6) if talks else (1, 1, 1, 2, 3))
            return {"nth": list(range(first, first + times))}
        return {"probability": self.random.choice((0.2, 0.4, 0.7)), "times": times}

    def _action(self, route: str) -> Json:
        if route == "any":
            return self.random.choice(({"type": "unknown_fields"}, self._delay()))
        kinds: list[Callable[[], Json]] = [self._error, self._broken, self._page, self._delay]
        if route == "create":
            kinds = [*_twice(self._refusal), *_twice(self._unanswered), self._unanswered, *kinds]
        if route == "messages":
            kinds = [*_twice(self._error), *_twice(self._broken), *kinds, self._account]
            kinds += _twice(self._hidden)
        if route == "results":
            kinds = [*_twice(self._lines), *_twice(self._lines), *kinds]
        return self.random.choice(kinds)()

    def _error(self) -> Json:
        statuses = (408, 409, 429, 500, 502, 504, 529)
        # A 404 of a batch that a stranger may delete would be taken for its end.
        statuses += () if self.deleting else (404,)
        error: Json = {"type": "error", "status": self.random.choice(statuses)}
        if self._chance(0.5):
            error["retry_after"] = self.random.choice((0.05, 0.4))
        if self._chance(0.1):
            error["json"] = False
        return error

    def _hidden(self) -> Json:
        """A call that was processed and billed, and answered with an error."""
        status = self.random.choice((408, 409, 500, 502, 503, 504))
        return {"type": "error", "status": status, "processed": True}

    def _account(self) -> Json:
        """A live call at which the account is refused."""
        return {"type": "error", "status": self.random.choice((401, 402, 403))}

    def _refusal(self) -> Json:
        """A definite no to a create call."""
        place = self.random.randint(0, self.max_requests)
        credit = "Your credit balance is too low to access the Anthropic API."
        return self.random.choice(
            (
                {"type": "error", "status": 400, "message": f"requests.{place}: no such thing"},
                {"type": "error", "status": 400, "message": "one of them is wrong"},
                {"type": "error", "status": 400, "message": credit},
                {"type": "error", "status": 401},
                {"type": "error", "status": 402},
                {"type": "error", "status": 403},
                {"type": "error", "status": 404},
                {"type": "error", "status": 413},
                {"type": "error", "status": 429, "retry_after": 0.1},
                {"type": "error", "status": 529, "retry_after": 0.1},
                {"type": "error", "status": 529},
                {"type": "proxy_413"},
                {"type": "early_413", "drain": self._chance(0.5)},
                {"type": "redirect", "location": ELSEWHERE},
                {"type": "drop_before", "after_bytes": self.random.choice((0, 200))},
            )
        )

    def _unanswered(self) -> Json:
        """A create call of which the client cannot know what became of it."""
        late = self.late if self._chance(0.4) else 0.0
        # What is taken late, and besides listed late, comes after settling: a gap that stays open.
        taken = 0.0 if self.lists_late else late
        return self.random.choice(
            (
                {"type": "drop_after", "listed_after": late},
                {"type": "drop_after", "processed_after": taken},
                {"type": "drop_before"},
                {"type": "hang", "seconds": 0.4, "processed": True, "listed_after": late},
                {"type": "hang", "seconds": 0.4},
                {"type": "html_200", "processed": True, "listed_after": late},
                {"type": "html_200"},
                # Half of the storms; nothing is drawn for it, so that seeds keep their storms.
                {
                    "type": "error",
                    "status": 500,
                    "processed": self.seed % 2 == 1,
                    "listed_after": late,
                },
                {"type": "error", "status": 429, "json": False},
            )
        )

    def _broken(self) -> Json:
        return self.random.choice(
            (
                {"type": "drop_before"},
                {"type": "drop_after"},
                {"type": "hang", "seconds": 0.3},
                # Only the process's death, or the calm after the storm, ends this one.
                {"type": "hang", "seconds": 5.0},
            )
        )

    def _page(self) -> Json:
        return self.random.choice(
            (
                {"type": "html_200"},
                {"type": "redirect", "location": ELSEWHERE},
                {"type": "unknown_fields"},
            )
        )

    def _delay(self) -> Json:
        return {"type": "delay", "seconds": self.random.choice((0.1, min(0.5, self.late)))}

    def _lines(self) -> Json:
        place = {"after_lines": self.random.randint(0, self.max_requests)}
        count = {"count": self.random.randint(1, 4)}
        return {
            **self.random.choice(
                (
                    {"type": "cut_inside_line"},
                    {"type": "cut_between_lines", "framing": self.random.choice(("chunked",
                                                                                 "close"))},
                    {"type": "doubled_lines", **count},
                    {"type": "missing_lines", **count},
                    {"type": "contradicting_lines", "first": self._chance(0.5), **count},
                    {"type": "garbage_line", "replace": self._chance(0.5), **count},
                    {"type": "foreign_lines", **count},
                )
            ),
            **place,
        }  # fmt: skip

    def _lasting_gap(self) -> Json:
        """Lines that stay missing however often the results are fetched."""
        place = self.random.randint(0, self.max_requests // 2)
        kind: Json = self.random.choice(
            ({"type": "missing_lines"}, {"type": "garbage_line", "replace": True})
        )
        return {**kind, "after_lines": place, "count": self.random.randint(1, 3)}

    def _ending(self) -> Json:
        """How single requests end."""
        which: Json = {"contains": f"prompt {self.random.randint(1, 40):03d}."}
        if self._chance(0.4):
            which = {"probability": 0.2, "times": self.random.randint(1, 12)}
        if self._chance(0.6):
            which["once"] = True
        ending: Json = self.random.choice(
            (
                *(_errored(kind) for kind in PASSING),
                _errored("invalid_request_error"),
                _errored("permission_error"),
                {"outcome": "expired"},
                {"outcome": "expired"},
                {"outcome": "refused"},
                {"outcome": "canceled"},
                {**_errored("billing_error"), "times": 3},
                {**_errored("authentication_error"), "times": 2},
            )
        )
        return {**which, **ending}


PASSING = ("overloaded_error", "api_error", "timeout_error", "rate_limit_error")
"""Error types of a line after which a request is tried again."""


def _errored(kind: str) -> Json:
    return {"outcome": "errored", "error": {"type": kind, "message": f"{kind} of the storm"}}


def _twice(kind: Callable[[], Json]) -> tuple[Callable[[], Json], Callable[[], Json]]:
    return kind, kind


_SENDING = tuple(
    str(point)
    for point in CrashPoint
    if point.name
    not in (
        "DURING_STORE_CHUNK", "BEFORE_STORED", "AFTER_STORED", "AFTER_CALLS_STORED",
        "BEFORE_DELIVERY", "DURING_DELIVERY", "AFTER_RENAME_BEFORE_DELIVERED",
        "DURING_MIGRATION", "DURING_PRUNING", "BEFORE_FILES_DELETED", "AFTER_FILE_UPLOADED",
        "DURING_ARRIVAL", "AFTER_ARRIVING", "AFTER_MOVED",
        # No storm has a customer who is refused.
        "BETWEEN_REFUSED",
        # Only haste calls live.
        "AFTER_LIVE_CLAIM", "AFTER_LIVE_ANSWER", "AFTER_LIVE_RECORD", "AFTER_MARGIN",
    )
)  # fmt: skip
_STORING = tuple(
    str(point)
    for point in (
        CrashPoint.DURING_STORE_CHUNK, CrashPoint.BEFORE_STORED, CrashPoint.AFTER_STORED,
    )
)  # fmt: skip
_TALKING = tuple(
    str(point)
    for point in (
        *(CrashPoint.AFTER_TOOL_STARTED, CrashPoint.AFTER_TOOL_RUN) * 2,
        CrashPoint.AFTER_TOOL_RECORDED, CrashPoint.BEFORE_NEXT_TURN, CrashPoint.AFTER_NEXT_TURN,
    )
)  # fmt: skip
_HASTENING = tuple(
    str(point)
    for point in (
        CrashPoint.AFTER_LIVE_CLAIM, CrashPoint.AFTER_LIVE_ANSWER, CrashPoint.AFTER_LIVE_RECORD,
        CrashPoint.AFTER_MARGIN,
    )
)  # fmt: skip
_TURNS = (
    "",
    *(" [[sandbox:tools]]",) * 4,
    *(" [[sandbox:tools:all]]",) * 2,
    " [[sandbox:pause]] [[sandbox:tools]]",
    " [[sandbox:pause:2]] [[sandbox:tools:all]]",
)
"""What prompts of conversations end with: how the sandbox's model is to take its turns."""
_DELIVERY = tuple(
    str(point)
    for point in (
        CrashPoint.BEFORE_DELIVERY, CrashPoint.DURING_DELIVERY,
        CrashPoint.AFTER_RENAME_BEFORE_DELIVERED,
    )
)  # fmt: skip
_POINTS: dict[str, tuple[str, ...]] = {
    # Around the POST most can go wrong.
    "run": (*_STORING, *_SENDING, *_DELIVERY, *(_SENDING[2:9] * 2)),
    "cron": (*_STORING, *_SENDING, *_DELIVERY, *(_SENDING[2:9] * 2)),
    "calls": (str(CrashPoint.AFTER_CALLS_STORED), *_SENDING, *(_SENDING[2:9] * 2)),
}
