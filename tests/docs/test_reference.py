"""Pages that are made of the code say what the code says."""

import re
import runpy

import pytest

from tests.docs.pages import DOCS, ROOT
from workload.generators.models.model import Experts, LatentAttention, Model
from workload.generators.training.parallel_plan import ParallelPlan

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


def test_every_key_of_models_and_plans_is_on_their_page():
    page = (DOCS / "models.md").read_text()
    keys = {key for part in (Model, LatentAttention, Experts, ParallelPlan) for key in part.model_fields}
    assert {key for key in keys if not re.search(rf"`\[?{key}\]?`", page)} == set()


def test_defaults_of_plans_are_those_of_the_page():
    page = (DOCS / "models.md").read_text()
    told = dict(re.findall(r"^\| `[^|]*` \| `(\w+)` \| `?([\w.]+)`? \|", page, re.MULTILINE))
    fields = {key: field.default for key, field in ParallelPlan.model_fields.items()}
    assert len(told) > 25
    assert {key: text for key, text in told.items() if text != str(fields[key]).lower()} == {}
