"""What a run chooses where nobody names it: a tick by its work and fabric alone, workers by the machine, too."""

import io
import os

import numpy as np
import pytest

from nadi.configuration.run_file import load_config
from nadi.launching import cores as machine
from nadi.launching.progress import ExpectedWork, NoProgress, Progress
from nadi.pdes import Snapshot
from nadi.simulation.assembly import choices, resource_checks
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import execute
from tests.cli.test_cautions import write

LARGE = ('workload.model="gpt3-175b"', 'workload.plan="tp8,pp4,gb96"', 'topology.cluster="selene"')
CLUSTER = 'topology.cluster="dgx-h100-superpod"'
SMALL = 'workload.model="gpt3-125m"', 'workload.plan="tp4,pp4,mb1,gb16,seq256"', CLUSTER


def plan_of(keys, *more, **options):
    return Resolver(load_config(None, [*keys, *more])).plan(has_folder=False, **options)


def chosen(plan):
    return plan.settings.tick_ps, plan.workers.workers, plan.workers.lps_per_worker


@pytest.fixture
def cores(monkeypatch):
    """Let the machine have so many idle cores, each of which pays for any run."""

    def have(count):
        monkeypatch.setattr(machine, "idle_cores", lambda: count)
        monkeypatch.setattr(choices, "FEWEST_HOPS_OF_WORKER", 1e5)

    return have


@pytest.mark.slow
def test_a_large_step_gets_ticks_and_workers(cores):
    cores(2)
    plan = plan_of(LARGE)
    assert chosen(plan) == (choices.TICK_PS, 2, 1)
    assert plan.note.startswith("chosen for this run: a tick of 1us, which changes times by at most one tick per row")
    assert "--set system.tick=0" in plan.note
    assert "; 2 workers, which change no result (--workers 1: one)" in plan.note
    settled = plan.config.settled()
    assert (settled["system"]["tick"], settled["engine"]["workers"]) == ("1us", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), (choices.TICK_PS, 1, 1)),
        (('engine.reuse="off"',), (choices.TICK_PS, 1, 1)),  # equal results with and without reuse
        (('output.sample="1ms"',), (choices.TICK_PS, 1, 1)),
        (("engine.workers=2", "engine.lps_per_worker=2"), (choices.TICK_PS, 2, 2)),
        (("system.tick=0",), (0, 1, 1)),
        (('system.tick="2us"',), (2 * choices.TICK_PS, 1, 1)),
        (('network.fidelity="closed-form"',), (0, 1, 1)),
    ],
)
def test_a_tick_follows_from_work_and_fabric_alone(more, expected):
    plan = Resolver(load_config(None, [*LARGE, *more]), force=True).plan(has_folder=False)
    assert chosen(plan) == expected
    assert ("a tick of" in plan.note) == (expected[0] == choices.TICK_PS)


def test_a_small_step_is_simulated_to_the_picosecond_by_one_worker():
    plan = plan_of(SMALL)
    assert (chosen(plan), plan.note) == ((0, 1, 1), "")


def test_the_expected_memory_leaves_out_rows_of_messages_that_have_none(monkeypatch):
    def planned():
        return Resolver(load_config(None, SMALL)).plan(has_folder=True)

    with_rows = planned()
    monkeypatch.setattr(resource_checks, "MAX_ROWS_OF_MESSAGES", 0)
    without = planned()
    assert [plan.settings.record_replayed for plan in (with_rows, without)] == [True, False]
    saved = with_rows.expected.memory_bytes - without.expected.memory_bytes
    assert saved == resource_checks._MESSAGE_BYTES * without.expected.replayable > 0


def test_ticks_must_be_short_beside_computation(monkeypatch):
    monkeypatch.setattr(choices, "FEWEST_BYTES_WITH_TICK", 0)
    plan = plan_of(SMALL)
    share = choices.own_work(plan.graph, plan.program, plan.settings).tick_share
    assert share > choices.MAX_TICK_SHARE
    assert plan.settings.tick_ps == 0
    monkeypatch.setattr(choices, "MAX_TICK_SHARE", share)
    assert plan_of(SMALL).settings.tick_ps == choices.TICK_PS


@pytest.mark.slow
def test_a_run_that_chooses_has_the_digest_of_one_that_is_told(monkeypatch, cores):
    monkeypatch.setattr(choices, "FEWEST_BYTES_WITH_TICK", 0)
    monkeypatch.setattr(choices, "MAX_TICK_SHARE", 1)
    cores(2)
    told = 'system.tick="1us"', "engine.workers=1", "engine.lps_per_worker=1"
    plans = plan_of(SMALL), plan_of(SMALL, *told)
    assert [chosen(plan) for plan in plans] == [(choices.TICK_PS, 2, 1), (choices.TICK_PS, 1, 1)]
    found, same = (execute(plan, NoProgress()).results for plan in plans)
    assert (found.digest, found.finish_time_ps) == (same.digest, same.finish_time_ps)


