"""Run files, options and calls of Python lead to the settings, the work and the cost that were recorded."""

import json
import os
import shlex
from functools import partial

import pytest

from nadi import pdes
from nadi.cli.main import main
from tests.records.plain import plain
from tests.records.python_calls import CALLS
from tests.records.resolved import resolved
from tests.records.settings import FOLDER, prepared
from tests.records.transcripts import masked

SLOW = {"documents", "situations"}
NAMES = [
    pytest.param(path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW)) for path in sorted(FOLDER.glob("*.txt"))
]


def check(name, found):
    """Compare what runs have decided with what is recorded under a name, or record it."""
    path = FOLDER / f"{name}.json"
    if os.environ.get("NADI_RECORD"):
        lines = ",\n".join(f"{json.dumps(run)}: {json.dumps(found[run], sort_keys=True)}" for run in found)
        path.write_text(f"{{\n{lines}\n}}\n")
    before, after = dict(flat(json.loads(path.read_text()))), dict(flat(json.loads(json.dumps(found))))
    changes = [
        f"{': '.join(place)}: recorded {before.get(place)}, found {after.get(place)}"
        for place in before | after
        if before.get(place) != after.get(place)
    ]
    assert not changes, "\n".join(changes)


def flat(tree, place=()):
    """Yield the place of each value in nested dictionaries, and the value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, (*place, key))
        else:
            yield (*place, key), value


def decisions(begin, folder):
    """Return what a run decides before its engine starts; it must begin, or be refused."""
    decided = resolved(begin)
    assert decided["exit"] in {0, 2}, decided
    decided["printed"] = masked("\n".join(decided["printed"]), folder)
    return json.loads(json.dumps(decided).replace(str(folder), "FOLDER"))  # the engine may name a user's file


@pytest.mark.parametrize("name", NAMES)
def test_run_files_resolve_to_what_was_recorded(name, nadi, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = prepared(name, nadi, tmp_path)
    check(name, {each: decisions(partial(main, shlex.split(each)[1:]), tmp_path) for each in commands})


def test_calls_of_python_resolve_to_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check("calls", {name: decisions(call, tmp_path) for name, call in CALLS.items()})


def test_another_setting_is_seen(tmp_path, monkeypatch):
    monkeypatch.delenv("NADI_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    decided = decisions(CALLS["groups"], tmp_path)
    decided["settings"]["seed"] = 2
    calls = json.loads((FOLDER / "calls.json").read_text())
    with pytest.raises(AssertionError, match=r"groups: settings: seed: recorded None, found 2\n"):
        check("calls", calls | {"groups": decided})


def test_defaults_are_those_recorded():
    """Records of runs leave out what is a default."""
    check("defaults", {"settings": plain(pdes.Settings())})
