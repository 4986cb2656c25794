"""A kernel that writes past an end of an array ends the command with exit code 1 and one line that names the array."""

import numpy as np

from nadi.pdes.workers import worker_pool


def test_a_collective_whose_memory_is_damaged(nadi, monkeypatch):
    run = worker_pool.WorkerPool._work

    def run_and_write(self, worker):
        run(self, worker)
        next_time = self.sim.lps[0].world.net.next_time
        np.lib.stride_tricks.as_strided(next_time, (len(next_time) + 1,))[-1] = 7

    monkeypatch.setattr(worker_pool.WorkerPool, "_work", run_and_write)
    done = nadi("collective", "all-reduce", "-t", "switch:npus=4", "--sizes", "1KiB", "--algorithm", "ring", "-q")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "LP 0: memory of array next_time was overwritten 0 bytes behind its end" in done.err
    assert "Traceback" not in done.err
    assert "ring" not in done.out


def test_send_latency_with_nvls(nadi):
    """The command of issue 27, which ended with SIGSEGV."""
    how = ("-t", "dgx-h100:npus=8", "--sizes", "1MiB", "--set", "network.send_latency=1us", "-q", "--json")
    done = nadi("collective", "all-reduce", "--algorithm", "nvls", *how)
    assert done.code == 0
    (row,) = done.document["rows"]
    assert row["ratio"] == 1
