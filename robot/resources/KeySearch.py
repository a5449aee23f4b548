"""Robot keywords that search all that a test has left on disk for its key."""

from __future__ import annotations

import base64
from pathlib import Path

from robot.api import logger
from robot.api.deco import keyword, library


@library(scope="SUITE")
class KeySearch:
    """Looks into every file of a folder, byte by byte."""

    @keyword
    def the_key_should_be_nowhere(self, folder: Path, key: str) -> list[str]:
        """Fail if a file of the folder holds the key, plain or encoded; the files' names."""
        forms = (key.encode(), base64.b64encode(key.encode())[:-4], key[::-1].encode())
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        guilty = [
            str(path)
            for path in files
            if any(form in path.read_bytes() for form in forms) or key in path.name
        ]
        logger.info("searched:\n" + "\n".join(map(str, files)))
        if guilty:
            raise AssertionError(f"the key {key} is in {guilty}")
        return [path.name for path in files]
