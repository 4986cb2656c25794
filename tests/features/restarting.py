"""A feature run that is stopped twice at random cuts, and continues: its results are those of the run never stopped."""

import contextlib
import itertools
import json
import shutil
import zlib
from unittest import mock

import numpy as np
import pyarrow.parquet as pq

from nadi.cli.main import main
from nadi.configuration.run_file import load_config
from nadi.launching import checkpoints
from nadi.pdes import workers
from nadi.pdes.parallel import NO_SNAPSHOT, SAVE_AND_END
from nadi.pdes.reuse import Records, recurrence

STOPPED = 143
STOPS = 2
MAX_CALLS = 12
"""Maximum number of times that a process is asked whether it wants to stop before it says so."""
OF_THIS_MACHINE = {"wall_s", "setup_s", "first_event_s", "packet_hops_per_s", "peak_rss_bytes", "config", "named"}
OF_WORKERS = {"ranks", "threads", "processes", "lps", "windows", "reuse", "warnings"}
"""Keys of summary.json that need not be equal, the second where the workers are others."""
WORKERS = ((1, "threads"), (2, "threads"), (2, "processes"))
PARTITIONERS = ("metis", "blocks", "scatter")
WRONG_INPUT = 2


class Stopping(checkpoints.CheckpointFolder):
    """Checkpoints of a run that is asked to end after its workers have left the kernel so many times."""

    calls_left = 0

    @property
    def request(self):
        self.calls_left -= 1
        return SAVE_AND_END if self.calls_left < 0 else NO_SNAPSHOT

    @request.setter
    def request(self, value):
        pass

    def listen(self):
        """As Checkpoints.listen: signals end the test."""


def after(calls):
    kind = type("StoppingThen", (Stopping,), {"calls_left": calls})
    return mock.patch.object(checkpoints, "CheckpointFolder", kind)


def often():
    return mock.patch.multiple(workers, MIN_HOPS_OF_A_PAUSE=50, PAUSE_S=1e-4, EVENTS_OF_A_PAUSE=100)


MAX_LOOKS = 40
"""Maximum number of times that a process asks whether reuse is in vain before it is."""
HOPS_OF_MOMENTS = (0, 100, 5000, recurrence.HOPS_OF_MOMENT)


@contextlib.contextmanager
def reuse_pays(looks, hops_of_moment=0):
    """Have reuse be in vain from a look on, whatever it has saved, and a look for periods cost so many hops.

    Both decide when replay and the search go on, and so depend on what ran before; no result may depend on them.
    """
    look = itertools.count()
    in_vain = property(lambda _records: next(look) >= looks)
    with (
        mock.patch.object(Records, "is_in_vain", in_vain),
        mock.patch.multiple(recurrence, HOPS_OF_MOMENT=hops_of_moment, HOPS_OF_NPU=hops_of_moment // 100),
    ):
        yield


def reuse_that_ends(path):
    """Have reuse end at moments that depend on the text of a run file only."""
    random = np.random.default_rng(zlib.crc32(path.read_bytes()) + 1)
    return reuse_pays(int(random.integers(MAX_LOOKS)), HOPS_OF_MOMENTS[random.integers(len(HOPS_OF_MOMENTS))])


def tables(folder):
    """Return the tables and the summary of a folder of results that must not depend on how the run went."""
    summary = json.loads((folder / "summary.json").read_text())
    found = {name: value for name, value in summary.items() if name not in OF_THIS_MACHINE | OF_WORKERS}
    found["settled"].pop("lookahead_ps", None)  # it depends on the division
    names = sorted(path.name for path in folder.glob("*.parquet") if path.name != "workers.parquet")
    return found | {name: repr(pq.read_table(folder / name).to_pydict()) for name in names}  # NaN equals NaN


def differences(found, wanted):
    """Return the names of what differs between two results of `tables`."""
    names = found.keys() | wanted.keys()
    return sorted(name for name in names if name not in found or found[name] != wanted.get(name))


def different(folder, other):
    """Return the names of what differs between the results in two folders.

    Replayed packets have no events, and how much is replayed depends on how a run went. So numbers of events may differ
    where either run replayed something.
    """
    replayed = any("reuse" in json.loads((each / "summary.json").read_text()) for each in (folder, other))
    return [name for name in differences(tables(folder), tables(other)) if not (replayed and name == "events")]


def other_workers(random):
    """Return options with other workers, another number of parts of the fabric, and another partitioner."""
    number, backend = WORKERS[random.integers(len(WORKERS))]
    parts, partitioner = random.integers(1, 4), PARTITIONERS[random.integers(len(PARTITIONERS))]
    keys = (f"engine.lps_per_worker={parts}", f"engine.partitioner={partitioner}")
    return ["--workers", str(number), "--backend", backend, *(word for key in keys for word in ("--set", key))]


def workers_of(path):
    engine = load_config(path).engine
    keys = ("workers", "backend", "lps_per_worker", "partitioner")
    # None: the run chooses
    values = [getattr(engine, key) or "auto" for key in keys]
    return [
        word for key, value in zip(keys, values, strict=True) for word in ("--set", f"engine.{key}={json.dumps(value)}")
    ]


def run_in_parts(path, parts, options):
    """Run a run file with stops at random moments and other workers after them; return the stops and the exit code."""
    random = np.random.default_rng(zlib.crc32(path.read_bytes()))
    given = ["run", str(path), "--quiet", "--out", str(parts), *options]
    stops = 0
    for _ in range(STOPS):
        with often(), after(int(random.integers(MAX_CALLS))):
            code = main(given)
        if code != STOPPED:
            break
        stops += 1
        given = ["run", "--quiet", "--resume", str(parts)]
        if random.integers(2):
            given += other_workers(random)
    if code == STOPPED:
        code = main(given)
    if code == WRONG_INPUT and stops:  # a partitioner cannot divide the fabric so, or cuts domains that are replayed
        code = main(["run", "--quiet", "--resume", str(parts), *workers_of(path)])
    return stops, code


WITH_CHECKPOINTS = ("--set", "engine.checkpoint=1h")


def run_whole(path):
    """Run a run file, with checkpoints that never come, and results in the folder `whole` beside it; the exit code."""
    whole = path.parent / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    return main(["run", str(path), "--quiet", "--out", str(whole), *WITH_CHECKPOINTS])


def run_and_restart(path):
    """Run a run file, whole and in parts; return the exit code of the whole run, or raise what is wrong."""
    whole, parts = path.parent / "whole", path.parent / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    code = run_whole(path)
    if code != 0:
        return code
    stops, code = run_in_parts(path, parts, WITH_CHECKPOINTS)
    if code != 0:
        raise AssertionError(f"exit code {code} after {stops} stops")
    wrong = different(parts, whole)
    if wrong:
        raise AssertionError(f"differ after {stops} stops: {wrong}")
    shutil.rmtree(whole)
    shutil.rmtree(parts)
    return 0
