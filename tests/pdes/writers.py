"""Which files of the engine write which kinds of rows, found in their sources.

An expression's kind of row follows from where it comes from: a field of a world's NamedTuples (`net.ctl`), a helper of
`seen_as` or `reader`, `rows_of(Port, n)`; then from what names are bound to, what functions return and what their
callers hand them. A write is a store into a word or an item of such a row, or `clear_row`, `copy_row` and their like,
or words that rows are made with.
"""

import ast
import functools
import importlib
import typing

from pdes.core.rows.row import Row

MAKES_ROWS = {"row_of", "rows_of"}
WRITES_ITS_FIRST = {"clear_row", "copy_row", "fetch_add", "store_release", "setattr"}
SAME_KIND = {"view", "reshape", "copy", "_replace"}
FOLLOWED = (ast.Assign, ast.AnnAssign, ast.For, ast.comprehension, ast.Return, ast.Call)
CORE = "pdes.core"
PRIMITIVES = "pdes.core.jit"
"""Where `clear_row` and the like stand, whose callers are who writes."""


@functools.cache
def field_types(record):
    """Field of a NamedTuple -> what it holds: a NamedTuple, a kind of row, or None."""
    hints = typing.get_type_hints(record, include_extras=True)
    held = {name: getattr(hint, "__metadata__", (hint,))[0] for name, hint in hints.items()}
    return {name: kind if is_row(kind) or is_record(kind) else None for name, kind in held.items()}


def is_row(kind):
    return isinstance(kind, type) and issubclass(kind, Row)


def is_record(kind):
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def room(module):
    """The package that a module's name begins with, two names deep."""
    return ".".join(module.split(".")[:2])


def declaring(kind, name):
    """The kind that declares a word of a kind of row; that kind itself if the name is none."""
    return next((each for each in kind.__mro__ if name in vars(each) and name in kind.declared), kind)


