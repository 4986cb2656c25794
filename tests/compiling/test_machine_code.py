"""Kernels that are loaded as object code do what compiled ones do; what cannot be kept is left to Numba."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nadi.compiling import compiler, kernel_cache, machine_code
from nadi.pdes.core.algorithms import rehash
from nadi.pdes.core.jit import hook_address, kernel
from nadi.pdes.messages.whole import post_whole

ROOT = Path(__file__).parents[2]
RUN = ("collective", "all-reduce", "-t", "ring:npus=8", "--sizes", "1MiB", "--json", "-q")
PARAMETERS = "aaaa"
LDEXP = """
import math
import sys
from pathlib import Path
from nadi.compiling import kernel_cache, machine_code
def eightfold(x):
    return int(math.ldexp(float(x), 3))
folder, _ = kernel_cache.settle(Path(sys.argv[1]), "name")
address = machine_code.load(folder, eightfold, "i")
if address is None:
    from nadi.compiling import compiler
    address, symbol, code = compiler.compiled_c_function(compiler.dispatcher(eightfold, "c"), "i")
    assert b"numba_ldexp" in code
    machine_code.keep(folder, eightfold, "i", symbol, code)
    print("compiled")
print(machine_code.c_function(address, "i")(3))
"""
WITHOUT_NUMBA = """
import sys
from nadi.cli.main import main
code = main(sys.argv[1:])
print([code, *sorted({"numba", "scipy", "yaml"} & {*sys.modules})], file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path):
    found, _ = kernel_cache.settle(tmp_path, "name")
    keep(rehash.py_func, found)
    return found


def keep(function, folder):
    _, symbol, code = compiler.compiled_c_function(compiler.dispatcher(function, "c"), PARAMETERS)
    machine_code.keep(folder, function, PARAMETERS, symbol, code)


def ran():
    """Standard output of a run in another process, and how many files the cache has then."""
    command = [sys.executable, "-m", "nadi", *RUN, "--set", "network.fidelity=analytical"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, len(kernel_cache.settled_folder().names())


def rehashed(run):
    keys, values = np.array([-1, -1, 5, -1], np.int64), np.array([0, 0, 7, 0], np.int64)
    new_keys, new_values = np.full(8, -1, np.int64), np.zeros(8, np.int64)
    run(keys, values, new_keys, new_values)
    return new_keys.tolist(), new_values.tolist()


@pytest.mark.full
def test_a_run_gives_what_it_gave_when_its_kernels_were_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    kernel_cache.settled_folder.cache_clear()
    try:
        compiled, loaded = ran(), ran()
    finally:
        kernel_cache.settled_folder.cache_clear()
    assert compiled == loaded
    assert compiled[1] > 0


def test_arguments_and_results(folder):
    loaded = machine_code.c_function(machine_code.load(folder, rehash.py_func, PARAMETERS), PARAMETERS)
    found = rehashed(loaded)
    assert found == rehashed(rehash.py_func)
    assert 7 in found[1]


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_run_whose_kernels_are_kept_does_not_import_numba():
    python(WITHOUT_NUMBA, *RUN)  # compiles what is not yet kept
    assert python(WITHOUT_NUMBA, *RUN).stderr == "[0]\n"


def test_kernels_that_call_a_function_of_numba_find_it(tmp_path):
    """As those of a user's file may; a function that LLVM does not find would end the process."""
    assert [python(LDEXP, tmp_path).stdout for _ in range(2)] == ["compiled\n24\n", "24\n"]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.int32),
        np.zeros(4, np.int64)[::2],
        np.zeros((2, 2), np.int64),
        np.frombuffer(b"12345678", np.int64),
    ],
)
def test_other_arrays_are_refused(array):
    words = np.zeros(2, np.int64)
    with pytest.raises(TypeError, match="expected a contiguous, writable row of int64"):
        rehash(words, words, words, array)


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:0], lambda data: data[:-9], lambda data: data[:40] + b"x" + data[41:]]
)
def test_corrupt_code_is_thrown_away(folder, spoil):
    (file,) = folder.path.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    assert not folder.is_intact(file.name)
    assert machine_code.load(folder, rehash.py_func, PARAMETERS) is None
    assert not file.exists()


def test_code_for_another_processor_is_not_found(folder, monkeypatch):
    assert machine_code.load(folder, rehash.py_func, PARAMETERS) is not None
    monkeypatch.setattr(machine_code, "_processor", lambda: "another")
    assert machine_code.load(folder, rehash.py_func, PARAMETERS) is None


def test_kernels_of_other_folders_are_not_kept():
    """The cache's name stands for the engine's sources only: an edit elsewhere would not be noticed."""

    def twice(x):
        return 2 * x

    assert not kernel_cache.is_kept(twice)
    assert kernel(twice)(21) == 42
    assert kernel(twice)(0.5) == 1.0
    assert kernel_cache.is_kept(post_whole.py_func)


def test_code_that_checks_bounds_is_not_kept(monkeypatch):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    assert not kernel_cache.is_kept(post_whole.py_func)


def test_a_kernel_of_another_result_does_not_compile():
    def half(x):
        return x / 2

    with pytest.raises(TypeError, match="half returns float64, expected int64 or None"):
        compiler.compiled_c_function(compiler.dispatcher(half, "c"), "i")


def test_a_hook_has_one_address():
    assert hook_address(post_whole) == hook_address(post_whole) > 0
