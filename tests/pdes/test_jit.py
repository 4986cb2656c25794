import shutil
import time

import numba
import numpy as np
import pytest

from nadi.compiling import compiler, kernel_cache
from nadi.pdes import Settings
from nadi.pdes.core.jit import inline, kernel
from nadi.topologies import build
from nadi.workload import collective_program
from tests.pdes.compare import simulate
from tests.plain_python import plain_python

TINY = """
from tests.pdes.test_jit import tiny
from nadi.pdes.core.jit import jit_enabled
results = tiny()
print(jit_enabled(), results.digest, results.finish_time_ps, results.counters["dropped_packets"])
"""


def tiny():
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us")
    chosen = Settings(mtu_bytes=512, queue_limit_bytes=1200, cut_through=True)
    return simulate(graph, collective_program("gather", 4, 20_000), chosen)


@kernel
def allocates(n):
    made = np.zeros(n)
    return made[0]


@kernel
def item(array, index):
    return array[index]


@inline
def twice(x):
    return 2 * x


@inline
def through(x):
    return twice(x) + 1


NEVER = 0


@inline
def later(x):
    return twice(x)


@kernel
def calls_late(x):
    return (through(x) if NEVER else x) + later(x)


@numba.njit
def last_of(array):
    return array[-1] + array[len(array) - 2]


def test_plain_python_gives_the_same_answer():
    results = tiny()
    assert results.counters["dropped_packets"] > 0
    said = plain_python("-c", TINY).split()
    wanted = [results.digest, results.finish_time_ps, results.counters["dropped_packets"]]
    assert said == ["False", *map(str, wanted)]


def test_an_edit_in_any_file_names_another_cache(tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    for folder in kernel_cache.FOLDERS:
        shutil.copytree(kernel_cache.ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path / "cache"))
    here = kernel_cache.cache_dir()
    monkeypatch.setattr(kernel_cache, "ROOT", copy)
    assert kernel_cache.cache_dir() != here, "Numba loads no code of another folder: is_warm must not find it"
    folders = {kernel_cache.cache_dir()}
    edited = {path.parent: path for path in copy.rglob("*.py")}
    assert len(edited) > 15
    for path in edited.values():
        path.write_text(path.read_text() + "\n# edited\n")
        kernel_cache._hash_of_files.cache_clear()  # as in another process, which begins after the edit
        monkeypatch.setattr(kernel_cache, "_IMPORTED_AT_S", time.time())
        folders.add(kernel_cache.cache_dir())
    assert len(folders) == 1 + len(edited)
    assert all(folder.is_dir() and folder.parent == tmp_path / "cache" for folder in folders)


@pytest.mark.parametrize("name", ["NUMBA_BOUNDSCHECK", "NUMBA_OPT"])
def test_options_that_change_code_name_another_cache(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    usual = kernel_cache.source_hash()
    monkeypatch.setenv(name, "1")
    assert kernel_cache.source_hash() != usual


def test_a_cache_that_cannot_be_written_goes_elsewhere(tmp_path, monkeypatch):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("NADI_CACHE_DIR", str(in_the_way))
    folder = kernel_cache.cache_dir()
    assert folder.is_dir()
    assert folder.name == kernel_cache.source_hash()
    assert tmp_path not in folder.parents


def test_an_allocation_in_a_kernel_does_not_compile():
    allowed = numba.njit(pipeline_class=compiler._KernelCompiler)(allocates.py_func)
    assert allowed(3) == 0.0, "only _nrt=False may forbid it"
    with pytest.raises(numba.core.errors.NumbaError, match="zeros"):
        allocates(3)


def test_what_a_call_that_is_never_made_has_in_common_with_a_later_one_is_linked():
    assert calls_late(5) == 5 + 10


def test_indices_are_plain_in_kernels_and_usual_elsewhere():
    whole = np.arange(10)
    part = whole[5:]
    assert item(part, -1) == 4, "a kernel wraps negative indices: the option has lost its effect"
    assert last_of(part) == 9 + 8
    assert numba.njit(lambda array, index: array[index])(part, -1) == 9