class Module:
    """A file of the engine: its tree, and what its names stand for."""

    def __init__(self, name, tree):
        self.name, self.tree = name, tree
        self.classes, self.makers, self.imported = {}, {}, {}
        self.functions, self.methods = {}, set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                own = {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
                self.functions |= own
                self.methods |= set(own)
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def resolve(self, rows_and_records):
        """Find the classes that its names stand for, and its own helpers of `seen_as` and `reader`."""
        for name, value in rows_and_records(self.name).items():
            self.classes[name] = value
        for node in self.tree.body:
            called = getattr(getattr(node, "value", None), "func", None)
            if isinstance(node, ast.Assign) and getattr(called, "id", "") in {"seen_as", "reader"}:
                kind = self.classes.get(getattr(node.value.args[0], "id", ""))
                self.makers |= {target.id: kind for target in node.targets if kind}


def classes_of(module):
    """Rows and NamedTuples among the names of a module of the engine, which is imported."""
    names = vars(importlib.import_module(module))
    return {name: value for name, value in names.items() if is_row(value) or is_record(value)}


class Engine:
    """All files of the engine: their trees, and what is known so far of names, results and parameters.

    Args:
        trees: by dotted name of the module.
        rows_and_records: from such a name to its classes by name.
    """

    def __init__(self, trees, rows_and_records=classes_of):
        self.modules = {name: Module(name, tree) for name, tree in trees.items()}
        for module in self.modules.values():
            module.resolve(rows_and_records)
        for module in self.modules.values():
            for name, (source, original) in module.imported.items():
                if source in self.modules and original in self.modules[source].makers:
                    module.makers[name] = self.modules[source].makers[original]
        self.by_field = {}  # (room, field) -> what records of that room hold there
        records = {each for module in self.modules.values() for each in module.classes.values() if is_record(each)}
        for record in records:
            for field, kind in field_types(record).items():
                self.by_field.setdefault((room(record.__module__), field), set()).add(kind)
        self.known = {}  # (module, function, name) -> kinds; what a function returns is "return", ("return", which)
        self.nodes = {
            (module.name, name): [each for each in ast.walk(function) if isinstance(each, FOLLOWED)]
            for module in self.modules.values()
            for name, function in module.functions.items()
        }
        for module in self.modules.values():
            for name, function in module.functions.items():
                for argument in function.args.args:
                    kind = self._class(module, argument.annotation)
                    self._learn((module.name, name, argument.arg), {kind} - {None})
        self.settle()

    def settle(self):
        """Follow all bindings until nothing more is learnt."""
        while self._pass():
            pass

    def _pass(self):
        """Follow all bindings once; whether anything was learnt."""
        before = sum(map(len, self.known.values()))
        for module in self.modules.values():
            for function in module.functions:
                self._follow(module, function)
        return sum(map(len, self.known.values())) > before

    def _class(self, module, node):
        """The row or NamedTuple that an expression names, if it is one."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = self._module(module, node.value)
            return home and home.classes.get(node.attr)
        return module.classes.get(getattr(node, "id", ""))

    def _module(self, module, node):
        """The module that an expression names in another one, if it is one."""
        return self.modules.get(".".join(module.imported.get(getattr(node, "id", ""), ())))

    def _learn(self, key, kinds):
        self.known.setdefault(key, set()).update(kinds)

    def _follow(self, module, function):
        for node in self.nodes[module.name, function]:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(module, function, target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._bind(module, function, node.target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind(module, function, node.target, node.iter)
            elif isinstance(node, ast.Return) and node.value is not None:
                self._learn((module.name, function, "return"), self.kinds(module, function, node.value))
                for i, each in enumerate(getattr(node.value, "elts", [])):
                    self._learn((module.name, function, ("return", i)), self.kinds(module, function, each))
            elif isinstance(node, ast.Call):
                self._hand_over(module, function, node)

    def _bind(self, module, function, target, value):
        if isinstance(target, ast.Name):
            self._learn((module.name, function, target.id), self.kinds(module, function, value))
        elif isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
            self._learn(("", "self", target.attr), self.kinds(module, function, value))
        elif isinstance(target, ast.Tuple):
            called = self._called(module, function, value.func) if isinstance(value, ast.Call) else None
            for i, each in enumerate(target.elts):
                if isinstance(value, ast.Tuple) and i < len(value.elts):
                    self._bind(module, function, each, value.elts[i])
                elif called:
                    found = self._of(called[0].name, called[1], ("return", i))
                    if isinstance(each, ast.Name):
                        self._learn((module.name, function, each.id), found)
                    elif isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self":
                        self._learn(("", "self", each.attr), found)

    def _called(self, module, function, called):
        """The module and name of a function of the engine that is called; None if it is no such thing."""
        if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "self":
            name = f"{function.split('.')[0]}.{called.attr}"
            return (module, name) if name in module.methods else None
        if isinstance(called, ast.Attribute):
            home = self._module(module, called.value)
            return (home, called.attr) if home and called.attr in home.functions else None
        name = getattr(called, "id", None)
        source, original = module.imported.get(name, (module.name, name))
        home = self.modules.get(source)
        return (home, original) if home and original in home.functions else None

    def _hand_over(self, module, function, call):
        called = self._called(module, function, call.func)
        if called is None:
            return
        home, name = called
        names = [argument.arg for argument in home.functions[name].args.args][name in home.methods :]
        handed = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
        for parameter, value in handed:
            self._learn((home.name, name, parameter), self.kinds(module, function, value))

    def _of(self, module, function, name):
        return self.known.get((module, function, name), set())

    def kinds(self, module, function, node):
        """Kinds of row (or NamedTuples) that an expression may be, an array of them, or a view of their words."""
        if isinstance(node, ast.Name):
            return self._of(module.name, function, node.id)
        if isinstance(node, ast.Subscript | ast.Starred):
            return self.kinds(module, function, node.value)
        if isinstance(node, ast.IfExp):
            return self.kinds(module, function, node.body) | self.kinds(module, function, node.orelse)
        if isinstance(node, ast.Attribute):
            holders = self.kinds(module, function, node.value)
            return self._of_attribute(holders, node.attr) if holders else self._by_name(module, node.attr)
        if isinstance(node, ast.Call):
            return self._of_call(module, function, node)
        return set()

    def _by_name(self, module, name):
        """Of an attribute of who knows what: as records of the same room have it, else those of the core."""
        fields = self.by_field.get((room(module.name), name), self.by_field.get((CORE, name), set()))
        return (fields if len(fields) == 1 else set()) - {None} | self._of("", "self", name)

    def _of_attribute(self, holders, name):
        found = {holder for holder in holders if is_row(holder) and name in holder.declared}
        return found | {field_types(holder).get(name) for holder in holders if is_record(holder)} - {None}

    def _of_call(self, module, function, node):
        name = getattr(node.func, "id", None)
        given = [*node.args, *(each.value for each in node.keywords)]
        dtypes = {self._class(module, each.value) for each in given if getattr(each, "attr", "") == "dtype"} - {None}
        if dtypes:
            return dtypes
        if name in module.makers:
            return {module.makers[name]}
        if name in MAKES_ROWS:
            return {self._class(module, each) for each in given} - {None}
        made = self._class(module, node.func)
        if made is not None:
            return {made} if is_record(made) else set()
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_KIND:
            return self.kinds(module, function, node.func.value)
        called = self._called(module, function, node.func)
        return self._of(called[0].name, called[1], "return") if called else set()

    def written(self, module, function):
        """(kind of row, node) of each write of a function; kind None: the rows are of no kind that can be told."""
        for node in ast.walk(module.functions[function]):
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                yield from self._of_store(module, function, node)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in WRITES_ITS_FIRST:
                for kind in filter(is_row, self.kinds(module, function, node.args[0])):
                    yield kind, node
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKES_ROWS:
                kind = self._class(module, node.args[0])
                for column in node.keywords if kind else ():
                    yield declaring(kind, column.arg), node

    def _of_store(self, module, function, node):
        kinds = {kind for kind in self.kinds(module, function, node.value) if is_row(kind)}
        words, inner = [], node
        while isinstance(inner, ast.Subscript | ast.Attribute):
            words.append(getattr(inner, "attr", "") or getattr(getattr(inner, "slice", None), "value", ""))
            inner = inner.value
        for kind in kinds:
            yield declaring(kind, next((each for each in words if each in kind.declared), "")), node
        if isinstance(node, ast.Attribute) and not kinds and getattr(node.value, "id", "") != "self":
            yield None, node

    def writes(self):
        """(module, kind of row, node) of all writes."""
        for module in self.modules.values():
            for function in module.functions if module.name != PRIMITIVES else ():
                for kind, node in self.written(module, function):
                    yield module.name, kind, node


def trees(root, paths):
    """Trees of files, by dotted name from a folder on."""
    found = {}
    for path in paths:
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(), str(path))
    return found