def test_workers_are_cores_that_others_leave_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert machine.usable_cores(tmp_path) == 6
    for cpu in range(6):  # two threads of each core
        siblings = f"{cpu % 3},{cpu % 3 + 3}\n"
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    assert machine.usable_cores(tmp_path) == 3
    write(tmp_path, "proc/self/cgroup", "0::/a/job\n")
    write(tmp_path, "sys/fs/cgroup/a/job/cpu.max", "max 100000\n")
    assert machine.usable_cores(tmp_path) == 3
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    assert machine.usable_cores(tmp_path) == 2
    write(tmp_path, "proc/self/cgroup", "4:memory:/slurm/1\n3:cpu:/x\n")
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    assert machine.usable_cores(tmp_path) == 3
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n")
    assert machine.usable_cores(tmp_path) == 1


def test_idle_cores_are_those_that_others_do_not_use_now(tmp_path, monkeypatch):
    """Of four processors that may be used, some are busy for a share of the time between two looks."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    assert machine.idle_cores(tmp_path) == 4  # nothing is known of processors

    def passed(ticks, shares):
        """Write the processors' times after some ticks, of which each was in use for a share; 3 may not be used."""
        rows = [
            f"cpu{cpu} {1000 + int(ticks * share)} 7 0 {5000 + int(ticks * (1 - share))} 3 0 0 0 9 0"
            for cpu, share in zip((0, 1, 2, 3, 5), (*shares, 1, 0), strict=True)
        ]
        write(tmp_path, "proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *rows, "intr 5 6"]))

    for shares, idle in (((0, 0, 0), 4), ((0.1, 0.1, 0.1), 4), ((1, 0, 0), 3), ((1, 1, 0.2), 2), ((1, 1, 1), 1)):
        passed(0, shares)
        monkeypatch.setattr(machine.time, "sleep", lambda _, shares=shares: passed(20, shares))
        assert machine.idle_cores(tmp_path) == idle


def snapshot(hops, rows, counted=0):
    return Snapshot(0, hops, rows, 1000, 1.0, counted_hops=counted)


def test_progress_counts_what_periods_save():
    """Of 1,000 packet-hops, 600 are those of periods, whose rows are 100 to 900 of 1,000."""
    expected = ExpectedWork(1000.0, 600.0, spanned_rows=800, earlier_rows=100)
    assert [expected.simulated(snapshot(1, rows)) for rows in (0, 100, 500, 900, 1000)] == [400, 400, 700, 1000, 1000]
    # periods were counted, as many as expected, fewer or more
    assert expected.simulated(snapshot(300, 860, counted=600)) == 400
    assert expected.simulated(snapshot(300, 900, counted=500)) == 500
    assert expected.simulated(snapshot(300, 900, counted=700)) == 300
    assert ExpectedWork(1000.0).simulated(snapshot(1, 500)) == 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ("tp8,pp4,mb1,gb24,seq256", ('system.tick="1us"',)),
        ("tp8,pp4,mb1,gb8,seq256", ('engine.reuse="off"',)),
        ("tp8,pp2,dp2,mb1,gb32,seq256", ()),
        ("tp8,dp4,gb8,seq256", ('workload.framework="fsdp"',)),
    ],
)
def test_packet_hops_before_and_during_a_run(plan, more):
    """Within a factor of two of what is simulated, at a tenth, at half and at nine tenths of it."""
    keys = 'workload.model="gpt3-350m"', f'workload.plan="{plan}"', CLUSTER
    planned = plan_of(keys, *more)
    seen = []

    class Seen(NoProgress):
        def __call__(self, snapshot):
            seen.append((snapshot.packet_hops, self._expected.simulated(snapshot)))

    results = execute(planned, Seen()).results
    in_all = results.simulated_hops - results.reuse["episode_hops"]
    simulated = np.array([hops for hops, _ in seen])
    assert len(simulated) >= 3
    assert 0.5 < resource_checks.work(planned.expected, planned.settings) / in_all < 2
    for share in (0.1, 0.5, 0.9):
        at = int(np.argmax(simulated >= share * simulated[-1]))
        assert 0.5 < seen[at][1] / in_all < 2


def test_progress_counts_what_was_replayed_before_replay_stopped():
    """Of 1,000 packet-hops, 300 are outside of collectives that can be replayed; 400 were replayed."""
    shown = io.StringIO()
    progress = Progress(shown, None)
    progress.expect(ExpectedWork(300.0), 700.0, "seldom repeat")
    progress(Snapshot(0, 100, 500, 1000, 1.0))
    assert "seldom repeat" not in shown.getvalue()
    for _ in range(2):  # it stops once
        progress(Snapshot(0, 150, 600, 1000, 2.0, stopped_replaying=True, replayed_hops=400))
        assert progress._expected.simulated(snapshot(150, 600)) == 600
    assert shown.getvalue().count("seldom repeat") == 1
