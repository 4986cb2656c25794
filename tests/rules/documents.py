"""Documents name what is there: files, functions, fields, links."""

import ast
import dataclasses
import importlib
import inspect
import re
import types
import typing

import numpy as np

from scripts.document_reference import PAGES
from tests.rules.sources import FOLDERS, ROOT, Finding, product, read

CONTRIBUTING = "CONTRIBUTING.md"
HISTORY = "CHANGELOG.md"
TABLES = ("The path of a packet", "The path of a trace node")
"""Sections of CONTRIBUTING.md with a function in each row."""
ROW = re.compile(r"\| `(\w+)` \| `([\w/.]+\.py)` \| .+? \| (.*?) ?\|")
RULE_OF_TABLE = re.compile(r"\| (?:function|---)")
SIGNED = re.compile(r"`(\w+)`")
LINK = re.compile(r"\]\(([^)#\s]+)")
NAMED_FILE = re.compile(rf"(?<![\w/.-])((?:{'|'.join((*FOLDERS, 'scripts', 'tests', 'docs'))})/[\w./*-]+)")
TO_BE_INVENTED = re.compile("NAME|dumbbell")
"""In names of files that a reader is to make: NAME, and the topology of the page on plug-ins."""


class Page(typing.NamedTuple):
    """A document, its path from the root."""

    path: str
    text: str

    def lines(self, section=None):
        """Yield (number, line), of the section below a heading of the second rank."""
        inside = section is None
        for number, line in enumerate(self.text.splitlines(), 1):
            if section is not None and line.startswith("## "):
                inside = line == f"## {section}"
            elif inside:
                yield number, line


