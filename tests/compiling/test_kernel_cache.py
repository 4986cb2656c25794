"""Where compiled kernels lie: never where others can write or rename; corrupt files are compiled again."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from nadi import topologies
from nadi.compiling import compiler, kernel_cache, machine_code
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.launching.ranks import ALONE
from nadi.pdes import parallel
from nadi.pdes.core.algorithms import rehash
from nadi.pdes.workers import team
from nadi.simulation import run
from nadi.simulation.network_settings import network_settings
from nadi.workload import collective_program

NOBODY = 65534
SUFFIX = kernel_cache.CODE_SUFFIX


@pytest.fixture
def of(monkeypatch):
    """Have folders, links and files be of another user, or of another mode, whoever runs the test."""
    changed = {}
    stat_of_open, stat_of_name = os.fstat, os.stat

    def name_of(descriptor):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())

    def altered(path, found):
        names = ("st_uid", "st_mode", "st_ino", "st_dev", "st_size", "st_mtime", "st_mtime_ns")
        given = {name: getattr(found, name) for name in names}
        return SimpleNamespace(**given | changed[path]) if path in changed else found

    def fstat(descriptor):
        return altered(name_of(descriptor), stat_of_open(descriptor))

    def stat(path, *, dir_fd=None, **options):
        found = stat_of_name(path, dir_fd=dir_fd, **options)
        return found if dir_fd is None else altered(f"{name_of(dir_fd)}/{path}", found)

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "stat", stat)
    return lambda path, **change: changed.update({str(path): change})


def settled(base):
    folder, complaint = kernel_cache.settle(base, "name")
    return folder.path, complaint


def test_a_folder_of_ours_is_made_private_and_used(tmp_path):
    old = os.umask(0)
    try:
        folder, complaint = settled(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert (folder, complaint) == (tmp_path / "a" / "b" / "name", "")
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
@pytest.mark.parametrize("where", ["..", "", "name"])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, where, mode):
    """Neither is one below it, since whoever may write to a folder can rename what is in it."""
    base = tmp_path / "parent" / "cache"
    (base / "name").mkdir(parents=True)
    at = (base / where).resolve()
    at.chmod(mode)
    folder, complaint = settled(base)
    assert complaint == f"{at} can be written to by others (mode {mode:o})"
    assert base not in folder.parents
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert settled(base)[0] == folder, "one for the process, not one for each question"


@pytest.mark.parametrize("where", ["../..", "..", "", "name"])
def test_what_belongs_to_another_is_not_used(tmp_path, of, where):
    base = tmp_path / "grandparent" / "parent" / "cache"
    (base / "name").mkdir(parents=True)
    assert settled(base)[1] == ""
    at = (base / where).resolve()
    of(at, st_uid=os.geteuid() + 1)
    folder, complaint = settled(base)
    assert complaint.startswith(f"{at} belongs to user {os.geteuid() + 1}")
    assert base not in folder.parents


def test_a_folder_for_all_with_the_sticky_bit_holds_one_of_ours(tmp_path, of):
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o1777)
    assert settled(base) == (base / "name", "")
    (base / "name").chmod(0o1777)
    assert "mode 1777" in settled(base)[1]
    (base / "name").chmod(0o700)
    of(base, st_uid=os.geteuid() + 1, st_mode=0o41777)
    assert "belongs to user" in settled(base)[1]


def test_links_of_ours_lead_there_and_those_of_others_do_not(tmp_path, of):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "to").symlink_to(tmp_path / "link")
    (tmp_path / "up").symlink_to("real/../real")
    for name in ("link", "to", "up"):
        folder, complaint = settled(tmp_path / name / "cache")
        assert complaint == ""
        assert folder.samefile(tmp_path / "real" / "cache" / "name")
    of(tmp_path / "link", st_uid=os.geteuid() + 1, st_mode=0o120777)
    assert settled(tmp_path / "to" / "cache")[1] == f"{tmp_path / 'link'} is a link of user {os.geteuid() + 1}"
    (tmp_path / "loop").symlink_to("loop")
    assert "loop: Too many levels of symbolic links" in settled(tmp_path / "loop")[1]


def test_a_link_into_a_folder_of_others_is_not_followed_further(tmp_path, of):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to("theirs")
    of(tmp_path / "theirs", st_uid=os.geteuid() + 1)
    assert settled(tmp_path / "link" / "cache")[1].startswith(f"{tmp_path / 'theirs'} belongs to user")
    assert [*(tmp_path / "theirs").iterdir()] == []


def test_what_takes_the_place_of_the_folder_later_is_not_read(tmp_path):
    """The attack of the issue: a folder on the way is renamed between the check and the use."""
    folder, _ = kernel_cache.settle(tmp_path / "cache", "name")
    folder.write(f"kernel{SUFFIX}", b"ours")
    (tmp_path / "cache").rename(tmp_path / "away")
    planted = tmp_path / "cache" / "name"
    planted.mkdir(parents=True)
    for name in ("kernel", "another"):
        (planted / f"{name}{SUFFIX}").write_bytes(kernel_cache.sealed(b"theirs"))
    assert folder.read(f"kernel{SUFFIX}") == b"ours"
    assert folder.read(f"another{SUFFIX}") is None
    folder.write(f"more{SUFFIX}", b"ours")
    assert sorted(path.name for path in planted.iterdir()) == [f"another{SUFFIX}", f"kernel{SUFFIX}"]


@pytest.mark.parametrize("how", ["link", "other user", "mode", "fifo", "folder"])
def test_a_file_that_others_could_have_made_is_not_read(tmp_path, of, how):
    folder, _ = kernel_cache.settle(tmp_path, "name")
    name = f"kernel{SUFFIX}"
    path = tmp_path / "name" / name
    folder.write(name, b"content")
    assert folder.read(name) == b"content"
    if how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "other user":
        of(path, st_uid=os.geteuid() + 1)
    elif how == "mode":
        path.chmod(0o666)
    else:
        path.unlink()
        os.mkfifo(path) if how == "fifo" else path.mkdir()
    assert folder.read(name) is None
    assert not folder.is_intact(name)


def test_what_is_written_follows_no_link(tmp_path):
    folder, _ = kernel_cache.settle(tmp_path, "name")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "name" / f"kernel{SUFFIX}").symlink_to(tmp_path / "precious")
    folder.write(f"kernel{SUFFIX}", b"content")
    assert (tmp_path / "precious").read_text() == "precious"
    assert folder.read(f"kernel{SUFFIX}") == b"content"
    assert [path.name for path in (tmp_path / "name").iterdir()] == [f"kernel{SUFFIX}"]


def test_a_real_user_does_not_load_what_another_has_put_there():
    """The attack: the folder of nobody's, or one around it, made by somebody else before."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    code = (
        "import os, random, shutil, sys\nfrom pathlib import Path\nfrom nadi.compiling import kernel_cache\n"
        f"os.setuid({NOBODY})\n"
        "for base in sys.argv[1:]:\n"
        "    folder, complaint = kernel_cache.settle(Path(base), 'name')\n"
        "    print(folder.path, complaint, sep='|')"
    )
    with tempfile.TemporaryDirectory() as top:  # where others can come, unlike tmp_path
        Path(top).chmod(0o755)
        roots, others, theirs = (Path(top) / name for name in ("roots", "others", "others/theirs"))
        for folder, owner in ((roots, 0), (roots / "name", 0), (others, 1), (theirs, NOBODY)):
            folder.mkdir(mode=0o755)
            os.chown(folder, owner, owner)
        done = subprocess.run([sys.executable, "-c", code, roots, theirs], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = (line.partition("|") for line in done.stdout.splitlines())
    assert first[2] == f"{roots / 'name'} belongs to user 0, not to {NOBODY}"
    assert second[2] == f"{others} belongs to user 1, not to {NOBODY} or root"
    assert not Path(first[0]).exists(), "what was private is removed at the end"


@pytest.mark.parametrize("given", [None, ""])
def test_an_empty_variable_counts_as_none(tmp_path, monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NADI_CACHE_DIR", raising=False)
    if given is not None:
        monkeypatch.setenv("NADI_CACHE_DIR", given)
    assert kernel_cache.cache_dir() == tmp_path / "nadi" / kernel_cache.source_hash()
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kernel_cache.cache_dir() == tmp_path / "home" / ".cache" / "nadi" / kernel_cache.source_hash()


def spoil(file, how):
    data = file.read_bytes()
    spoilt = {"empty": b"", "truncated": data[: len(data) // 2], "random": os.urandom(len(data))}
    one = bytearray(data)
    one[-len(data) // 3] ^= 1
    file.write_bytes(spoilt.get(how, bytes(one)))


@pytest.fixture
def of_rehash(tmp_path):
    """Compile `rehash` or load it, as a run does: whether it was kept."""
    folder, _ = kernel_cache.settle(tmp_path, "name")

    def is_kept():
        if machine_code.load(folder, rehash.py_func, "aaaa") is not None:
            return True
        _, symbol, code = compiler.compiled_c_function(compiler.dispatcher(rehash.py_func, "c"), "aaaa")
        machine_code.keep(folder, rehash.py_func, "aaaa", symbol, code)
        return False

    return is_kept


@pytest.mark.parametrize("how", ["empty", "truncated", "random", "one bit"])
def test_corrupt_files_are_thrown_away_and_made_again(tmp_path, of_rehash, how):
    assert [of_rehash(), of_rehash()] == [False, True]
    (file,) = (tmp_path / "name").iterdir()
    spoil(file, how)
    assert [of_rehash(), of_rehash()] == [False, True]


def test_a_cache_that_is_full_is_no_failure(tmp_path, monkeypatch, of_rehash):
    monkeypatch.setattr(kernel_cache, "FAILURES", [])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert [of_rehash(), of_rehash()] == [False, False]
    assert [*(tmp_path / "name").iterdir()] == []
    assert kernel_cache.cache_complaint().endswith(f"{SUFFIX}: No space left on device")


def test_is_warm_does_not_count_corrupt_code(tmp_path, monkeypatch):
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    assert not kernel_cache.is_warm(team.work)
    folder, _ = kernel_cache.settle(tmp_path, kernel_cache.source_hash())
    folder.write(f"workers.team.work-iiii-0{SUFFIX}", b"code")
    assert kernel_cache.is_warm(team.work)
    (folder.path / f"workers.team.work-iiii-0{SUFFIX}").write_bytes(b"")
    assert not kernel_cache.is_warm(team.work)


def test_code_of_sources_that_have_changed_meanwhile_is_neither_read_nor_written(tmp_path, monkeypatch):
    """As where files are pulled while a process runs: what it has imported may be older than what is hashed."""
    monkeypatch.setattr(kernel_cache, "FAILURES", [])
    name, file = kernel_cache.source_hash(), f"x{SUFFIX}"
    folder, complaint = kernel_cache.settle(tmp_path, name)
    assert (folder.path, complaint) == (tmp_path / name, "")
    newest = max(path.stat().st_mtime for path in kernel_cache.files())
    monkeypatch.setattr(kernel_cache, "_IMPORTED_AT_S", newest - 1)
    folder.write(file, b"code")
    assert folder.names() == []
    assert kernel_cache.what_was_not_kept() == f"{tmp_path / name / file}: {kernel_cache._CHANGED}"
    private, complaint = kernel_cache.settle(tmp_path, name)
    assert not private.path.is_relative_to(tmp_path)
    assert complaint == kernel_cache._CHANGED


def test_doctor_looks_into_the_folder(tmp_path, monkeypatch):
    from nadi.cli.commands.bench import _cache

    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path / "cache"))
    assert _cache().ok
    (kernel_cache.cache_dir() / f"x{SUFFIX}").write_bytes(b"nonsense")
    found = _cache()
    assert not found.ok
    assert f"1 corrupt files, such as x{SUFFIX}" in found.found
    (tmp_path / "cache").chmod(0o777)
    found = _cache()
    assert not found.ok
    assert f"{tmp_path / 'cache'} can be written to by others (mode 777)" in found.found


def test_open_folders_are_closed_again(tmp_path):
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(100):
        assert isinstance(kernel_cache.settle(tmp_path, "name")[0], kernel_cache.KernelFolder)
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 1


@pytest.mark.parametrize("corrupt", [None, b"x" * 40, kernel_cache.sealed(b"1e400"), kernel_cache.sealed(b"-3.0")])
def test_times_of_compilations_are_measured_ones(tmp_path, monkeypatch, corrupt):
    """None is announced before one was measured here; a file that says something else counts as none."""
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(run, "_LOADED_KERNELS", set())
    monkeypatch.setattr(run, "jit_enabled", lambda: True)
    said = []
    progress = SimpleNamespace(say=said.append)
    assert kernel_cache.last_compilation_s(team.work) is None
    assert run.announce_compilation(team.work, progress)
    kernel_cache.note_compilation(team.work, 12.34)
    run._LOADED_KERNELS.clear()
    if corrupt is not None:
        next((tmp_path / "times").iterdir()).write_bytes(corrupt)
    assert run.announce_compilation(team.work, progress)
    assert not run.announce_compilation(team.work, progress)
    hint = "" if corrupt is not None else " (it took 12 s here before)"
    folder = f"compiling the kernels, once, into {kernel_cache.cache_dir()}"
    assert said == [folder, folder + hint]


@pytest.mark.parametrize(
    ("model", "compiles"), [("flow", True), ("closed-form", True), ("packet", False), ("analytical", False)]
)
def test_kernels_of_plays_are_announced_and_timed(tmp_path, monkeypatch, model, compiles):
    """Flows and closed forms play collectives as packets first; packets announce their own kernels."""
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(run, "_LOADED_KERNELS", set())
    monkeypatch.setattr(run, "jit_enabled", lambda: True)
    compiled = []
    monkeypatch.setattr(parallel, "compile_kernels", lambda *given: compiled.append(given) or 7.0)
    said = []
    graph = topologies.build("ring:npus=4")
    settings = network_settings(NetworkSection(fidelity=model))
    for _ in range(2):  # once per process
        run.compile_isolated(graph, collective_program("barrier", 4, 0), settings, SimpleNamespace(say=said.append))
    assert len(said) == len(compiled) == int(compiles)
    assert kernel_cache.last_compilation_s(team.work) == (7.0 if compiles else None)
    assert all(settings.fidelity.model.has_packets for _, settings in compiled)


@pytest.mark.parametrize("model", ["flow", "packet"])
def test_all_kernels_of_a_run_are_timed_before_its_worlds_are_built(tmp_path, monkeypatch, model):
    @dataclass(frozen=True)
    class Timed:
        compile_s: float
        counters: dict[str, int]
        npu_node_ptr: tuple[int, ...] = (0,) * 5  # of four NPUs

    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(run, "_LOADED_KERNELS", set())
    for module in (run,):
        monkeypatch.setattr(module, "jit_enabled", lambda: True)
    compiled = []
    monkeypatch.setattr(parallel, "compile_kernels", lambda *given: compiled.append(given) or 7.0)
    graph, settings = topologies.build("ring:npus=4"), network_settings(NetworkSection(fidelity=model))
    workers = SimpleNamespace(ranks=ALONE, run=lambda *_: Timed(2.0, {"trace_nodes": 4}))
    for wanted_s in (9.0, 2.0):  # once per process
        results = run.run_program(graph, collective_program("barrier", 4, 0), settings, NoProgress(), workers)
        assert results.compile_s == wanted_s
    ((layout, _),) = compiled
    assert isinstance(layout, parallel.Layout)
    main_kernel = parallel.work_messages if model == "flow" else parallel.work
    assert kernel_cache.last_compilation_s(main_kernel) == 9.0
