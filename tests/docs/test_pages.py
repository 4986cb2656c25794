"""Pages of the documents: links, blocks, generated tables and references."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import typer

from nadi.cli.commands import build_app
from nadi.configuration.run_config import RunConfig
from nadi.configuration.sections import given_default
from nadi.energy import read_table
from nadi.simulation.schemas import SCHEMAS
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from scripts.document_reference import PAGES, TABLES, keys_table, with_tables
from tests.docs.pages import DOCS, ROOT, blocks, commands
from tests.nonempty import nonempty

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` builds it: links, anchors and the navigation are checked on the way."""
    pytest.importorskip("material", reason="no mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium, Debian's package, to open pages with")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize("page", ["index.html", "how-to/my-model.html"])
def test_search_finds_pages_of_a_site_that_is_opened_as_a_file(site, browser, page):
    """A page of the root, and one of a folder, whose paths to the index differ."""
    errors = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((site / page).as_uri())
    opened.click(".md-search__input")
    opened.keyboard.type("oversubscription")
    opened.wait_for_selector(".md-search-result__item")
    found = opened.eval_on_selector_all(".md-search-result__item a", "links => links.map((link) => link.href)")
    assert any(link.startswith((site / "how-to" / "my-fabric.html").as_uri()) for link in found)
    assert errors == []
    opened.close()


def test_every_page_is_in_the_site(site):
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    expected = {*(path.relative_to(DOCS) for path in DOCS.rglob("*.md")), *map(Path, PAGES)}
    assert {path.with_suffix("") for path in expected} <= made


def test_nothing_is_fetched(site):
    fetched = r"""<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+//"""
    for page in nonempty(site.rglob("*.html")):
        assert re.findall(fetched, page.read_text()) == [], page.name
    for style in nonempty(site.rglob("*.css")):
        assert "url(http" not in style.read_text(), style.name


_HELP = {"--help", "-h"}


@pytest.fixture(scope="module")
def app():
    return typer.main.get_command(build_app())


def wrong_with(app, words):
    """What of a command line does not exist, or nothing. Nothing is run, and values are not looked at."""
    command, rest = app, list(words)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands"):
        if rest and rest[0].startswith("-"):
            return ""
        if words[0] != "net":
            return f"no command {' '.join(words[:2])}"
        command = command.commands["show"]  # `nadi net DIR`
    return wrong_with_options(command, rest)


def wrong_with_options(command, rest):
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    rest = rest[: rest.index("--")] if "--" in rest else rest
    while rest:
        name, has_value, _ = rest.pop(0).partition("=")
        if not name.startswith("-") or name in _HELP:
            continue
        if name not in known:
            return f"no option {name}"
        if not (has_value or getattr(known[name], "is_flag", False)):
            if not rest:
                return f"{name} without a value"
            rest.pop(0)
    return ""


def test_commands_of_the_pages_exist_with_their_options(app):
    said = commands()
    assert len(said) > 100
    assert [(page, " ".join(words), wrong) for page, words in said if (wrong := wrong_with(app, words))] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("run RUN.toml --out DIR", ""),
        ("run RUN.toml --outt DIR", "no option --outt"),
        ("trace shew FILE", "no command trace shew"),
        ("report DIR -o", "-o without a value"),
        ("net DIR --what", "no option --what"),
    ],
)
def test_what_does_not_exist_is_found(app, line, wrong):
    assert wrong_with(app, line.split()) == wrong


def test_blocks_of_python_compile():
    found = blocks("python")
    assert len(found) >= 5
    for block in found:
        compile(block.text, block.page, "exec")


def test_the_topology_of_the_plug_in_page_is_one():
    (text,) = (block.text for block in blocks("python") if block.page == "docs/how-to/plug-in.md")
    space = {}
    exec(text, space)  # noqa: S102 - the page's own example
    arguments = space["Arguments"](npus=8)
    graph, extent = space["build"](arguments, "dumbbell"), space["extent"](arguments, "dumbbell")
    assert (graph.npus, graph.nodes, graph.links) == (extent.npus, extent.nodes, 2 * extent.cables)


def test_blocks_of_toml_have_keys_of_run_files():
    sections = RunConfig.model_fields
    seen = 0
    for block in nonempty(blocks("toml")):
        tree = tomllib.loads(block.text)
        for section, of_section in nonempty(tree.items()):
            if section not in sections or not isinstance(of_section, (dict, list)):
                continue
            annotation = sections[section].annotation
            model = next(one for one in (*get_args(annotation), annotation) if hasattr(one, "model_fields"))
            for table in nonempty(of_section if isinstance(of_section, list) else [of_section]):
                assert set(table) <= set(model.model_fields), f"{block.page}: [{section}]"
                seen += 1
    assert seen >= 15


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
