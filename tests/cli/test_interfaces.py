"""docs/reference/interfaces.md names all fields of the stages' values, with their types and shapes."""

import dataclasses
import importlib
import inspect
import re
import types
import typing
from pathlib import Path

import numpy as np
import pytest

from tests.nonempty import nonempty

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "interfaces.md"
HEADING = re.compile(r"^#{2,3} ([a-z_]+(?:\.[a-z_]+)*\.[A-Z]\w+)", re.MULTILINE)
ROW = re.compile(r"^\| ([a-z][\w, ]*) \| (.+?) \|.*\|$", re.MULTILINE)
ARRAY = re.compile(r"(bool|u?int\d+|float\d+)\[([^\]]*)\]")
STAGES = {
    "et.TraceTable",
    "workload.TraceSet",
    "topologies.Graph",
    "topologies.TableRouting",
    "topologies.DimensionRouting",
    "workload.Program",
    "workload.program.program.FabricJobs",
    "workload.program.traffic.Traffic",
    "partition.TrafficWeights",
    "partition.Partition",
    "workload.Schedules",
    "pdes.Results",
    "nadi.launching.world.RankGather",
}


def sections():
    """Name of a class -> field -> type, as the page has them."""
    parts = HEADING.split(PAGE.read_text())[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        fields = {}
        own = re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]
        for names, kinds in ROW.findall(own):
            each, of_each = names.split(", "), split(kinds)
            fields |= zip(each, of_each * len(each) if len(of_each) == 1 else of_each, strict=True)
        fields.pop("field", None)
        yield name, fields


def split(kinds):
    """Types with commas between, but for those in brackets."""
    found, depth = [""], 0
    for letter in kinds:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [kind.strip() for kind in found]


def spoken(annotation):
    """A type as the page writes it: arrays by the type of their elements, unions with "or"."""
    if annotation is np.ndarray:
        return "array"
    if isinstance(annotation, list):
        return f"[{', '.join(spoken(part) for part in annotation)}]"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is np.ndarray:
        return np.dtype(typing.get_args(arguments[1])[0]).name
    if origin in {typing.Union, types.UnionType}:
        return " or ".join("None" if part is type(None) else spoken(part) for part in arguments)
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else spoken(part) for part in arguments)
        return f"{origin.__name__}[{inner}]"
    return annotation.__name__


def bare(kind):
    """A type of the page without the shapes of its arrays."""
    return ARRAY.sub(r"\1", kind)


def field_types(cls):
    names = cls._fields if hasattr(cls, "_fields") else [field.name for field in dataclasses.fields(cls)]
    hints = typing.get_type_hints(cls)
    return {name: spoken(hints[name]) for name in names}


def shapes(cls):
    """Shapes that the docstring gives, field by field, or the comment beside a field."""
    array = r"(?:bool|u?int\d+|float\d+)\[([^\]]*)\]"
    found = re.findall(rf"^ *(\w+): {array}", inspect.getdoc(cls), re.MULTILINE)
    found += re.findall(rf"^ *(\w+): [^#\n]*# {array}", inspect.getsource(cls), re.MULTILINE)
    return {name: shape.replace(" ", "") for name, shape in found}


def test_sections():
    assert {name for name, _ in sections()} == STAGES


@pytest.mark.parametrize("name", sorted(STAGES))
def test_fields_and_types(name):
    fields = dict(sections())[name]
    module, _, attribute = name.rpartition(".")
    cls = getattr(importlib.import_module(module), attribute)
    wanted = field_types(cls)
    assert set(fields) == set(wanted)
    for field, kind in nonempty(fields.items()):
        if "array" in wanted[field]:  # of the engine, whose annotations do not say of what
            assert ARRAY.search(kind), field
            assert ARRAY.sub("array", kind) == wanted[field], field
        else:
            assert bare(kind) == wanted[field], field
    told = {field: match[2].replace(" ", "") for field, kind in fields.items() if (match := ARRAY.match(kind))}
    of_docstring = shapes(cls)
    assert {field: told[field] for field in of_docstring} == of_docstring


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (np.typing.NDArray[np.int32], "int32"),
        (np.typing.NDArray[np.bool_] | None, "bool or None"),
        (tuple[tuple[int, ...], ...], "tuple[tuple[int, ...], ...]"),
        (dict[str, np.ndarray], "dict[str, array]"),
    ],
)
def test_types_as_the_page_writes_them(annotation, expected):
    assert spoken(annotation) == expected


def test_types_of_a_row():
    assert split("int64[n+1], int32[]") == ["int64[n+1]", "int32[]"]
    assert split("Mapping[str, tuple[int, ...]]") == ["Mapping[str, tuple[int, ...]]"]
    assert bare("dict[str, int64[n]] or None") == "dict[str, int64] or None"
