import ast
import importlib
import inspect
from fnmatch import fnmatch
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from compiling import kernel_sources
from pdes import Settings, SharedBuffer, balancing, congestion, disciplines, fidelity
from pdes.build.constants import hooks_of
from pdes.build.layout import Layout
from pdes.core.memory import CACHE_LINE, row_of, rows_of
from pdes.core.rows.messages import WholeMessage
from pdes.core.rows.nic import LaterMessage, Message, PendingRequest
from pdes.core.rows.row import Row, WordKind, kinds_of_rows, word
from pdes.core.rows.run import Hooks
from pdes.core.rows.workers import MpiCalls, ParcelHooks
from pdes.workers.other_teams import OTHER_TEAMS
from tests.nonempty import nonempty
from topologies import build

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiling", "pdes", "et", "topologies", "workload", "partition", "nadi")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DECORATORS = {"kernel", "inline", "outline", "hook"}
NUMPY_CASTS = {"int64", "float64"}
PLAIN_TWINS = {
    "call_hook",
    "trailing_zeros",
    "prefetch",
    "load_unaligned",
    "store_unaligned",
    "load_acquire",
    "store_release",
    "fetch_add",
    "yield_core",
    "read",
}
MAKES_HELPERS = {"seen_as", "reader", "bits"}
BUILTINS = {"range", "min", "max", "abs", "int", "float"}
MAKES_OBJECTS = (
    ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.JoinedStr, ast.Lambda,
    ast.Try, ast.Raise, ast.With, ast.Global, ast.Nonlocal, ast.Yield, ast.Starred,
)  # fmt: skip


def imports(tree, name, *, top_only=False):
    """Lines that import the package `name`."""
    nodes = tree.body if top_only else ast.walk(tree)
    lines = []
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        lines += [node.lineno for found in names if found.split(".")[0] == name]
    return lines


