"""Kernels that are loaded as machine code do what Numba's do, and Numba is not started for them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiling import kernel_cache, machine_code
from pdes.core.hashmap import rehash
from pdes.core.jit import hook_address, kernel
from pdes.messages.whole import post_whole

ROOT = Path(__file__).parents[2]
RUN = """
import json, sys
from nadi.cli.main import main
code = main(["collective", "all-reduce", "-t", {topology!r}, "--sizes", "1MiB", "--json", "-q", *{more}])
print(json.dumps(["numba" in sys.modules, code]), file=sys.stderr)
"""
MESSAGES = ("--set", "network.fidelity=analytical")


@pytest.fixture
def folder(tmp_path):
    """With the machine code of `rehash`."""
    arguments = [np.zeros(4, np.int64) for _ in range(4)]
    found, _ = kernel_cache.settle(tmp_path, "name")
    _made(arguments, found)
    return found


def _made(arguments, folder):
    from compiling import compiler

    made = compiler.dispatcher(rehash.py_func, "kernel")
    symbol, gives, code = compiler.compiled_kernel(made, arguments)
    machine_code.keep(folder, rehash.py_func, machine_code.kinds(arguments), symbol, gives, code)


def ran(topology, more):
    """Whether a run has started Numba, and its rows."""
    code = RUN.format(topology=topology, more=more)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    has_numba, code = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return has_numba, json.loads(done.stdout)["rows"]


def test_a_run_gives_what_it_gave_when_numba_compiled_its_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    compiled = ran("ring:npus=8", MESSAGES)
    loaded = ran("ring:npus=8", MESSAGES)
    assert (compiled[0], loaded[0]) == (True, False)
    assert compiled[1] == loaded[1]


def test_a_run_by_packets_starts_no_numba():
    rows = ran("switch:npus=4", ())[1]  # compiles what the cache does not hold yet
    assert ran("switch:npus=4", ()) == (False, rows)


def test_arguments_and_results(folder):
    keys, values = np.array([-1, -1, 5, -1], np.int64), np.array([0, 0, 7, 0], np.int64)
    found = []
    for run in (machine_code.load(folder, rehash.py_func, "aaaa"), rehash.dispatcher):
        new_keys, new_values = np.full(8, -1, np.int64), np.zeros(8, np.int64)
        assert run(keys, values, new_keys, new_values) is None
        found.append((new_keys.tolist(), new_values.tolist()))
    assert found[0] == found[1]
    assert 7 in found[0][1]


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:0], lambda data: data[:-9], lambda data: data[:40] + b"x" + data[41:]]
)
def test_corrupt_code_is_thrown_away(folder, spoil):
    (file,) = folder.path.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    assert not folder.is_intact(file.name)
    assert machine_code.load(folder, rehash.py_func, "aaaa") is None
    assert not file.exists()


def test_code_that_calls_what_nobody_has_is_left_to_numba(folder):
    (file,) = folder.path.iterdir()
    line, _, code = kernel_cache.opened(file.read_bytes()).partition(b"\n")
    about = json.loads(line)
    assert "Py_IncRef" in about["needs"]
    about["needs"].append("numba_of_the_future")
    file.write_bytes(kernel_cache.sealed(json.dumps(about).encode() + b"\n" + code))
    assert machine_code.load(folder, rehash.py_func, "aaaa") is None


def test_code_for_another_processor_is_not_found(folder, monkeypatch):
    monkeypatch.setattr(machine_code, "_machine", lambda: "another")
    assert machine_code.load(folder, rehash.py_func, "aaaa") is None


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ((1, np.int64(2)), "ii"),
        ((np.zeros(2, np.int64), 3), "ai"),
        ((1.0,), None),
        ((True,), None),
        ((np.zeros(2, np.int32),), None),
        ((np.zeros(4, np.int64)[::2],), None),
        ((np.zeros((2, 2), np.int64),), None),
    ],
)
def test_only_integers_and_their_arrays_go_without_numba(arguments, kinds):
    assert machine_code.kinds(arguments) == kinds


def test_kernels_of_other_folders_are_not_kept():
    """The cache's name stands for the engine's sources only: an edit elsewhere would not be noticed."""

    def twice(x):
        return 2 * x

    assert not machine_code.is_kept(twice)
    assert kernel(twice)(21) == 42
    assert machine_code.is_kept(post_whole.py_func)


def test_bounds_are_checked_by_numba_only(monkeypatch):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert not machine_code.is_kept(post_whole.py_func)


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.60.1", False), ("0.61.0", True), ("0.68.2", True), ("0.69.0rc1", False), ("1.0", False), ("next", False)],
)
def test_other_versions_of_numba_call_kernels_themselves(monkeypatch, version, known):
    """Neither is anything kept then, nor loaded."""
    monkeypatch.setattr(machine_code.metadata, "version", lambda _: version)
    machine_code.is_known.cache_clear()
    try:
        assert machine_code.is_kept(post_whole.py_func) is known
        monkeypatch.setattr(machine_code, "load", lambda *_: pytest.fail("loaded"))
        monkeypatch.setattr(machine_code, "keep", lambda *_: pytest.fail("kept"))
        if not known:
            arrays = [np.full(4, -1, np.int64), np.zeros(4, np.int64), np.full(8, -1, np.int64), np.zeros(8, np.int64)]
            assert type(rehash).ready(rehash, arrays) is rehash.dispatcher
    finally:
        monkeypatch.undo()
        machine_code.is_known.cache_clear()


def test_the_installed_numba_is_known():
    """If not, nothing is wrong but that every start takes half a second longer: look at its sources, widen KNOWN."""
    assert machine_code.is_kept(post_whole.py_func)


def test_sealed_files_that_say_nothing_are_left_to_numba(folder):
    (file,) = folder.path.iterdir()
    for content in (b"", b"{}\n", b"no json\n\x7fELF", b'{"symbol": "x", "needs": [], "gives": "none"}\nno ELF'):
        file.write_bytes(kernel_cache.sealed(content))
        assert machine_code.load(folder, rehash.py_func, "aaaa") is None


def test_a_hook_has_one_address():
    assert hook_address(post_whole) == hook_address(post_whole) > 0
