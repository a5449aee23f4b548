"""Steps of the model of queues in `benchmarks`."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from typing import Any

from pages import ROOT, agreement
from tables import rule

sys.path.append(str(ROOT / "benchmarks"))
import scale_model
from queue_model import DAY, Api, Fleet, Load, Model, Outcome

PAGE = ROOT / "docs/explanation/scale.md"


class Sound:
    """Checks a simulation after each event."""

    def __init__(self, load: Load, api: Api, fleet: Fleet, seed: int) -> None:
        self.largest = self.events = 0
        self._at_api = 0
        self.outcome = Model(load, api, fleet, seed, self.check).run()
        self.check_little()

    def check(self, model: Model) -> None:
        stages = (model.waiting, model.at_api, model.collecting)
        assert all(stage.count >= 0 for stage in stages)
        assert model.arrived == model.answered + sum(stage.count for stage in stages)
        assert model.at_api.count <= model.api.queue
        self.largest = max(self.largest, model.at_api.count - self._at_api)
        self._at_api = model.at_api.count
        self.events += 1

    def check_little(self) -> None:
        seen = self.outcome
        stages = (seen.waiting, seen.at_api, seen.collecting)
        whole = sum(stage.integral for stage in stages)
        assert math.isclose(whole, seen.time_in_system, rel_tol=1e-9), (whole, seen.time_in_system)
        assert math.isclose(seen.at_api.integral, seen.time_at_api, rel_tol=1e-9)
        assert sum(seen.latencies.values()) == seen.answered
        assert max(seen.calls.values(), default=0) <= seen.api.calls_a_minute


@rule("a simulated load is sound")
def _(month: float, turnaround: float, queue: int, batch: int, seed: int) -> dict[str, Any]:
    load = Load(month, turnaround, days=1)
    sound = Sound(load, Api(queue=queue, batch_requests=batch), Fleet(), seed)
    return {"sound": sound.largest <= batch, "most": str(sound.outcome.at_api.most)}


@rule("random loads are sound")
def _(loads: int, seed: int) -> dict[str, bool]:
    chosen = random.Random(seed)
    answered = expired = 0
    for seed in range(loads):
        most = chosen.choice((100, 5_000, 100_000))
        api = Api(
            queue=most * chosen.randint(1, 5),
            batch_requests=most,
            expires=chosen.choice((3_600.0, DAY)),
        )
        load = Load(
            10 ** chosen.uniform(4, 8),
            10 ** chosen.uniform(1, 4.5),
            swing=chosen.uniform(0, 1),
            linger=chosen.uniform(0, 300),
            days=0.5,
        )
        fleet = Fleet(workers=chosen.randint(1, 4), results_a_second=10 ** chosen.uniform(1, 5))
        seen = Sound(load, api, fleet, seed).outcome
        answered += seen.answered
        expired += seen.expired
    return {"some_are_answered": answered > 0, "some_expire": expired > 0}


@rule("simulated loads come near the law")
def _(month: float, turnaround: float) -> dict[str, Any]:
    seen = scale_model.simulate(month, turnaround, 2, 17)
    predicted = seen.load.rate * turnaround
    # At first nothing is there: the last two days are nearly steady.
    return {"predicted": round(predicted), "near": abs(mean(seen) / predicted - 1) < 0.05}


def mean(seen: Outcome) -> float:
    return seen.at_api.integral / seen.seconds


@rule("a simulated load packs")
def _(month: float, bytes: int) -> dict[str, Any]:
    load = replace(Load(month, 60), request_bytes=bytes, days=1)
    sound = Sound(load, Api(queue=10_000_000), Fleet(), 17)
    return {"largest": sound.largest, "batches": sound.outcome.batches}


@agreement("the tables of the model of scale")
def tables_of_scale() -> None:
    page = PAGE.read_text("utf-8")
    for name, rows in scale_model.tables(3, 17):
        shown = page.partition(f"<!-- {name} -->\n\n")[2].partition("\n<!-- end -->")[0]
        assert shown == scale_model.markdown(rows), f"run benchmarks/scale_model.py --page {PAGE}"
