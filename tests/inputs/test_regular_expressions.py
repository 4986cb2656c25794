"""Every regular expression that reads input takes linear time on strings that are made of its own parts."""

import ast
import fnmatch
import importlib
import re
import time
from itertools import islice, product
from pathlib import Path
from re import _constants as codes, _parser as parser

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")
SEARCHES = {"search", "sub", "subn", "split", "finditer", "findall"}
ANCHORED = {"match", "fullmatch"}
MADE_OF_WHAT_USERS_WRITE = {
    "et/files.py": "re.escape of the end of a file's name",
    "et/reshape/parts.py": "fnmatch.translate of a user's wildcards, whose repetitions are atomic",
    "inputs/kinds.py": "its own tables, whose patterns are tried below",
    "workload/collectives/custom/chakra.py": "re.escape of the beginning of a file's name",
}
"""Files that make a pattern in a function, and of what."""

FEW_PUMPS = (8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 100)
LONGEST_CHARACTERS = 24_000
MOST_S_FOR_FEW = 0.1
MOST_S = 0.15
"""CPU seconds for LONGEST_CHARACTERS. Linear patterns take a hundredth of it, quadratic ones ten times as much."""

CHARACTER_OF = {
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_NOT_SPACE: "x",
    codes.CATEGORY_WORD: "a",
    codes.CATEGORY_NOT_WORD: "-",
}
UNBOUNDED = 64
"""Repetitions that may go on so long or longer are pumped."""


def characters(items):
    if items and items[0][0] is codes.NEGATE:
        inside = "".join(chr(value) for code, value in items[1:] if code is codes.LITERAL)
        yield from [c for c in 'x1 "\n/*([{`' if c not in inside][:3]
        return
    for code, value in items:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.RANGE:
            yield chr(value[0])
        else:
            yield from (" ", "\n") if value is codes.CATEGORY_SPACE else CHARACTER_OF[value]


def samples(nodes, most=4):
    parts = [list(islice(_samples_of(code, value, most), most)) or [""] for code, value in nodes]
    return ["".join(choice) for choice in islice(product(*parts), most)]


def _samples_of(code, value, most):
    if code is codes.LITERAL:
        yield chr(value)
    elif code is codes.NOT_LITERAL:
        yield "x" if value != ord("x") else "y"
    elif code is codes.ANY:
        yield "x"
    elif code is codes.IN:
        yield from characters(value)
    elif code is codes.BRANCH:
        for branch in value[1]:
            yield from samples(branch, most)
    elif code is codes.SUBPATTERN:
        yield from samples(value[-1], most)
    elif code is codes.ATOMIC_GROUP:
        yield from samples(value, most)
    elif code in REPEATS:
        least, _, body = value
        yield from (sample * max(least, 1) for sample in samples(body, most))


REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


def pumps(nodes, before=""):
    """(what leads to a repetition, what it repeats) of all long repetitions of a pattern."""
    for code, value in nodes:
        if code in REPEATS:
            _, most, body = value
            if most == codes.MAXREPEAT or most >= UNBOUNDED:
                yield from ((before, sample) for sample in samples(body))
            yield from pumps(body, before)
        elif code is codes.SUBPATTERN:
            yield from pumps(value[-1], before)
        elif code is codes.ATOMIC_GROUP:
            yield from pumps(value, before)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, before)
        before += (list(_samples_of(code, value, 1)) or [""])[0]


def attacks(pattern):
    """(beginning, what is repeated, end) of strings on which a careless pattern takes long."""
    found = dict.fromkeys(pumps(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)))
    for before, pump in found:
        for first, repeated in ((before, pump), ("", before), ("", before + pump), (before, before + pump)):
            if repeated:
                yield first, repeated, "\0"


def slow_attack(pattern, method):
    """An attack that takes a pattern longer than linear time; None if there is none."""
    act = getattr(pattern, method)
    for first, repeated, last in dict.fromkeys(attacks(pattern)):
        for count in (*FEW_PUMPS, LONGEST_CHARACTERS // len(repeated)):
            text = first + repeated * count + last
            subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
            most_s = MOST_S_FOR_FEW if count <= FEW_PUMPS[-1] else MOST_S
            if all(taken_s(act, method, subject) > most_s for _ in range(3)):
                return first, repeated, count
    return None


def taken_s(act, method, subject):
    began = time.process_time()
    list(act(subject)) if method == "finditer" else act(subject)
    return time.process_time() - began


def nested(value):
    """All compiled patterns in a value of a module: itself, or what its tuples hold."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from nested(each)


def calls_of_re(tree):
    """Calls of functions of the module re, with whether each is within a function."""
    inner = {id(node) for top in ast.walk(tree) if isinstance(top, ast.FunctionDef) for node in ast.walk(top)}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "re" and called.attr != "escape":
            yield node, called.attr, id(node) in inner


def patterns_of(path):
    """(place, pattern, method by which it is tried) of a file."""
    tree, file = ast.parse(path.read_text()), path.relative_to(ROOT).as_posix()
    name = file.removesuffix(".py").removesuffix("/__init__").removeprefix("nadi/").replace("/", ".")
    module = importlib.import_module(f"nadi.{name}")
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for name, value in vars(module).items():
        methods = {method for named, method in used if named == name and method in SEARCHES | ANCHORED}
        method = "finditer" if not methods or methods & SEARCHES else min(methods)
        for i, pattern in enumerate(nested(value)):
            yield f"{file}: {name} {i}", pattern, method
    for node, method, _ in calls_of_re(tree):
        if method in SEARCHES | ANCHORED and isinstance(node.args[0], ast.Constant):
            flags = [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr.isupper()]
            pattern = re.compile(node.args[0].value, sum(getattr(re, flag) for flag in flags))
            yield f"{file}: line {node.lineno}", pattern, "finditer" if method in SEARCHES else method


FILES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if re.search(r"^import re$", path.read_text(), re.MULTILINE)
]
PATTERNS = {place: rest for path in FILES for place, *rest in patterns_of(path)}


@pytest.mark.parametrize("place", PATTERNS)
def test_a_pattern_takes_linear_time(place):
    assert slow_attack(*PATTERNS[place]) is None


def test_patterns_stand_where_the_rule_sees_them():
    found = set()
    for path in FILES:
        for node, method, in_function in calls_of_re(ast.parse(path.read_text())):
            if in_function and (method == "compile" or not isinstance(node.args[0], ast.Constant)):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set(MADE_OF_WHAT_USERS_WRITE), "compile a pattern once, as a constant of its module"
    assert len(PATTERNS) > 60


@pytest.mark.parametrize(
    ("bad", "method"),
    [
        (r"\A(?:\s|//[^\n]*\n|/\*.*?\*/)*num_ranks", "match"),
        (r"([ \t]*\d+)+x", "match"),
        (r"^\s*\[x", "search"),
        (r"(?s)/\*.*?\*/", "sub"),
        (r"[0-9]*\.?[0-9]+b", "fullmatch"),
    ],
)
def test_the_rule_finds_slow_patterns(bad, method):
    assert slow_attack(re.compile(bad, re.DOTALL | re.MULTILINE), "finditer" if method in SEARCHES else method)


@pytest.mark.parametrize("wildcards", ["*a" * 20 + "*b", "[ab]*" * 20 + "c", "*" * 1000 + "b"])
def test_wildcards_take_linear_time(wildcards):
    began = time.process_time()
    assert not re.compile(fnmatch.translate(wildcards)).match("a" * LONGEST_CHARACTERS)
    assert time.process_time() - began < MOST_S