def kernels(tree):
    """Functions that Numba compiles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(getattr(d, "id", None) in DECORATORS for d in node.decorator_list):
            yield node


def negative_indices(function):
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript):
            for part in ast.walk(node.slice):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
                    yield part.lineno


def forbidden(function, known):
    """(line, what) of all that would allocate or that Numba should not meet; known: names of callable helpers."""
    for node in ast.walk(function):
        if isinstance(node, MAKES_OBJECTS):
            yield node.lineno, type(node).__name__
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                fine = getattr(called.value, "id", None) == "np" and called.attr in NUMPY_CASTS
                if not fine:
                    yield node.lineno, called.attr
            elif called.id not in known | BUILTINS:
                yield node.lineno, called.id


def helpers(tree):
    """Names in a module that kernels may call: compiled, made by MAKES_HELPERS there, or imported from such files."""
    names = {function.name for function in kernels(tree)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            getattr(d, "id", None) == "intrinsic" for d in node.decorator_list
        ):
            names.add(node.name)
        if isinstance(node, ast.ImportFrom) and kernel_sources.are_hashed(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}
        made_by = getattr(getattr(node.value, "func", None), "id", "") if isinstance(node, ast.Assign) else ""
        if made_by in MAKES_HELPERS:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def free_names(function):
    """Names that a function reads but does not bind."""
    bound = {argument.arg for argument in function.args.args}
    read = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else read).add(node.id)
    return read - bound


@cache
def parsed(path):
    return ast.parse(path.read_text(), str(path))


@cache
def naming(*words):
    """Sources in whose text one of these words stands: parsing all takes seconds each time."""
    return [path for path in SOURCES if any(word in path.read_text() for word in words)]


def decorated():
    """Sources that may have kernels."""
    return naming(*(f"@{name}" for name in sorted(DECORATORS)))


def test_there_is_something_to_check():
    found = [function.name for path in decorated() for function in kernels(parsed(path))]
    assert len(found) > 60
    assert {"work", "window", "on_ack", "link_send", "mix"} <= set(found)


def imported(tree):
    """Modules of ours that a file imports when it runs."""
    types_only = [node for node in ast.walk(tree) if getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING"]
    never_run = {each for node in types_only for line in node.body for each in ast.walk(line)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in never_run and node.module.split(".")[0] in PACKAGES:
            for alias in node.names:
                within = f"{node.module}.{alias.name}"
                yield within if file_of(within).is_file() else node.module


def file_of(module):
    return ROOT / f"{module.replace('.', '/')}.py"


def test_what_kernels_are_made_of_names_the_folder_of_their_code():
    """Else code that was compiled before an edit would be taken for code of what stands there now."""
    files = [path for path in decorated() if any(kernels(parsed(path)))]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    assert {name.split(".")[0] for name in modules} == {"nadi", "pdes"}
    reached = set()
    while modules:
        module = modules.pop()
        assert kernel_sources.are_hashed(module), "say so in FOLDERS of compiling/kernel_sources.py"
        if module not in reached and file_of(module).is_file():
            reached.add(module)
            modules += imported(parsed(file_of(module)))


def test_imports_are_followed():
    tree = ast.parse(
        "import os\nfrom pdes.core import state as s\nfrom pdes.core.state import INF\nfrom et import read_trace\n"
        "if TYPE_CHECKING:\n    from workload import Program"
    )
    assert [*imported(tree)] == ["pdes.core.state", "pdes.core.state", "et"]


def test_numba_stands_in_one_room():
    users = [path.relative_to(ROOT).as_posix() for path in naming("numba") if imports(parsed(path), "numba")]
    assert users == [f"compiling/{name}.py" for name in ("compiler", "machine_code", "primitives", "records")]


@pytest.mark.parametrize("package", ["mpi4py"])
def test_mpi_is_not_imported_with_any_module(package):
    assert [str(path) for path in naming(package) if imports(parsed(path), package, top_only=True)] == []


@pytest.mark.parametrize("path", decorated(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_kernels_allocate_nothing_and_use_no_negative_index(path):
    tree = parsed(path)
    known = helpers(tree) | PLAIN_TWINS
    for function in kernels(tree):
        assert list(negative_indices(function)) == [], function.name
        assert list(forbidden(function, known)) == [], function.name


@pytest.mark.parametrize("path", kernel_sources.files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_kernels_read_constants_and_helpers_only(path):
    tree = parsed(path)
    known = helpers(tree) | BUILTINS | {"np", "kernel", "inline", "outline"} | PLAIN_TWINS
    for function in kernels(tree):
        strange = {name for name in free_names(function) - known if not name.isupper()}
        assert strange == set(), function.name


def test_the_rules_find_what_they_forbid():
    bad = ast.parse(
        "import numba.core\n"
        "own = seen_as(Kind)\nother = kind_of(Kind)\n"
        "def f():\n    from mpi4py import MPI\n"
        "@inline\ndef g(a, i):\n    b = np.zeros(3)\n    c = [1]\n    print(a)\n    a.sort()\n"
        "    own(a)[i].word = other(a)[i].word + a.own(i)\n    return a[i, -1] + state\n"
    )
    (function,) = kernels(bad)
    assert imports(bad, "numba") == [1]
    assert imports(bad, "mpi4py") == [5]
    assert imports(bad, "mpi4py", top_only=True) == []
    assert list(negative_indices(function)) == [13]
    assert helpers(bad) == {"g", "own"}
    found = [what for _, what in forbidden(function, helpers(bad))]
    assert sorted(found) == ["List", "other", "own", "print", "sort", "zeros"], "own is called as an attribute once"
    assert "state" in free_names(function)


NOT_WORDS_OF_ROWS = {
    ("pdes/checkpoint/*.py", "*", "LINK"): "columns of packets between worlds are numbered",
    ("pdes/core/state.py", "Annotated", "*"): "annotations",
    ("pdes/messages/events.py", "events", "*ING"): "rows that stand before the first event of a list",
    ("pdes/npu/contention.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/messages/message_loop.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/npu/quiet.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/npu/remote_memory.py", "lane", "REMOTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/harvest/stall.py", "running", "COMMUNICATION"): "kinds of an NPU's rows are numbered",
    ("nadi/simulation/closed_forms/advancing/advance.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/network/shared_switch.py", "batch_out", "AHEAD"): "what is so far behind in the batch",
    (
        "nadi/simulation/trace_decoding/nodes.py",
        "state",
        "*",
    ): "words that are asked for by readers of files, who know no rows",
    ("pdes/network/telemetry.py", "outbox", "CROSSING_WORDS"): "words of a packet in an outbox, behind which more lie",
}
"""File, array and names by which it may be indexed, and why: all other words have names of their own (Row)."""


def addends(index):
    """What an index is the sum of; of several indices, each."""
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add):
        yield from addends(index.left)
        yield from addends(index.right)
    elif isinstance(index, ast.List | ast.Tuple):
        for each in index.elts:
            yield from addends(each)
    else:
        yield index


def numbered_words(tree):
    """(array, name) of all that is indexed by a constant with a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            for part in addends(node.slice):
                name = getattr(part, "id", "") or getattr(part, "attr", "")
                if name.isupper():
                    yield getattr(node.value, "id", "") or getattr(node.value, "attr", ""), name


