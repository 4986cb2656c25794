"""Generated pages and tables have every command, key, column and row; pages name only tables that exist."""

import re

import pytest

from nadi.configuration.run_config import RunConfig
from nadi.configuration.sections import given_default
from nadi.energy import read_table
from nadi.simulation.schemas import SCHEMAS
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from scripts.document_reference import PAGES, TABLES, keys_table, with_tables
from tests.docs.pages import DOCS
from tests.nonempty import nonempty

KEY = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def test_every_command_is_on_its_page():
    commands = PAGES["reference/commands.md"]()
    assert {"## nadi run", "## nadi trace convert", "## nadi workload megatron"} <= set(commands.splitlines())
    assert "| `--set KEY=VALUE` |  | Replace a value of the run file" in commands


@pytest.mark.parametrize("section", RunConfig.model_fields)
def test_every_key_of_a_section_is_in_its_table(section):
    annotation = RunConfig.model_fields[section].annotation
    (model,) = (each for each in (annotation, *getattr(annotation, "__args__", ())) if hasattr(each, "model_fields"))
    assert [key for key, _ in KEY.findall(keys_table(section))] == list(model.model_fields)


def test_defaults_of_the_engine_are_in_the_tables():
    shown = dict(KEY.findall(keys_table("network") + keys_table("system")))
    assert (shown["mtu"], shown["trimming"], shown["congestion_aware"]) == ("`4KiB`", "`false`", "`true`")
    assert all(shown[key].strip("`") == str(given_default(key)) for key in ("buffer", "ecn_kmin", "pfc_alpha"))
    assert dict(KEY.findall(keys_table("workload")))["traces"] == "none"
    assert dict(KEY.findall(keys_table("faults")))["at"] == "required"


def test_each_table_is_on_a_page():
    marked = [
        name for page in DOCS.rglob("*.md") for name in re.findall(r"<!-- generated: ([\w ]+) -->", page.read_text())
    ]
    assert sorted(marked) == sorted(TABLES)


def test_keys_that_the_page_explains_exist():
    """A list item of docs/reference/run-file.md begins with keys of its section."""
    text = (DOCS / "reference" / "run-file.md").read_text()
    parts = re.split(r"<!-- generated: keys (\w+) -->", text)
    explained = 0
    for section, body in zip(parts[1::2], parts[2::2], strict=True):
        for item in re.findall(r"^- ((?:`\w+`(?:, )?)+):", body, re.MULTILINE):
            for key in re.findall(r"\w+", item):
                assert f"| `{key}` |" in keys_table(section), key
                explained += 1
    assert explained > 50


def test_tables_of_pages_are_filled_in():
    results = with_tables((DOCS / "reference" / "results.md").read_text())
    assert all(f"### `{schema.file}`" in results for schema in nonempty(SCHEMAS))
    energy = with_tables((DOCS / "explanation" / "energy.md").read_text())
    assert all(f"| `{path}` |" in energy for path in read_table().sources if path.startswith("gpus."))
    with pytest.raises(KeyError):
        with_tables("<!-- generated: nothing -->")


def test_every_key_of_models_and_plans_is_on_their_page():
    page = (DOCS / "reference" / "models.md").read_text()
    keys = {key for part in (Model, LatentAttention, Experts, ParallelPlan) for key in part.model_fields}
    assert {key for key in keys if not re.search(rf"`\[?{key}\]?`", page)} == set()


def test_defaults_of_plans_are_those_of_the_page():
    page = (DOCS / "reference" / "models.md").read_text()
    told = dict(re.findall(r"^\| `[^|]*` \| `(\w+)` \| `?([\w.]+)`? \|", page, re.MULTILINE))
    fields = {key: field.default for key, field in ParallelPlan.model_fields.items()}
    assert len(told) > 25
    assert {key: text for key, text in told.items() if text != str(fields[key]).lower()} == {}
