"""Steps of documents that lie where they must not."""

from __future__ import annotations

import os
from pathlib import Path

from behave import given
from behave.runner import Context


@given('a link from "{link}" to "{target}"')
def _(context: Context, link: str, target: str) -> None:
    Path(link).symlink_to(os.path.abspath(target))
