"""The version of Nadi with the commit that it was installed from."""

import json
import subprocess
from importlib import metadata
from pathlib import Path

from nadi import __version__

_ROOT = Path(__file__).parents[2]
_SHORT_HASH_DIGITS = 12


def version_with_commit() -> str:
    """Return the version and, in parentheses, the commit of the sources, or "commit unknown"."""
    return f"{__version__} (commit {_commit() or 'unknown'})"


def _commit() -> str:
    """Return the abbreviated hash of the checkout or of what pip installed from a repository; empty if unknown."""
    if (_ROOT / ".git").exists():
        command = ["git", "-C", str(_ROOT), "rev-parse", f"--short={_SHORT_HASH_DIGITS}", "HEAD"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603 - fixed words
        except (OSError, subprocess.SubprocessError):
            return ""
    try:
        origin = json.loads(metadata.distribution("nadi").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return ""
    return str(origin.get("vcs_info", {}).get("commit_id", ""))[:_SHORT_HASH_DIGITS]
