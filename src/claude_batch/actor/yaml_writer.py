"""Write an actor as YAML in a readable style."""

from __future__ import annotations

from typing import Any

import yaml


class Dumper(yaml.SafeDumper):
    """Writes long texts as blocks, and repeats values instead of using anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType] - its stubs
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


Dumper.add_representer(str, _represent_text)
