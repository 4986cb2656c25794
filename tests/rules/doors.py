"""Doors of rooms: what a folder offers to other folders, in its `__init__`, in those of its rooms, or in a module."""

import ast
import tomllib
from pathlib import Path

from tests.rules.sources import ROOT, Finding, product, read

MAX_NAMES = 30
"""Names that a door may offer."""
DOORS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Doors of each folder beside its own `__init__` or module: rooms and modules. Others import nothing else of it."""


def source_of(door):
    path = door.replace(".", "/")
    path = path if (ROOT / path.partition("/")[0]).is_dir() else f"nadi/{path}"
    return read(f"{path}/__init__.py" if (ROOT / path / "__init__.py").is_file() else f"{path}.py")


def is_in(source, folder):
    """Return whether a source is in a folder, or is the module of that name."""
    return f"{source.module}.".startswith(f"nadi.{folder}.")


def names_of(door):
    """Return the public names that a door defines, those that it imports, and those of these that it does not use."""
    folder = door.module.split(".")[1]
    defined, imported, read_here = set(), set(), {node.id for node in door.nodes if isinstance(node, ast.Name)}
    for node in door.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"nadi.{folder}."):
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and door.path.endswith("__init__.py"):
            defined |= {alias.asname or alias.name for alias in node.names} - read_here
    return {name for name in defined if not name.startswith("_")}, imported, imported - read_here


def uses(source, folder):
    """Yield (line, door or module, name) of all that a source takes of a folder; the name is "" for a module itself."""
    is_imported = False
    for node in source.imports:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if f"{alias.name}.".startswith(f"nadi.{folder}.")]
            yield from ((node.lineno, module.removeprefix("nadi."), "") for module in modules)
        elif f"{node.module}.".startswith(f"nadi.{folder}."):
            yield from ((node.lineno, node.module.removeprefix("nadi."), alias.name) for alias in node.names)
        elif node.module == "nadi":
            is_imported |= folder in {alias.name for alias in node.names if alias.asname is None}
    for line, name, attribute in source.attributes_of_names if is_imported else []:
        if name == folder:
            yield line, folder, attribute


def passed_by(sources, folder, offered):
    """Find what other folders take of a folder past its doors.

    Args:
        sources: The sources that may take something.
        folder: The folder.
        offered: The names that each door offers, by door: `et`, `et.checking`.
    """
    for source in sources:
        if not is_in(source, folder):
            for line, module, name in uses(source, folder):
                whole = f"{module}.{name}" if name else module
                if name not in offered.get(module, ()) and whole not in offered:
                    yield source.found(line, f"takes {whole}, which no door of {folder} offers")


def too_wide(sources, folder, doors):
    """Find doors that offer too many names: theirs, those imported only to be offered, and others that are taken.

    Args:
        sources: The sources that may take something.
        folder: The folder.
        doors: The result of `names_of` for each door.
    """
    taken = {}
    for source in sources:
        if not is_in(source, folder):
            for _, module, name in uses(source, folder):
                taken.setdefault(module, set()).add(name)
    for door, (defined, imported, only_offered) in doors.items():
        count = len(defined | only_offered | (imported & taken.get(door, set())))
        if count > MAX_NAMES:
            yield Finding(source_of(door).path, 1, f"offers {count} names; expected at most {MAX_NAMES}")


def findings():
    for folder, inside in DOORS.items():
        doors = {door: names_of(source_of(door)) for door in (folder, *(f"{folder}.{each}" for each in inside))}
        yield from too_wide(product(), folder, doors)
        yield from passed_by(product(), folder, {door: own | imported for door, (own, imported, _) in doors.items()})
