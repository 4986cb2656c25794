"""Several ranks in one process: threads that send each other pickled values."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from nadi.workload import build_program
from nadi.workload.trace_sets.trace_set import ELSEWHERE

GONE = b""
TIMEOUT_S = 30


class RankGoneError(RuntimeError):
    """Another rank has ended while this one waits for it."""


def on_ranks(n, work):
    """What work(rank, exchange) gives or raises on each of n ranks."""
    boxes = [[SimpleQueue() for _ in range(n)] for _ in range(n)]

    def send(rank, value):
        for box in boxes:
            box[rank].put(value)

    def exchange_of(rank):
        def exchange(value):
            send(rank, pickle.dumps(value))
            heard = [box.get(timeout=TIMEOUT_S) for box in boxes[rank]]
            if GONE in heard:
                raise RankGoneError
            return [pickle.loads(value) for value in heard]  # noqa: S301 - it is our own

        return exchange

    def run(rank):
        try:
            return work(rank, exchange_of(rank))
        except Exception as error:  # noqa: BLE001 - it is told
            return error
        finally:
            send(rank, GONE)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(run, range(n)))


def build_on_ranks(n, rank_of_npu, traces, trace_of_npu, groups=None, compute=None):
    """The Program or error of each of n ranks that have only the traces of their own NPUs."""

    def build(rank, exchange):
        own = np.where(np.array(rank_of_npu) == rank, trace_of_npu, ELSEWHERE).tolist()
        kept = sorted({t for t in own if t >= 0})
        numbers = [kept.index(t) if t >= 0 else t for t in own]
        return build_program([traces[t] for t in kept], numbers, len(own), groups, compute, exchange=exchange)

    return on_ranks(n, build)
