"""Pages that are made of the code say what the code says."""

import runpy

import pytest

from tests.docs.pages import DOCS, ROOT

SCRIPT = "scripts/document_reference.py"
MADE = runpy.run_path(str(ROOT / SCRIPT))["PAGES"]


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_what_the_script_makes(name):
    assert (DOCS / name).read_text() == MADE[name](), f"python {SCRIPT} makes it again"


def test_every_command_and_key_is_there():
    commands = (DOCS / "commands.md").read_text()
    assert {"## nadi run", "## nadi trace convert", "## nadi workload megatron"} <= set(commands.splitlines())
    assert "| `--set KEY=VALUE` |  | Replace a value of the run file" in commands
    keys = (DOCS / "run-file-keys.md").read_text()
    assert "| `mtu` | `4KiB` |" in keys
    assert "| `traces` | none |" in keys
