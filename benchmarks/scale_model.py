"""From 100,000 to a billion requests a month: what waits where, by a simulation.

    python benchmarks/scale_model.py [--seed 17] [--days 3] [--page FILE] [--picture FILE]

Prints the tables of `docs/explanation/scale.md`. `--page docs/explanation/scale.md` writes them
there, and `--picture docs/pictures/scale.svg` draws them, which needs matplotlib. The same
seed gives the same numbers. `queue_model.py` is the model itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from queue_model import DAY, HOUR, MINUTE, MONTH, TIERS, Load, Model, Outcome

REQUESTS = (1e5, 1e6, 1e7, 1e8, 3e8, 1e9)
TURNAROUNDS = (10 * MINUTE, 20 * MINUTE, HOUR, 4 * HOUR)
COLUMNS = (
    "requests a month",
    "turnaround",
    "keeps up",
    "half answered in",
    "95 % in",
    "at the API, mean",
    "most",
    "backlog, most",
    "batches a day",
    "calls a minute, most",
)
PICTURE_POINTS = 19
LEDGER_BYTES = 2_100
"""That a small request takes in PostgreSQL, measured; see docs/explanation/scale.md."""


def main() -> None:
    """Simulate each load, and print, write or draw what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=17, help="default: %(default)s")
    parser.add_argument("--days", type=float, default=3, help="simulated; default: %(default)s")
    parser.add_argument("--page", type=Path, help="replace the tables in this Markdown file")
    parser.add_argument("--picture", type=Path, help="draw this file (SVG or PNG)")
    options = parser.parse_args()
    for name, rows in tables(options.days, options.seed):
        text = markdown(rows)
        print(text)
        if options.page is not None:
            replace(options.page, name, text)
    if options.picture is not None:
        draw(options.picture, options.days, options.seed)


def simulate(requests: float, turnaround: float, days: float, seed: int) -> Outcome:
    """One load, of the highest tier."""
    return Model(Load(requests, turnaround, days=days), seed=seed).run()


def tables(days: float, seed: int) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """The page's tables by name; the first row of each names its columns."""
    yield "capacity", list(capacity())
    seen = [[simulate(each, takes, days, seed) for takes in TURNAROUNDS] for each in REQUESTS]
    yield "model", [COLUMNS, *(row(each) for outcomes in seen for each in outcomes)]
    # All sizes keep up at the shortest turnaround.
    yield "machines", list(machines([outcomes[0] for outcomes in seen]))


def capacity() -> Iterator[Sequence[str]]:
    """Requests a month that fill the API's queue, by Little's law."""
    yield "queue of the tier", *(f"turnaround {duration(each)}" for each in TURNAROUNDS)
    for api in TIERS.values():
        most = (quantity(api.queue / each * MONTH) for each in TURNAROUNDS)
        yield f"{api.queue:,}", *most


def machines(outcomes: Iterable[Outcome]) -> Iterator[Sequence[str]]:
    """What the fleet has to do."""
    yield (
        "requests a month",
        "the worker, busy",
        "database, cores",
        "log, kB a second",
        "log a day",
        "ledger a month",
    )
    for seen in outcomes:
        rate = seen.answered / seen.seconds
        yield (
            f"{seen.load.requests_a_month:,.0f}",
            f"{seen.worker_seconds / seen.seconds:.2%}",
            f"{seen.database_cores:.4f}",
            f"{rate * seen.fleet.log / 1e3:,.1f}",
            f"{rate * seen.fleet.log * DAY / 1e9:,.2f} GB",
            f"{seen.load.requests_a_month * LEDGER_BYTES / 1e9:,.1f} GB",
        )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [rows[0], ["---:"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def row(seen: Outcome) -> Sequence[str]:
    """The cells of one outcome. What would grow with the days simulated is left out."""
    load = seen.load
    stable = seen.keeps_up
    return (
        f"{load.requests_a_month:,.0f}",
        duration(load.turnaround),
        "yes" if stable else "**no**",
        duration(seen.latency(0.5)) if stable else "–",
        duration(seen.latency(0.95)) if stable else "–",
        quantity(seen.at_api.integral / seen.seconds),
        quantity(seen.at_api.most),
        quantity(seen.waiting.most) if stable else "grows",
        quantity(seen.batches / seen.seconds * DAY),
        str(max(seen.calls.values())),
    )


def duration(seconds: float) -> str:
    """In minutes, or in hours from two of them on."""
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / MINUTE:.0f} min"


def quantity(count: float) -> str:
    """With three significant digits."""
    digits = max(len(str(round(count))) - 3, 0)
    return f"{round(count, -digits):,.0f}"


def replace(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end -->` in a page."""
    before, begin, rest = page.read_text("utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise SystemExit(f"{page} has no place for the table {name}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")


def draw(picture: Path, days: float, seed: int) -> None:
    """Draw the queue and the latency over the requests a month."""
    import matplotlib as mpl

    mpl.use("Agg")
    # The same picture has the same bytes.
    mpl.rcParams["svg.hashsalt"] = "scale"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    figure, (queue, latency) = plt.subplots(2, 1, sharex=True, figsize=(7, 7))
    first, last = REQUESTS[0], REQUESTS[-1]
    step = (last / first) ** (1 / (PICTURE_POINTS - 1))
    loads = [first * step**each for each in range(PICTURE_POINTS)]
    for turnaround in TURNAROUNDS:
        seen = [simulate(requests, turnaround, days, seed) for requests in loads]
        label = f"turnaround {duration(turnaround)}"
        queue.plot(loads, [each.at_api.integral / each.seconds for each in seen], label=label)
        stable = [each for each in seen if each.keeps_up]
        latency.plot(
            [each.load.requests_a_month for each in stable],
            [each.latency(0.95) / HOUR for each in stable],
            label=label,
        )
    limit = TIERS[4].queue
    queue.axhline(limit, color="black", linestyle=":")
    queue.annotate(f"limit: {limit:,}", (first, limit), va="bottom")
    queue.set(yscale="log", ylabel="requests at the API, mean")
    queue.legend(loc="lower right")
    latency.set(
        xscale="log",
        yscale="log",
        ylabel="95 % answered within, hours",
        xlabel="requests a month (a line ends where the API no longer keeps up)",
    )
    for axes in (queue, latency):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
