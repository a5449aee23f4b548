"""Sums of answers by batch, and their totals by run, day, model and actor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from claude_batch.ledger.page_queries import TIME_STEPS, TOKEN_STEPS, ResultSums


class Total(NamedTuple):
    """Sums over answers. Costs are in nano-dollars."""

    results: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    unpriced: int = 0
    """Number of answers whose cost is unknown; the sums leave them out."""
    cost: int = 0
    live_cost: int = 0
    uncached_cost: int = 0

    @property
    def saved_by_batch(self) -> int:
        """What the same answers would have cost more without batches."""
        return self.live_cost - self.cost

    @property
    def saved_by_cache(self) -> int:
        """What they would have cost more without a prompt cache; negative if it did not pay."""
        return self.uncached_cost - self.cost


class Cell(NamedTuple):
    """Sums over alike results of one batch."""

    actor: str
    sums: ResultSums


class CostCells:
    """The sums of every batch, from which a page adds up what it shows."""

    def __init__(self, cells: Mapping[int, Sequence[Cell]] | None = None) -> None:
        self._of_batch: dict[int, Sequence[Cell]] = dict(cells or {})

    def copy(self) -> CostCells:
        """Return a copy that can change while pages read this one."""
        return CostCells(self._of_batch)

    def put(self, batch_id: int, sums: Iterable[ResultSums], actors: Mapping[str, str]) -> None:
        """Store the sums of a batch, in place of earlier ones."""
        self._of_batch[batch_id] = [Cell(actors.get(each.run_id, ""), each) for each in sums]

    def cells(self, run_id: str | None = None) -> Iterable[Cell]:
        """Return all cells, or those of a run."""
        return (
            cell
            for cells in self._of_batch.values()
            for cell in cells
            if run_id is None or cell.sums.run_id == run_id
        )

    def total(self, run_id: str | None = None, since: int = 0) -> Total:
        """Return the total of a run or of all, from a day on."""
        return total_of(
            cell for cell in self.cells(run_id) if not since or (cell.sums.day or 0) >= since
        )

    def by(self, key: Callable[[Cell], str | int | None]) -> dict[str | int | None, Total]:
        """Return the totals of groups."""
        groups: defaultdict[str | int | None, list[Cell]] = defaultdict(list)
        for cell in self.cells():
            groups[key(cell)].append(cell)
        return {name: total_of(cells) for name, cells in groups.items()}

    def distributions(self, run_id: str) -> tuple[list[int], list[int]]:
        """Return how many of a run's answers are in each of `TOKEN_STEPS` and of `TIME_STEPS`."""
        tokens, seconds = [0] * len(TOKEN_STEPS), [0] * len(TIME_STEPS)
        for cell in self.cells(run_id):
            if cell.sums.outcome == "succeeded":
                tokens = [a + b for a, b in zip(tokens, cell.sums.by_tokens, strict=True)]
                seconds = [a + b for a, b in zip(seconds, cell.sums.by_time, strict=True)]
        return tokens, seconds


def total_of(cells: Iterable[Cell]) -> Total:
    """Add up cells."""
    numbers = [0] * len(Total._fields)
    for cell in cells:
        sums = cell.sums
        numbers[0] += sums.results
        numbers[1] += sums.results if sums.outcome != "succeeded" else 0
        for place, value in enumerate(sums[6:14], 2):
            numbers[place] += value
    return Total(*numbers)
