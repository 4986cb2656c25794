"""Guards around arrays: a write past an end is noticed at the end of a run, and the message names the array."""

import ctypes
import sys
import threading
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from nadi import pdes
from nadi.pdes import Settings, run, workers
from nadi.pdes.core import MemoryDamageError, jit
from nadi.pdes.core.jit import Directory, full, kernel, never_used, reader, rows_of, unused, zeros
from nadi.pdes.core.rows.network import Selective
from nadi.pdes.nic.congestion import control
from nadi.pdes.workers import Segment, segment_words
from nadi.pdes.workers.team import found_team, team_in, team_words
from nadi.topologies import build
from nadi.workload import collective_program
from tests.nonempty import nonempty
from tests.parallel.matrix import CASES, wanted

ENGINE = "this is a defect of the engine"
SHARED_AND_ONLY_READ = {
    "rx_psb",
    *(name for table in (pdes.core.state.Trace, pdes.core.state.PlanTables) for name in table._fields),
}
"""Arrays that kernels only read and that worlds share, or that are the program's own."""


class Arrays(NamedTuple):
    small: Annotated[np.ndarray, np.int8]
    words: Annotated[np.ndarray, np.int64]
    rows: Annotated[np.recarray, Selective]


arrays_at = reader(Arrays)


@kernel
def write_small(address, at):
    arrays_at(address).small[at] = 1


@kernel
def write_words(address, at):
    arrays_at(address).words[at] = 1


@kernel
def write_rows(address, at):
    arrays_at(address).rows[at].head_message = 1


WRITE = {"small": write_small, "words": write_words, "rows": write_rows}
LENGTHS = {"small": 13, "words": 5, "rows": 3}


@pytest.fixture
def directory():
    return Directory(Arrays(zeros(13, np.int8), zeros(5), rows_of(Selective, 3)), "test")


def simulation(**settings):
    return pdes.build_world(build("switch:npus=4"), collective_program("all-reduce", 4, 1 << 16), Settings(**settings))


def with_part(lp, part, **arrays):
    """Have the world of an LP hold other arrays."""
    lp.world = lp.world._replace(**{part: getattr(lp.world, part)._replace(**arrays)})


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_write_beyond_an_end_is_found_and_others_leave_guards_alone(directory, name, is_behind):
    for at in range(LENGTHS[name]):
        WRITE[name](directory.address, at)
    directory.check_guards()
    WRITE[name](directory.address, LENGTHS[name] if is_behind else -1)
    where = "behind .*" if is_behind else "overwritten before its beginning.*"
    with pytest.raises(MemoryDamageError, match=rf"^test: memory of array {name} was .*{where}{ENGINE}$"):
        directory.check_guards()


def test_an_array_is_looked_at_before_another_takes_its_place(directory):
    write_words(directory.address, 5)
    with pytest.raises(MemoryDamageError, match="array words"):
        directory.update(Arrays(zeros(13, np.int8), zeros(10), rows_of(Selective, 3)))


@pytest.mark.parametrize("length", [0, 1, 7, 64, 4096, 1 << 21])
@pytest.mark.parametrize("dtype", [np.int8, np.int64, Selective.dtype])
def test_every_length_has_guards_next_to_it(length, dtype):
    array = zeros(length, dtype).view(np.ndarray)
    address, size = array.ctypes.data, array.nbytes
    assert address % 64 == 0
    assert not array.view(np.uint8).any()
    for at in (address - 1, address + size, address + size + array.itemsize - 1, address - array.itemsize):
        byte = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 1).from_address(at))
        kept, byte[0] = int(byte[0]), byte[0] ^ 0xFF
        assert jit.damage(address)
        byte[0] = kept
        assert not jit.damage(address)


def test_memory_that_is_gone_is_forgotten():
    array = zeros(1 << 21)
    address = array.ctypes.data
    assert address in jit._guarded
    del array
    assert address not in jit._guarded


def test_threads_get_memory_of_their_own():
    found, usual = [], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: found.extend(zeros(9) for _ in range(2000))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    addresses = {array.ctypes.data for array in found}
    assert len(addresses) == len(found) == 8000
    assert not any(map(jit.damage, addresses))


def fields_of(record):
    for name, field in zip(record._fields, record, strict=True):
        if isinstance(field, tuple):
            yield from fields_of(field)
        else:
            yield name, field


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"record_nodes": True, "record_flows": True, "selective_repeat": True},
        {"switch": pdes.SharedBuffer(), "congestion_control": control("dcqcn")},
    ],
    ids=["plain", "recorded", "shared-buffer"],
)
def test_every_array_of_a_world_has_guards(settings):
    sim = simulation(**settings)
    for name, field in nonempty(fields_of(sim.lps[0].world)):
        array = field.base if isinstance(field, np.record) else field
        assert name in SHARED_AND_ONLY_READ or array.ctypes.data in jit._guarded, name


@pytest.mark.parametrize("fails_otherwise", [False, True])
def test_a_run_that_writes_past_an_end_fails(monkeypatch, fails_otherwise):
    sim = simulation(record_nodes=True)
    (lp,) = sim.lps
    with_part(lp, "rows", finish=full(len(lp.world.rows.finish) - 1, -1))
    work = workers.WorkerPool._work

    def fail(self, worker):
        work(self, worker)
        raise pdes.RunError("something else")

    if fails_otherwise:
        monkeypatch.setattr(workers.WorkerPool, "_work", fail)
    with pytest.raises(MemoryDamageError, match=r"^LP 0: memory of array finish was overwritten 0 bytes behind"):
        run(sim)


def test_pieces_of_shared_memory_have_guards():
    lengths = [team_words(2), 1, 0, 40, 1 << 12]
    segment = Segment(np.zeros(sum(map(segment_words, lengths)), np.int64))
    pieces = [segment.take(length) for length in lengths]
    assert [len(piece) for piece in pieces] == lengths
    assert not any(piece.any() for piece in pieces)
    assert not any(jit.damage(piece.ctypes.data) for piece in pieces)
    team = team_in(pieces[0])
    found_team(team, 1, 1, pool_size=1)
    beyond = np.lib.stride_tricks.as_strided(pieces[1], (2,))
    beyond[1] = 0
    assert [bool(jit.damage(piece.ctypes.data)) for piece in pieces] == [False, True, False, False, False]


def test_an_array_without_guards_at_the_address_of_one_that_had_some_is_not_looked_at():
    """As where shared memory was unmapped and its addresses were given away again."""
    area = np.zeros(256, np.uint8)
    jit.between_guards(area, 64, 64)
    area[:64] = 0  # somebody else's now
    address = area.ctypes.data + 64
    other = np.frombuffer((ctypes.c_char * 64).from_address(address), np.uint8)
    assert other.ctypes.data == address
    assert jit.damage(address)
    assert not jit.has_guards(other, address)
    assert jit.has_guards(area[64:128], address)


def test_nobody_writes_to_what_all_worlds_share():
    for name in nonempty(CASES.keys() - {"symbolic"}):
        wanted(name)
    for record in (pdes.core.state.Flows, pdes.core.state.Domains):
        for shared, new in zip(fields_of(never_used(record)), fields_of(unused(record)), strict=True):
            assert shared[1].tobytes() == new[1].tobytes(), shared[0]


def test_threads_that_take_from_new_memory_at_the_same_time_share_its_entry():
    area = np.zeros(256, np.uint8)
    number, entry = id(area), jit._new_memory(area)
    assert jit._new_memory(area) is entry
    del area
    assert number not in jit._arrays_in
