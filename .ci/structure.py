"""Print the measures of the package's structure: `python .ci/structure.py`, in an environment with
the extra `test`.

The limits are those that the project has set itself. Exits with 1 if a measure is past its limit
and is marked as kept.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/claude_batch"


class Measure(NamedTuple):
    """One row of the table."""

    what: str
    value: int
    limit: int
    kept: bool = True
    """Whether the limit was reached once, so that it must not be passed again."""


def modules() -> dict[str, Path]:
    """The package's modules by their dotted names."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that one imports, also late and for type checkers."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            submodules = [each for each in names if each in known]
            yield from submodules
            if len(submodules) < len(names) and base in known:
                yield base


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The groups of modules that import each other."""
    reached = {name: _reached(name, graph) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        mutual = {other for other in reached[name] if name in reached[other]}
        if mutual and mutual not in found:
            found.append(mutual)
    return found


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = [*graph[start]]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += graph[name]
    return seen


def lines(paths: Iterable[Path]) -> int:
    """How many lines these files have."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def steps() -> tuple[int, int, int]:
    """Step definitions that at most one line of a feature uses, all of them, and lines without one.

    A line with several definitions is one without: Behave takes the first, and says nothing.
    """
    sys.path.insert(0, str(ROOT / "features"))
    from behave.parser import parse_file
    from behave.step_registry import registry
    from pool import load

    load()
    used: Counter[int] = Counter()
    astray = 0
    for feature in sorted((ROOT / "features").rglob("*.feature")):
        lines_seen: set[tuple[int, int]] = set()
        for scenario in parse_file(str(feature)).walk_scenarios():
            for step in scenario.all_steps:
                match = registry.find_match(step)
                found = 0 if match is None else id(match.func)
                # The lines of an outline's examples are one line of the feature.
                if (found, step.line) in lines_seen:
                    continue
                lines_seen.add((found, step.line))
                used[found] += 1
                of_kind = (*registry.steps[step.step_type], *registry.steps["step"])
                if len({id(each.func) for each in of_kind if each.match(step.name)}) != 1:
                    print(f"{feature.relative_to(ROOT)}:{step.line}: no step, or several")
                    astray += 1
    defined = {id(each.func) for kind in registry.steps.values() for each in kind}
    return sum(used[each] <= 1 for each in defined), len(defined), astray


def measures() -> list[Measure]:
    """All rows."""
    known = modules()
    graph = {name: {*imports(name, path, known)} - {name} for name, path in known.items()}
    own = [path for path in known.values() if "sandbox" not in path.parts]
    writers = [path for path in own if "update(requests)" in path.read_text("utf-8")]
    names = Counter(path.name for path in known.values() if not path.name.startswith("__"))
    once, defined, astray = steps()
    return [
        Measure("modules with `update(requests)` (trace and reserve included)", len(writers), 3),
        Measure("import circles", len(circles(graph)), 0),
        Measure("file names that occur twice", sum(n > 1 for n in names.values()), 0),
        Measure("lines of src/ without sandbox/", lines(own), 26_000, kept=False),
        Measure("files of the package", len(known), 155, kept=False),
        Measure(f"step definitions used once, of {defined}", once, 350),
        Measure("lines of features without a step, or with several", astray, 0),
        Measure("lines of README.md", lines([ROOT / "README.md"]), 200),
    ]


def main() -> int:
    """Print the table."""
    broken = 0
    print("| measure | now | limit |\n|---|---:|---:|")
    for row in measures():
        past = row.value > row.limit
        broken += past and row.kept
        mark = " (past its limit)" if past and row.kept else " (not reached yet)" if past else ""
        print(f"| {row.what} | {row.value:,}{mark} | {row.limit:,} |")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
