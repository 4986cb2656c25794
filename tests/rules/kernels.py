"""What code may do that Numba compiles, and how it reads words of rows, of packets and of hooks."""

import ast
from fnmatch import fnmatch
from functools import cache

from nadi.compiling import kernel_cache
from nadi.pdes.core.rows.run import BatchHooks, Hooks, MpiCalls
from tests.rules.sources import ROOT, Finding, engine, path_of, product, read

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


def kernels(source):
    if not any(f"@{name}" in source.text for name in DECORATORS):
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and any(getattr(d, "id", None) in DECORATORS for d in node.decorator_list):
            yield node


@cache
def helpers(source):
    """Names in a module that kernels may call: compiled, made by MAKES_HELPERS there, or imported from such files.

    Those of an imported module stand behind its name: `packet.flags`.
    """
    names = {function.name for function in kernels(source)}
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            getattr(d, "id", None) == "intrinsic" for d in node.decorator_list
        ):
            names.add(node.name)
        if isinstance(node, ast.ImportFrom) and kernel_cache.are_hashed(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}
            for alias in node.names:
                path = path_of(f"{node.module}.{alias.name}")
                if (ROOT / path).is_file():
                    names |= {f"{alias.asname or alias.name}.{name}" for name in helpers(read(path))}
        made_by = getattr(getattr(node.value, "func", None), "id", "") if isinstance(node, ast.Assign) else ""
        if made_by in MAKES_HELPERS:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _forbidden(function, known):
    """(line, what) of all that would allocate or that Numba should not meet; known: names of callable helpers."""
    for node in ast.walk(function):
        if isinstance(node, MAKES_OBJECTS):
            yield node.lineno, f"makes a {type(node).__name__}"
        elif isinstance(node, ast.Subscript):
            for part in ast.walk(node.slice):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
                    yield part.lineno, "has a negative index"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                fine = getattr(called.value, "id", None) == "np" and called.attr in NUMPY_CASTS
                if not fine and ast.unparse(called) not in known:
                    yield node.lineno, f"calls {called.attr}"
            elif called.id not in known | BUILTINS:
                yield node.lineno, f"calls {called.id}"


def _free_names(function, modules):
    """Names that a function reads but does not bind, with a line of each; also `packet.flags` of modules."""
    bound = {argument.arg for argument in function.args.args}
    read = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            else:
                read[node.id] = node.lineno
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules:
            read[ast.unparse(node)] = node.lineno
    return {name: line for name, line in read.items() if name not in bound}


def unfit(sources):
    """Find what a kernel may not do: allocate, index from the end, read what is no constant, call what is no kernel."""
    for source in sources:
        known = helpers(source) | PLAIN_TWINS
        readable = known | BUILTINS | {"np", "kernel", "inline", "outline"}
        modules = {name.partition(".")[0] for name in known if "." in name}
        for function in kernels(source):
            for line, what in _forbidden(function, known):
                yield source.found(line, f"kernel {function.name} {what}")
            for name, line in _free_names(function, modules).items():
                if name not in readable and not name.rpartition(".")[2].isupper():
                    yield source.found(line, f"kernel {function.name} reads {name}, which is no constant and no helper")


