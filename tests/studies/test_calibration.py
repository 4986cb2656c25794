import heapq

import numpy as np

from nadi.studies.benchmarks.instruments import calibration
from tests.pdes import naive


def test_calibration_heap_is_heapq():
    size, rounds = 100, 2000
    times, keys, slots = (np.zeros(size, np.int64) for _ in range(3))
    calibration.fill(times, keys, slots)
    spread = calibration.SPREAD_PS
    model = [(naive.mix2(slot, 1) % spread, naive.mix2(slot, 2), slot) for slot in range(size)]
    heapq.heapify(model)
    total = 0
    for turn in range(rounds):
        when, _, slot = model[0]
        total += when
        key = naive.mix(slot * 0x9E3779 + turn)
        heapq.heapreplace(model, (when + 1 + key % spread, key, slot))
    assert calibration.hold(times, keys, slots, rounds) == total % 2**62
    assert sorted(zip(times.tolist(), keys.tolist(), slots.tolist(), strict=True)) == sorted(model)
