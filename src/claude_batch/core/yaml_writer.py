"""YAML as people write it: long texts as blocks, and no anchors."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Repeats values instead of using anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_SEPARATORS = ("\x85", "\u2028", "\u2029")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if any(separator in text for separator in _SEPARATORS):
        # In every other style, PyYAML breaks the line there and adds blanks that it reads back.
        style = '"'
    return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType] - its stubs
        "tag:yaml.org,2002:str", text, style=style
    )


_Dumper.add_representer(str, _represent_text)


def yaml_of(value: Any) -> str:
    """Return a value as YAML. Raises ``ValueError`` for one that YAML cannot hold."""
    try:
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