def pages():
    """Return all documents."""
    paths = sorted({*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")})
    return [Page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def _function(source, name):
    """A function of a file, or of a class there."""
    found = (node for node in source.nodes if isinstance(node, ast.FunctionDef))
    return next((node for node in found if node.name == name), None)


def wrong_ways(page):
    """Find rows of the tables whose function is not in its file, or does not use those of the last column."""
    for section in TABLES:
        for number, line in page.lines(section):
            if not line.startswith("|") or RULE_OF_TABLE.match(line):
                continue
            row = ROW.fullmatch(line)
            if row is None:
                yield Finding(page.path, number, "expected | `function` | `file` | what it does | `calls` |")
                continue
            name, file, following = row.groups()
            found = _function(read(file), name) if (ROOT / file).is_file() else None
            if found is None:
                yield Finding(page.path, number, f"{file} has no function {name}")
                continue
            used = {getattr(each, "id", getattr(each, "attr", None)) for each in ast.walk(found)}
            for missing in sorted(set(SIGNED.findall(following)) - used):
                yield Finding(page.path, number, f"{name} of {file} does not use {missing}")


def _identifiers(sources):
    """Whatever is named in sources: functions, classes, constants, fields, words of rows."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def unknown_names(page, section, sources):
    """Find names in a section that no source has."""
    known = {"NAME", "words", *_identifiers(sources)}
    for number, line in page.lines(section):
        yield from (
            Finding(page.path, number, f"nothing in the engine is named {name}")
            for name in SIGNED.findall(line)
            if name not in known
        )


def missing_files(page):
    """Find files that a document names or links to and that are not there; those of the past it may name."""
    generated = {ROOT / "docs" / made for made in PAGES}
    for number, line in page.lines():
        for target in LINK.findall(line):
            path = (ROOT / page.path).parent / target
            if "://" not in target and not path.exists() and path.resolve() not in generated:
                yield Finding(page.path, number, f"the link {target} leads nowhere")
        for named in NAMED_FILE.findall(line) if page.path != HISTORY else []:
            path = TO_BE_INVENTED.sub("*", named.rstrip(".,"))
            exists = any(ROOT.glob(path)) or (ROOT / f"{path}.py").exists()
            if not exists and (page.path == CONTRIBUTING or path == named.rstrip(".,")):
                yield Finding(page.path, number, f"{named} does not exist")


INTERFACES = "docs/reference/interfaces.md"
STAGE = re.compile(r"#{2,3} ([a-z_]+(?:\.[a-z_]+)*\.[A-Z]\w+)")
FIELDS = re.compile(r"\| ([a-z][\w, ]*) \| (.+?) \|.*\|")
ARRAY = re.compile(r"(bool|u?int\d+|float\d+)\[([^\]]*)\]")
SHAPE_OF_DOCSTRING = re.compile(rf"^ *(\w+): {ARRAY.pattern}", re.MULTILINE)
SHAPE_OF_COMMENT = re.compile(rf"^ *(\w+): [^#\n]*# {ARRAY.pattern}", re.MULTILINE)
STAGES = {
    "et.TraceTable",
    "workload.TraceSet",
    "topologies.Graph",
    "topologies.SourceRoutes",
    "topologies.TableRouting",
    "topologies.DimensionRouting",
    "workload.Program",
    "workload.program.program.FabricJobs",
    "workload.program.traffic.Traffic",
    "partition.TrafficWeights",
    "partition.Partition",
    "workload.Schedules",
    "pdes.Results",
    "nadi.launching.ranks.RankGather",
}


def described(page):
    """Return what a page says: class -> (line of its heading, field -> (line, type))."""
    found, fields = {}, {}
    for number, line in page.lines():
        if line.startswith("##"):
            fields = {}
            if heading := STAGE.match(line):
                found[heading[1]] = number, fields
        elif row := FIELDS.fullmatch(line):
            names, kinds = row[1].split(", "), split(row[2])
            kinds = kinds * len(names) if len(kinds) == 1 else kinds
            fields |= {name: (number, kind) for name, kind in zip(names, kinds, strict=True) if name != "field"}
    return found


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


def as_declared(told, annotation):
    """Return whether a type of the page is the declared one; arrays of the engine do not say of what."""
    if "array" in annotation:
        return bool(ARRAY.search(told)) and ARRAY.sub("array", told) == annotation
    return ARRAY.sub(r"\1", told) == annotation


def _field_types(cls):
    names = cls._fields if hasattr(cls, "_fields") else [field.name for field in dataclasses.fields(cls)]
    hints = typing.get_type_hints(cls)
    return {name: spoken(hints[name]) for name in names}


def _shapes(cls):
    """Shapes that the docstring gives, field by field, or the comment beside a field."""
    found = SHAPE_OF_DOCSTRING.findall(inspect.getdoc(cls)) + SHAPE_OF_COMMENT.findall(inspect.getsource(cls))
    return {name: shape.replace(" ", "") for name, _, shape in found}


def wrong_fields(page, stages):
    """Find fields of classes that the page omits, invents, or describes with another type or shape."""
    told_of = described(page)
    for name in sorted(stages ^ told_of.keys()):
        yield Finding(page.path, told_of.get(name, (1,))[0], f"{name}: described, or among STAGES, but not both")
    for name in sorted(stages & told_of.keys()):
        heading, fields = told_of[name]
        module, _, attribute = name.rpartition(".")
        cls = getattr(importlib.import_module(f"nadi.{module.removeprefix('nadi.')}"), attribute)
        declared, shapes = _field_types(cls), _shapes(cls)
        for field in sorted(declared.keys() - fields.keys()):
            yield Finding(page.path, heading, f"{name} has a field {field}")
        for field, (number, told) in fields.items():
            shape = ARRAY.match(told)
            if field not in declared:
                yield Finding(page.path, number, f"{name} has no field {field}")
            elif not as_declared(told, declared[field]):
                yield Finding(page.path, number, f"{name}.{field} is {told}, expected {declared[field]}")
            elif field in shapes and (shape is None or shape[2].replace(" ", "") != shapes[field]):
                yield Finding(page.path, number, f"{name}.{field} is {told}, expected the shape [{shapes[field]}]")


def findings():
    all_pages = pages()
    by_path = {page.path: page for page in all_pages}
    yield from wrong_ways(by_path[CONTRIBUTING])
    rooms = ("compiling/", "pdes/", "workload/trace_sets/", "nadi/reports/run_folder.py")
    sources = [source for source in product() if source.path.startswith(rooms)]
    yield from unknown_names(by_path[CONTRIBUTING], "Adding to the engine", sources)
    yield from wrong_fields(by_path[INTERFACES], STAGES)
    for page in all_pages:
        yield from missing_files(page)
