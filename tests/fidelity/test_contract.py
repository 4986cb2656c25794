"""Each model of the network declares what it supports in its own file, and no other file names a model."""

import ast
import re
from pathlib import Path

import pytest

from nadi.configuration.sections import NetworkSection, given_default
from pdes import fidelity
from pdes.core.setting import settings_of
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "pdes" / "fidelity"
NAMES = tuple(fidelity.networks())
QUOTED = re.compile(f"['\"]({'|'.join(NAMES)})['\"]")
OTHER_MEANINGS = {
    ("pdes/build/growth.py", "flow"),  # a table of the engine
    ("nadi/cli/completion.py", "flow"),  # a benchmark
    ("nadi/configuration/sections.py", "closed-form"),  # a value of [network] nvlink
    ("nadi/simulation/nvlink_stand_ins.py", "closed-form"),
}


IMPORTERS = (ROOT / "nadi" / "importers", ROOT / "nadi" / "cli" / "commands")
"""Importers and their commands write run files, as users do, of the model that another simulator has."""


def others():
    """Return the product's files outside the models' folder and the importers."""
    files = [path for room in ("nadi", "pdes") for path in (ROOT / room).rglob("*.py") if FOLDER not in path.parents]
    commands = {path.stem for path in IMPORTERS[0].iterdir()}
    return [
        path
        for path in files
        if IMPORTERS[0] not in path.parents and not (path.parent == IMPORTERS[1] and path.stem in commands)
    ]


def named_models(text):
    """Yield (line, name) of each model that the strings of a source name, docstrings left out."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if node.value in NAMES:
                yield node.lineno, node.value
            yield from ((node.lineno, name) for name in QUOTED.findall(node.value))


def test_no_other_file_names_a_model():
    files = others()
    found = []
    for path in nonempty(files):
        place = path.relative_to(ROOT).as_posix()
        found += [f"{place}:{line} {name}" for line, name in named_models(path.read_text())
                  if (place, name) not in OTHER_MEANINGS]  # fmt: skip
    assert not found


def test_no_other_file_reads_the_keys_of_one_model():
    """Those of `own`; "collectives" is also a key of [system]."""
    pattern = re.compile(r"congestion_aware|(?:network|fidelity|own)\.(?:collectives|resolution)\b")
    assert pattern.search("settings.fidelity.collectives")
    files = others()
    assert [str(path) for path in nonempty(files) if pattern.search(path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        'if network.fidelity == "packet": pass',
        'keys = {"fidelity": "closed-form"}',
        "raise ValueError('expected fidelity = \"analytical\"')",
        'model = fidelity("flow")',
    ],
)
def test_a_name_is_found(line):
    assert len(list(named_models(f'"""Not "packet" in a docstring."""\n{line}\n'))) == 1


def test_declared_keys_are_keys_of_the_section():
    """Every key of [network] belongs to some model."""
    keys = set().union(*(model.keys for model in fidelity.networks().values()))
    assert keys == set(NetworkSection.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_capabilities_agree(name):
    model = fidelity.networks()[name]
    assert model.title
    assert model.use
    moves = [hooks.act for hooks in model.hooks if hooks.act]
    assert not (model.has_packets and moves), "packets and whole messages"
    assert moves or model.has_packets or not model.has_links
    assert model.has_packets or not model.several_workers
    assert model.has_links or not moves, "whole messages cross links"
    assert len(model.hooks) == 1 or all(hooks.chosen_by for hooks in model.hooks)
    assert all(hooks.contends or hooks.overload or not model.has_links for hooks in model.hooks)
    assert model.conditions.keys() <= model.keys


@pytest.mark.parametrize("name", NAMES)
def test_keys_of_one_model_come_from_its_file(name):
    """They have defaults with this model, and are neither keys nor results of the others."""
    model = fidelity.networks()[name]
    own = {each.key: given_default(each.key) for each in settings_of(model.own)}
    assert own.keys() <= model.keys - fidelity.PACKET.keys
    for other in NAMES:
        section = NetworkSection(fidelity=other)
        values = {key: section.model_dump(mode="json").get(key) for key in own}
        assert values == (own if other == name else dict.fromkeys(own))
    assert [name for name in NAMES if settings_of(fidelity.networks()[name].own)] == ["flow", "analytical"]


@pytest.mark.parametrize(
    ("model", "key", "value", "expected"),
    [
        ("flow", "collectives", "ring", "'steps', 'coupled' or 'auto'"),
        ("analytical", "resolution", "0s", "more than 0"),
        ("analytical", "congestion_aware", 2, "valid boolean"),
    ],
)
def test_their_values_are_validated(model, key, value, expected):
    with pytest.raises(ValueError, match=expected):
        NetworkSection.model_validate({"fidelity": model, key: value})
