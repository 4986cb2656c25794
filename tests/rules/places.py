"""What stands in few files: what has one right place, and names that must be the only ones."""

import ast
import re
from collections import defaultdict
from typing import NamedTuple

from nadi.pdes import fidelity
from tests.rules.sources import Finding, product

COMPILER = {f"compiling/{name}.py" for name in ("compiler", "machine_code", "primitives")}


class Place(NamedTuple):
    """A text and the only files in which it may stand.

    Attributes:
        pattern: The text.
        files: Those that have it, each of which must.
        instead: What other files do.
    """

    pattern: re.Pattern
    files: set
    instead: str


PLACES = (
    Place(re.compile(r"^ *(?:import|from) numba\b", re.MULTILINE), COMPILER, "only compiling knows Numba"),
    Place(
        re.compile(r"^(?:import|from) mpi4py\b", re.MULTILINE), set(), "import mpi4py where ranks are known to exist"
    ),
    Place(re.compile(r"^ *import tomllib\b", re.MULTILINE), {"inputs/files.py"}, "inputs.parse_toml"),
    Place(
        re.compile(r"\.part(\.json)?\""),
        # The kernel cache has its own, relative to an open folder; PyTorch's processes cannot import Nadi.
        {"inputs/files.py", "compiling/kernel_cache.py", "et/pytorch/injected/nadi_collecting.py"},
        "inputs.whole_file makes temporary files",
    ),
    Place(
        re.compile(r"sys\.executable"),
        {
            "nadi/studies/benchmarks/bench.py",  # looks for mpiexec beside it
            "nadi/cli/commands/run.py",  # names it in a script, with -P
            "nadi/cli/commands/bench.py",  # prints it
            "nadi/launching/ranks.py",  # looks for mpiexec beside it
            "nadi/launching/installation.py",  # starts it
        },
        "nadi.launching.installation starts Python in safe-path mode",
    ),
    Place(re.compile(r"import pickle|cache=True"), set(), "what is loaded is never unpickled, as Numba's cache would"),
    Place(
        re.compile(r"\bpa\.(?:array|scalar)\(|\bpq\.read_table\(|\.(?:to_numpy|fill_null)\("),
        set(),
        "inputs.arrays converts columns, as PyArrow imports pandas; pq.ParquetFile reads files",
    ),
)


def misplaced(sources, places=PLACES):
    for pattern, files, instead in places:
        having = set()
        for source in sources:
            lines = [*source.lines_with(pattern)]
            having |= {source.path} if lines else set()
            if source.path not in files:
                yield from (source.found(line, f"`{pattern.pattern}` stands here: {instead}") for line in lines)
        for path in sorted(files - having):
            yield Finding(path, 1, f"`{pattern.pattern}` is not here any more: tests/rules/places.py names this file")


PRESCRIBED = {
    "Arguments": "topologies/builders",
    "TraceCheck": "et/checks",
    "Pipeline": "workload/generators/training/pipeline",
}
"""Names of classes that every file of a folder of plug-ins must have, and the folder."""


def shared_class_names(sources):
    """Find public classes whose name another class has, too."""
    found = defaultdict(list)
    for source in sources:
        folder = source.path.rpartition("/")[0]
        for node in source.tree.body:
            is_public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if is_public and PRESCRIBED.get(node.name) != folder:
                found[node.name].append(source.found(node.lineno, f"class {node.name} has a namesake"))
    for places in found.values():
        yield from places if len(places) > 1 else []


MODELS = tuple(fidelity.networks())
QUOTED = re.compile(f"['\"]({'|'.join(MODELS)})['\"]")
OTHER_MEANINGS = {
    ("pdes/core/declared.py", "flow"),  # a table of the engine
    ("nadi/cli/options.py", "flow"),  # a benchmark
    ("nadi/configuration/sections.py", "closed-form"),  # a value of [network] nvlink
    ("nadi/simulation/mixed_fidelity.py", "closed-form"),
}
OWN_KEYS = re.compile(r"congestion_aware|(?:network|fidelity|own)\.(?:collectives|resolution)\b")
"""Keys of one model of the network; "collectives" is also a key of [system]."""


def beside_models(sources):
    """Return files of nadi and pdes that are no model, no importer and no command of one.

    Importers and their commands write run files, as users do, of the model that another simulator has.
    """
    spared = ("pdes/fidelity/", "nadi/importers/", "nadi/cli/importers/")
    return [
        source
        for source in sources
        if source.path.startswith(("nadi/", "pdes/")) and not source.path.startswith(spared)
    ]


def named_models(sources):
    """Find models that the strings of a source name, docstrings left out, and keys of one model."""
    for source in sources:
        parts = [node for node in source.nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        documents = {id(node.body[0].value) for node in parts if node.body and isinstance(node.body[0], ast.Expr)}
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                names = [node.value] if node.value in MODELS else QUOTED.findall(node.value)
                for name in names:
                    if (source.path, name) not in OTHER_MEANINGS:
                        yield source.found(node.lineno, f"names the model {name}: ask what a model declares")
        for line in source.lines_with(OWN_KEYS):
            yield source.found(line, "reads a key of one model of the network")


def findings():
    yield from misplaced(product())
    yield from shared_class_names(product())
    yield from named_models(beside_models(product()))
