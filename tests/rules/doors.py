"""Doors of rooms: what a room offers to other rooms, in its `__init__` and a few public modules."""

import ast

from tests.rules.sources import Finding, product, read

MAX_NAMES = 30
"""Names that a room's `__init__` may offer."""
PUBLIC_MODULES = {"topologies": ("clusters", "endpoints", "builders.htsim")}
"""Public modules of the rooms that have a door; other rooms import no other module of them."""


def names_of(door):
    """Return the public names that the `__init__` of a room offers."""
    tops = [node for node in door.tree.body if isinstance(node, ast.ImportFrom | ast.FunctionDef | ast.ClassDef)]
    names = [a.asname or a.name for node in tops if isinstance(node, ast.ImportFrom) for a in node.names]
    return {*names, *(node.name for node in tops if not isinstance(node, ast.ImportFrom))}


def passed_by(sources, room, public, names):
    """Find imports from inside a room by other rooms."""
    for source in sources:
        if source.path.startswith(f"{room}/"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                used = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in used:
                inside = name.removeprefix(f"nadi.{room}.")
                is_offered = inside in {*names, *public} or inside.startswith(tuple(f"{each}." for each in public))
                if inside != name and not is_offered:
                    yield source.found(node.lineno, f"imports {name}, which {room}/__init__.py does not offer")


def findings():
    for room, public in PUBLIC_MODULES.items():
        door = read(f"{room}/__init__.py")
        names = names_of(door)
        if len(names) > MAX_NAMES:
            yield Finding(door.path, 1, f"offers {len(names)} names; expected at most {MAX_NAMES}")
        yield from passed_by(product(), room, public, names)
