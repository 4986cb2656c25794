"""Hook of hatchling: wheels and source distributions name the commit that they are built from."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "nadi/commit.txt"  # nadi/launching/installation.py
SHORT_HASH_DIGITS = "12"


class CommitHook(BuildHookInterface):
    """Adds a file with the abbreviated hash of the checkout; a source distribution already has the file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Have hatchling include the file; version: "standard", or "editable", which looks into the checkout."""
        if version == "editable" or not (Path(self.root) / ".git").exists() or not shutil.which("git"):
            return
        command = ["git", "-C", self.root, "rev-parse", f"--short={SHORT_HASH_DIGITS}", "HEAD"]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - fixed words
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "commit.txt"
        file.write_bytes(done.stdout)
        build_data["force_include"][str(file)] = COMMIT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary file."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