def test_words_of_rows_have_names_and_no_numbers():
    used, found = set(), []
    for path in kernel_sources.files():
        file = path.relative_to(ROOT).as_posix()
        for array, name in numbered_words(parsed(path)):
            fits = {each for each in NOT_WORDS_OF_ROWS if all(map(fnmatch, (file, array, name), each))}
            used |= fits
            found += [] if fits else [f"{file}: {array}[{name}]"]
    assert sorted(set(found)) == []
    assert set(NOT_WORDS_OF_ROWS) - used == set(), "what nobody needs"


PACKED = {"pdes/core/packet.py"}
"""Where words of packets and links, tags and keys are packed and unpacked, for all others by name."""
PLACES = {20, 22, 24, 40, 44, 46, 48, 56}
"""Where the parts of such words begin."""


def unpacked(tree):
    """Shifts of something by one of those places."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift):
            is_place = isinstance(node.right, ast.Constant) and node.right.value in PLACES
            if is_place and not isinstance(node.left, ast.Constant):
                yield ast.unparse(node)


def test_words_of_packets_and_links_are_unpacked_by_name():
    for path in nonempty(kernel_sources.files()):
        if path.relative_to(ROOT).as_posix() not in PACKED:
            assert not [*unpacked(parsed(path))], path


def test_the_rule_of_packed_words_finds_them():
    assert [*unpacked(ast.parse("a = tag >> 44\nb = 1 << 20\nc = w1 << KIND_SHIFT"))] == ["tag >> 44"]
    assert [*unpacked(ast.parse((ROOT / "pdes/core/packet.py").read_text()))]


def test_the_rule_of_words_finds_them():
    bad = ast.parse(
        "a.b[i * WORDS + NEXT] = c[[state.UNA, i]] + d[i + j + 2 * SIDES] + e[i & MASK] + f(x)[:, AT]\ng[:MOST]"
    )
    assert sorted(numbered_words(bad)) == [("", "AT"), ("b", "NEXT"), ("c", "UNA")]


for _module in kernel_sources.modules():
    importlib.import_module(_module)


def below(kind):
    """All kinds of rows that are derived from one."""
    return [each for child in kind.__subclasses__() for each in (child, *below(child))]


KINDS_OF_ROWS = kinds_of_rows()


def written(kind):
    """Its class as it stands in the sources."""
    tree = parsed(ROOT / f"{kind.__module__.replace('.', '/')}.py")
    return next(node for node in tree.body if getattr(node, "name", "") == kind.__name__)


@pytest.mark.parametrize("kind", KINDS_OF_ROWS, ids=lambda kind: kind.__name__)
def test_a_row_is_as_long_as_declared_and_its_words_lie_one_behind_the_other(kind):
    asked = [each.value.value for each in written(kind).keywords if each.arg == "words"]
    bits = [each.value.value for each in written(kind).keywords if each.arg == "bits"] or [64]
    whole = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
    assert kind.dtype.itemsize == bits[0] // 8 * kind.words
    if asked:
        assert kind.dtype.itemsize % CACHE_LINE == 0 or CACHE_LINE % kind.dtype.itemsize == 0
    at = 0
    for name, declared in kind.declared.items():
        field, offset = kind.dtype.fields[name]
        assert offset == at, name
        own = declared.bits or bits[0]
        assert field.base == (np.float64 if declared.kind is WordKind.FLOAT else whole[own]), name
        assert field.itemsize == own // 8 * declared.many, name
        at += field.itemsize
    assert [kind.words] == (asked or [-(-at // (bits[0] // 8))])


@pytest.mark.parametrize("kind", KINDS_OF_ROWS, ids=lambda kind: kind.__name__)
def test_words_have_a_meaning_and_a_name_that_nothing_else_has(kind):
    names = [node.targets[0].id for node in written(kind).body if isinstance(node, ast.Assign)]
    inherited = [name for base in kind.__bases__ for name in getattr(base, "declared", {})]
    assert sorted(names + inherited) == sorted(kind.declared), "a name that stands twice hides a word"
    assert [name for name in kind.declared if hasattr(np.recarray, name)] == []
    assert [name for name, declared in kind.declared.items() if not declared.meaning.strip()] == []


@pytest.mark.parametrize("pair", [*combinations((Message, WholeMessage, PendingRequest, LaterMessage), 2)])
def test_kinds_that_share_memory_agree_on_the_words_that_they_share(pair):
    first, second = (kind.dtype for kind in pair)
    assert first.itemsize == second.itemsize
    shared = {"payload_bytes", "tag", "ref"}
    assert shared <= set(first.names) & set(second.names)
    for name in nonempty(set(first.names) & set(second.names) - {"_padding"}):
        assert first.fields[name] == second.fields[name], name


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_ROWS if below(kind)], ids=lambda kind: kind.__name__)
def test_what_is_added_to_a_kind_of_row_leaves_its_words_where_they_are(kind):
    for derived in nonempty(below(kind)):
        assert derived.dtype.itemsize == kind.dtype.itemsize
        assert {name: derived.dtype.fields[name] for name in kind.declared} == {
            name: kind.dtype.fields[name] for name in kind.declared
        }


def test_rows_refuse_what_would_not_work():
    with pytest.raises(TypeError, match="Bad: NumPy's records have attributes size, flags of their own"):
        type("Bad", (Row,), {name: word("count", "things") for name in ("size", "flags", "other")})
    with pytest.raises(TypeError, match="Long: 9 words, expected at most 8"):
        type("Long", (Row,), {"many": word("count", "things", many=9)}, words=8)


def test_rows_begin_as_their_words_say():
    class Lamp(Row, words=8):
        lit = word("flag", "it burns")
        last = word("time", "when it was lit, -1 never", begins=-1)
        bulbs = word("count", "that it has", many=2, begins=3)

    lamps = rows_of(Lamp, 2, lit=[0, 1])
    assert (lamps.lit.tolist(), lamps.last.tolist(), lamps.bulbs.tolist()) == ([0, 1], [-1, -1], [[3, 3], [3, 3]])
    assert row_of(Lamp, last=5).last == 5
    assert len(rows_of(Lamp, 0)) == 1, "it has an address"
    assert lamps.ctypes.data % CACHE_LINE == 0


WORDS_OF_HOOKS = {**Hooks.declared, **ParcelHooks.declared}


def hook_calls(tree):
    """(line, word of a row of hooks, number of arguments behind the first address) of calls by `call_hook`."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in WORDS_OF_HOOKS:
            bound[node.targets[0].id] = node.value.attr
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "call_hook":
            hook, _address, *arguments = node.args
            yield node.lineno, hook.attr if isinstance(hook, ast.Attribute) else bound[hook.id], len(arguments)