def imported(source):
    types_only = [node for node in source.nodes if getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING"]
    never_run = {each for node in types_only for line in node.body for each in ast.walk(line)}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node not in never_run and node.module.split(".")[0] == "nadi":
            for alias in node.names:
                within = f"{node.module}.{alias.name}"
                yield within if (ROOT / path_of(within)).is_file() else node.module


def not_hashed(sources):
    """Find files of kernels, and what those import, that no folder of FOLDERS has.

    Code that was compiled before an edit of such a file would be taken for code of what stands there now.
    """
    modules = [source.module for source in sources if any(kernels(source))]
    reached = set()
    while modules:
        module = modules.pop()
        path = path_of(module)
        if module not in reached and (ROOT / path).is_file():
            reached.add(module)
            source = read(path)
            if not kernel_cache.are_hashed(module):
                yield source.found(1, "kernels need it: name its folder in FOLDERS of compiling/kernel_cache.py")
            modules += imported(source)


NOT_WORDS_OF_ROWS = {
    ("pdes/construction/packets.py", "*", "LINK"): "columns of packets between worlds are numbered",
    ("pdes/core/state.py", "Annotated", "*"): "annotations",
    ("pdes/messages/events.py", "events", "*ING"): "rows that stand before the first event of a list",
    ("pdes/npu/contention.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/messages/message_loop.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/reuse_kernels/quiescent.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/npu/contention.py", "lane", "REMOTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/outcomes/stall.py", "running", "COMMUNICATION"): "kinds of an NPU's rows are numbered",
    ("nadi/simulation/closed_forms/advancing/advance.py", "lane", "COMPUTE_LANE"): "lanes of an NPU are numbered",
    ("pdes/network/shared_switch.py", "batch_out", "AHEAD"): "what is so far behind in the batch",
    ("et/kernels/nodes.py", "state", "*"): "words that are asked for by readers of files, who know no rows",
    ("pdes/network/telemetry.py", "outbox", "CROSSING_WORDS"): "words of a packet in an outbox, behind which more lie",
}
"""File, array and names by which it may be indexed, and why: all other words have names of their own (Row)."""


def _addends(index):
    """What an index is the sum of; of several indices, each."""
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add):
        yield from _addends(index.left)
        yield from _addends(index.right)
    elif isinstance(index, ast.List | ast.Tuple):
        for each in index.elts:
            yield from _addends(each)
    else:
        yield index


def numbered_words(sources, allowed):
    """Find words of rows by number: arrays that are indexed by a constant with a name; allowed: where it is right."""
    used = set()
    for source in sources:
        for node in source.nodes:
            for part in _addends(node.slice) if isinstance(node, ast.Subscript) else []:
                name = getattr(part, "id", "") or getattr(part, "attr", "")
                if name.isupper():
                    array = getattr(node.value, "id", "") or getattr(node.value, "attr", "")
                    fits = {each for each in allowed if all(map(fnmatch, (source.path, array, name), each))}
                    used |= fits
                    if not fits:
                        yield source.found(node.lineno, f"{array}[{name}]: give the word a name (Row)")
    for each in sorted(set(allowed) - used):
        yield Finding("tests/rules/kernels.py", 1, f"NOT_WORDS_OF_ROWS: nothing needs {each}")


PACKED = {"pdes/core/packet.py"}
"""Where words of packets and links, tags and keys are packed and unpacked, for all others by name."""
PLACES = {20, 22, 24, 40, 44, 46, 48, 56}
"""Where the parts of such words begin."""


def unpacked(sources):
    """Find shifts of something by one of those places."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift):
                is_place = isinstance(node.right, ast.Constant) and node.right.value in PLACES
                if is_place and not isinstance(node.left, ast.Constant):
                    yield source.found(node.lineno, f"{ast.unparse(node)}: pdes/core/packet.py unpacks words by name")


WORDS_OF_HOOKS = {**Hooks.declared, **BatchHooks.declared}


def declared_arguments(word):
    """Names of what is passed on to a hook."""
    listed = WORDS_OF_HOOKS[word].meaning.partition(")")[0].removeprefix("(")
    return [name for name in listed.split(", ") if name]


def _hook_calls(source):
    """(line, word of a row of hooks, number of arguments behind the first address) of calls by `call_hook`."""
    bound = {}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in WORDS_OF_HOOKS:
            bound[node.targets[0].id] = node.value.attr
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "call_hook":
            hook, _address, *arguments = node.args
            yield node.lineno, hook.attr if isinstance(hook, ast.Attribute) else bound[hook.id], len(arguments)


def wrong_hook_calls(sources):
    """Find calls of hooks with another number of arguments than declared, and hooks that nothing calls."""
    called = set()
    for source in sources:
        for line, word, count in _hook_calls(source):
            if word in MpiCalls.declared:  # a C function
                continue
            called.add(word)
            expected = declared_arguments(word)
            if count != len(expected):
                yield source.found(line, f"{word} gets {count} arguments, expected {', '.join(expected)}")
    for word in sorted(set(WORDS_OF_HOOKS) - called):
        yield Finding("pdes/core/rows", 1, f"nothing calls the hook {word}")


def findings():
    yield from unfit(engine())
    yield from not_hashed(product())
    yield from numbered_words(engine(), NOT_WORDS_OF_ROWS)
    yield from unpacked(source for source in engine() if source.path not in PACKED)
    yield from wrong_hook_calls(
        source for source in engine() if source.path not in {"compiling/decorators.py", "compiling/compiler.py"}
    )
