"""Where compiled kernels lie: never where others can write; corrupt files are compiled again."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from compiling import compiler, kernel_cache, kernel_sources
from pdes.core.jit import kernel
from pdes.workers import team

NOBODY = 65534


@pytest.fixture
def of(monkeypatch):
    """Have paths be of another user, or of another mode, whoever runs the test."""
    changed = {}

    def stat_with(real):
        def stat(path, *arguments, **options):
            found = real(path, *arguments, **options)
            change = changed.get(str(path))
            if change is None:
                return found
            names = ("st_uid", "st_mode", "st_ino", "st_dev", "st_size", "st_mtime", "st_mtime_ns")
            return SimpleNamespace(**({name: getattr(found, name) for name in names} | change))

        return stat

    monkeypatch.setattr(Path, "stat", stat_with(Path.stat))
    monkeypatch.setattr(Path, "lstat", stat_with(Path.lstat))
    return lambda path, **change: changed.update({str(path): change})


def test_a_folder_of_ours_is_made_private_and_used(tmp_path):
    old = os.umask(0)
    try:
        folder, complaint = kernel_cache.settle(tmp_path / "a" / "b", "name")
    finally:
        os.umask(old)
    assert (folder, complaint) == (tmp_path / "a" / "b" / "name", "")
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
@pytest.mark.parametrize("where", ["", "name"])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, where, mode):
    base = tmp_path / "cache"
    (base / "name").mkdir(parents=True)
    (base / where).chmod(mode)
    folder, complaint = kernel_cache.settle(base, "name")
    assert complaint == f"{base / where} can be written to by others (mode {mode:o})"
    assert base not in folder.parents
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert kernel_cache.settle(base, "name")[0] == folder, "one for the process, not one for each question"


@pytest.mark.parametrize("where", ["", "name", "name/sub", "name/sub/a.nbc"])
def test_what_belongs_to_another_is_not_used(tmp_path, of, where):
    base = tmp_path / "cache"
    (base / "name" / "sub").mkdir(parents=True)
    (base / "name" / "sub" / "a.nbc").touch()
    for folder in (base, base / "name", base / "name" / "sub"):
        folder.chmod(0o700)
    assert kernel_cache.settle(base, "name")[1] == ""
    of(base / where, st_uid=os.geteuid() + 1)
    folder, complaint = kernel_cache.settle(base, "name")
    assert complaint.startswith(f"{base / where} belongs to user {os.geteuid() + 1}")
    assert base not in folder.parents


def test_a_folder_for_all_with_the_sticky_bit_holds_one_of_ours(tmp_path, of):
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o1777)
    assert kernel_cache.settle(base, "name") == (base / "name", "")
    (base / "name").chmod(0o1777)
    assert "mode 1777" in kernel_cache.settle(base, "name")[1]
    (base / "name").chmod(0o700)
    of(base, st_uid=os.geteuid() + 1, st_mode=0o41777)
    assert "belongs to user" in kernel_cache.settle(base, "name")[1]


def test_links_of_ours_lead_there_and_those_of_others_do_not(tmp_path, of):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "to").symlink_to(tmp_path / "link")
    base = tmp_path / "to" / "cache"
    assert kernel_cache.settle(base, "name") == (base / "name", "")
    of(tmp_path / "link", st_uid=os.geteuid() + 1, st_mode=0o120777)
    assert kernel_cache.settle(base, "name")[1] == f"{tmp_path / 'link'} is a link of user {os.geteuid() + 1}"
    (tmp_path / "loop").symlink_to("loop")
    assert "loop" in kernel_cache.settle(tmp_path / "loop", "name")[1]


def test_a_real_user_does_not_load_what_another_has_put_there():
    """The attack: the folder of nobody's, made by somebody else before."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory() as base:  # where others can come, unlike tmp_path
        Path(base).chmod(0o755)
        (Path(base) / "name").mkdir(mode=0o755)
        code = (
            "import os, random, shutil\nfrom pathlib import Path\nfrom compiling import kernel_cache\n"
            f"os.setuid({NOBODY})\n"
            f"print(*kernel_cache.settle(Path({base!r}), 'name'), sep='|')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    folder, _, complaint = done.stdout.strip().partition("|")
    assert complaint == f"{base} belongs to user 0, not to {NOBODY}"
    assert not Path(folder).exists(), "what was private is removed at the end"


@pytest.mark.parametrize("given", [None, ""])
def test_an_empty_variable_counts_as_none(tmp_path, monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NADI_CACHE_DIR", raising=False)
    if given is not None:
        monkeypatch.setenv("NADI_CACHE_DIR", given)
    assert kernel_cache.cache_dir() == tmp_path / "nadi" / kernel_sources.source_hash()
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kernel_cache.cache_dir() == tmp_path / "home" / ".cache" / "nadi" / kernel_sources.source_hash()


def spoil(file, how):
    data = file.read_bytes()
    spoilt = {"empty": b"", "truncated": data[: len(data) // 2], "random": os.urandom(len(data))}
    one = bytearray(data)
    one[-len(data) // 3] ^= 1
    file.write_bytes(spoilt.get(how, bytes(one)))


@pytest.mark.parametrize("suffix", kernel_cache.SUFFIXES)
@pytest.mark.parametrize("how", ["empty", "truncated", "random", "one bit"])
def test_corrupt_files_are_thrown_away_and_made_again(tmp_path, monkeypatch, suffix, how):
    monkeypatch.setattr(compiler.numba.config, "CACHE_DIR", str(tmp_path))

    def twice(x):
        return 2 * x

    def compiled():
        made = kernel(twice)
        assert made(21) == 42
        return sum(made.stats.cache_hits.values())

    assert compiled() == 0
    assert compiled() == 1
    (file,) = tmp_path.rglob(f"*{suffix}")
    spoil(file, how)
    assert kernel_cache.corrupt_files(tmp_path) == [file]
    assert compiled() == 0
    assert kernel_cache.corrupt_files(tmp_path) == []
    assert compiled() == 1


def test_code_of_another_signature_is_not_taken_for_it(tmp_path, monkeypatch):
    """Of two processes that compile at once, one may have written the index and the other the code."""
    monkeypatch.setattr(compiler.numba.config, "CACHE_DIR", str(tmp_path))

    def half(x):
        return x / 2

    first = kernel(half)
    assert (first(3), first(3.5)) == (1.5, 1.75)
    one, other = sorted(tmp_path.rglob("*.nbc"))
    one.write_bytes(other.read_bytes())
    again = kernel(half)
    assert (again(3), again(3.5)) == (1.5, 1.75)
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_cache_that_is_full_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler.numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "FAILURES", [])
    made = kernel(lambda x: x + 1)

    def full(*_):
        raise OSError(28, "No space left on device", "file")

    monkeypatch.setattr(made._cache._cache_file, "_save", full)
    assert made(1) == 2
    assert kernel_cache.cache_complaint() == "file: No space left on device"


def test_is_warm_does_not_count_corrupt_code(tmp_path, monkeypatch):
    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path))
    assert not kernel_cache.is_warm(team.work)
    for suffix in kernel_cache.SUFFIXES:
        (kernel_cache.cache_dir() / f"team.work-1{suffix}").write_bytes(kernel_cache.sealed(b"code"))
    assert kernel_cache.is_warm(team.work)
    (kernel_cache.cache_dir() / "team.work-1.nbc").write_bytes(b"")
    assert not kernel_cache.is_warm(team.work)


def test_doctor_looks_into_the_folder(tmp_path, monkeypatch):
    from nadi.diagnosis import _cache

    monkeypatch.setenv("NADI_CACHE_DIR", str(tmp_path / "cache"))
    assert _cache().ok
    (kernel_cache.cache_dir() / "x.nbi").write_bytes(b"nonsense")
    found = _cache()
    assert not found.ok
    assert "1 corrupt files, such as x.nbi" in found.found
    (tmp_path / "cache").chmod(0o777)
    found = _cache()
    assert not found.ok
    assert f"{tmp_path / 'cache'} can be written to by others (mode 777)" in found.found