def declared_arguments(word):
    """Names of what is passed on to a hook."""
    listed = WORDS_OF_HOOKS[word].meaning.partition(")")[0].removeprefix("(")
    return [name for name in listed.split(", ") if name]


def test_hooks_are_called_as_they_are_declared():
    called = set()
    for path in nonempty(kernel_sources.files()):
        if path.name not in {"jit.py", "compiler.py"}:
            for line, word, count in hook_calls(parsed(path)):
                if word in MpiCalls.declared:  # a C function
                    continue
                called.add(word)
                assert count == len(declared_arguments(word)), f"{path}:{line}"
    assert called == set(WORDS_OF_HOOKS)


def test_hooks_take_what_is_passed_on():
    with_all = Settings(
        congestion_control=congestion.control("hpcc"),
        load_balancing=balancing.balancing("adaptive"),
        switch=SharedBuffer(buffer_bytes=1 << 24, class_weights=(1, 1)),
        selective_repeat=True,
        rendezvous_bytes=1,
        collectives_in_flight=1,
        compute_slowdown=2.0,
    )
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2")
    found = hooks_of(Layout(graph, with_all), with_all) | OTHER_TEAMS
    others = {"congestion_control": [congestion.control(name).update for name in congestion.names()]}
    others["discipline"] = [disciplines.discipline(name).pick for name in disciplines.names()]
    others["balancing"] = [balancing.balancing(name).pick for name in balancing.names()]
    others["act"] = [hooks.act for model in fidelity.networks().values() for hooks in model.hooks]
    for name, hook in found.items():
        for function in {hook, *others.get(name, [])} - {None}:
            names = inspect.signature(getattr(function, "py_func", function)).parameters
            assert len(names) == 1 + len(declared_arguments(name)), (name, function)
    assert len(found) > 12 + len(OTHER_TEAMS)
    assert OTHER_TEAMS.keys() == set(ParcelHooks.declared)
