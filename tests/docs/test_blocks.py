"""What pages tell a reader to type is what the code takes."""

import tomllib
from typing import get_args

import pytest
import typer

from nadi.cli.commands import build_app
from nadi.configuration.run_config import RunConfig
from tests.docs.pages import blocks, commands
from tests.nonempty import nonempty

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
    """The same of what stands behind the command's name."""
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
