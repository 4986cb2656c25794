"""The pages of CONTRIBUTING.md that lead through the engine name what is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| `([\w/.]+\.py)` \| .+? \| (.*?) ?\|$", re.MULTILINE)
FOLDERS = (
    "compiling",
    "docs",
    "et",
    "inputs",
    "nadi",
    "partition",
    "pdes",
    "scripts",
    "tests",
    "topologies",
    "workload",
)
INVENTED = {"NAME"}


def section(heading):
    """The text below a heading of the second rank."""
    return re.split(rf"^## {heading}\n", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]


@cache
def tree(file):
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def function(file, name):
    """A function of a file, or of a class there."""
    found = (node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef))
    return next((node for node in found if node.name == name), None)


def used(node):
    """Names and attributes that stand in a function."""
    return {getattr(each, "id", getattr(each, "attr", None)) for each in ast.walk(node)}


HEADINGS = ("The path of a packet", "The path of a trace node")
WAYS = [(heading, *row) for heading in HEADINGS for row in ROW.findall(section(heading))]


def test_every_line_of_the_tables_is_read():
    for heading in HEADINGS:
        lines = [line for line in section(heading).splitlines() if line.startswith("|")]
        assert len(lines) - 2 == len([way for way in WAYS if way[0] == heading]) > 10


@pytest.mark.parametrize(("heading", "name", "file", "following"), WAYS, ids=lambda value: value.split("/")[-1])
def test_a_function_is_in_its_file_and_uses_those_that_follow(heading, name, file, following):
    found = function(file, name)
    assert found is not None, f"{heading}: {file} has no function {name}"
    missing = set(re.findall(r"`(\w+)`", following)) - used(found)
    assert missing == set(), f"{heading}: {name} of {file} does not use them"


def names(text):
    """What stands in backticks and begins with a folder of ours, a name to be invented replaced by any."""
    for quoted in re.findall(r"`([^`]+)`", text):
        if re.fullmatch(r"[\w/.-]+", quoted) and "/" in quoted and quoted.split("/")[0] in FOLDERS:
            yield quoted


def test_files_and_folders_that_the_page_names_exist():
    found = [name for name in names(PAGE) if not INVENTED & set(re.split(r"\W|_", name))]
    assert len(found) > 80
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_where_a_name_is_to_be_invented_others_stand_already():
    found = [name for name in names(PAGE) if INVENTED & set(re.split(r"\W|_", name))]
    assert found
    assert [name for name in found if not list(ROOT.glob(name.replace("NAME", "*")))] == []


SIGNED = re.compile(r"`(\w+)`")


def identifiers(folders):
    """Whatever is named in the sources: functions, classes, constants, fields, words of rows."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(tree(path.relative_to(ROOT).as_posix())):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield node.name
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id


def test_names_in_what_is_said_of_adding_exist():
    known = set(identifiers(("pdes", "workload/trace_sets", "nadi/reports/result_files")))
    text = section("Adding to the engine")
    said = set(SIGNED.findall(text)) - INVENTED
    assert len(said) > 20
    assert said - known - {"words", "written_by"} == set()
