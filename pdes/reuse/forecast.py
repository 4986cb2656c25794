"""Forecast, before a run, of the trace rows that it will count as periods of the whole run and not simulate.

Only estimates of time use it: progress and checks of resources. What a run counts, `recurrence` decides from its state.
"""

from typing import NamedTuple

import numpy as np

from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Bools, Int64, Program
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_SEND
from nadi.pdes.reuse.recurrence import has_periods
from nadi.pdes.reuse_kernels import periods

# Periods that a run simulates of those that its traces repeat: after one whose end is like its begin, another is noted,
# and the first often ends in another state, as queue pairs and circuits of messages are not all in use yet.
SIMULATED_PERIODS = 3
FEWEST_COUNTED = 3  # periods that follow without which a run notes none (recurrence.FEWEST_PERIODS)
_MAX_DISTANCES = 64  # lengths of a period that are tried
_FULL_SHARE = 0.95  # share of the longest stretch at which a shorter period is preferred
_MIXER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd: it spreads a word's bits (Knuth, 6.4)


class Stretch(NamedTuple):
    """Rows of a trace that repeat a period."""

    begin: int  # first row
    steps: int  # rows of a period
    periods: int

    def joined(self, repetitions: int) -> "Stretch":
        """Return the stretch with periods of so many of its periods."""
        return Stretch(self.begin, repetitions * self.steps, self.periods // repetitions)

    def last(self, periods: int) -> tuple[int, int]:
        """Return the first row of the last so many periods, and the row behind them."""
        end = self.begin + self.periods * self.steps
        return end - periods * self.steps, end


_NONE = Stretch(0, 1, 0)


class Forecast(NamedTuple):
    """Rows of a program's traces, bool[N] each."""

    counted: Bools  # rows that a run is likely to count
    spanned: Bools  # rows of the stretch of each trace in which they are
    earlier: Bools  # rows before it


def counted_rows(program: Program, settings: Settings) -> Forecast:
    """Return the rows of a program that a run is likely to count.

    Args:
        program: Work of all NPUs (`Program`), with aggregators.
        settings: Settings of the run.
    """
    found = Forecast(*np.zeros((3, len(program.node_kind)), np.bool_))
    # Without ticks, members of collectives across hosts keep the offsets with which the last one ended. The messages of
    # a pipeline keep none where its stages wait for them.
    may_recur = has_periods(program, settings) and (settings.tick_ps > 0 or (program.node_kind == KIND_SEND).any())
    if not may_recur:
        return found
    rows = np.diff(program.trace_ptr)
    used = np.unique(program.trace_of_npu[program.trace_of_npu >= 0])
    # aggregators have a row for each collective, which tells nothing of a period
    is_own = (program.node_kind != KIND_COLLECTIVE) | (program.node_collective >= 0)
    own_rows = np.diff(np.append(0, np.cumsum(is_own))[program.trace_ptr])
    words = _words(program)
    stretches = {trace: _stretch(program, words, trace) for trace in used[own_rows[used] > 0].tolist()}
    # where a stage repeats itself more often, as with each chunk of layers, a period has several of its repetitions
    fewest = min(stretches, key=lambda trace: stretches[trace].periods, default=-1)
    if fewest < 0:
        return found
    steps = stretches[fewest].steps
    repetitions = {trace: max(1, round(steps / stretch.steps)) for trace, stretch in stretches.items()}
    stretches = {trace: stretch.joined(repetitions[trace]) for trace, stretch in stretches.items()}
    # every NPU must be in a period; a pipeline's first stage is so last
    repeated = min(stretch.periods for stretch in stretches.values()) - SIMULATED_PERIODS
    if repeated < FEWEST_COUNTED:
        return found
    places = {trace: stretch.last(repeated) for trace, stretch in stretches.items()}
    first, end = (place / int(rows[fewest]) for place in places[fewest])
    share = _simulated_share(max(repetitions.values()))
    for trace in used.tolist():
        begin, number = int(program.trace_ptr[trace]), int(rows[trace])
        low, high = places.get(trace, (int(first * number), int(end * number)))
        found.earlier[begin : begin + low] = True
        found.spanned[begin + low : begin + high] = True
        period = stretches[trace].steps if trace in stretches else max(1, (high - low) // repeated)
        found.counted[begin + low : begin + high] = np.arange(high - low) % period >= share * period
    return found


def _simulated_share(repetitions: int) -> float:
    """Return the share of a period that is simulated where stages between first and last repeat a part of it."""
    # A run takes the first period that it finds. Where that is a part of the whole one, such as the work of a chunk of
    # layers, the odd rows of the first and of the last stage end its repetitions in each whole period, and it finds
    # them again after each.
    if repetitions < 2 * SIMULATED_PERIODS + FEWEST_COUNTED:
        return 0.0
    return 2 * SIMULATED_PERIODS / repetitions


def _words(program: Program) -> Int64:
    """Return int64[N], a word for what each row does: rows that do the same have the same."""
    word = np.zeros(len(program.node_kind), np.uint64)
    for name in periods.ALIKE.split():
        column = np.asarray(getattr(program, f"node_{name}")).astype(np.int64).view(np.uint64)
        word = (word ^ column) * _MIXER
        word ^= word >> np.uint64(29)
    return word.view(np.int64)


def _stretch(program: Program, words: Int64, trace: int) -> Stretch:
    """Return the longest stretch of a trace that repeats a period, as far as three places of it tell."""
    npu = int(np.flatnonzero(program.trace_of_npu == trace)[0])
    own = words[program.trace_ptr[trace] : program.trace_ptr[trace + 1]]
    marks = periods.marks(program, npu)
    best = _NONE
    # a pipeline has one stretch, in the middle; steps without one have one for each direction
    for pivot in marks[[len(marks) // 4, len(marks) // 2, 3 * len(marks) // 4]].tolist() if len(marks) else ():
        found = _around(own, pivot, marks)
        if found.steps * found.periods > best.steps * best.periods:
            best = found
    return best


def _around(words: Int64, pivot: int, marks: Int64) -> Stretch:
    """Return the stretch around a row, of the shortest period with which it is about as long as with any other."""
    later = marks[(marks > pivot) & (words[marks] == words[pivot])]
    found = []
    for steps in (later[:_MAX_DISTANCES] - pivot).tolist():
        differs = np.flatnonzero(words[:-steps] != words[steps:])
        at = int(np.searchsorted(differs, pivot))
        begin = int(differs[at - 1]) + 1 if at else 0
        end = (int(differs[at]) if at < len(differs) else len(words) - steps) + steps
        found.append(Stretch(begin, steps, (end - begin) // steps))
    longest = max((each.steps * each.periods for each in found), default=0)
    return next((each for each in found if each.steps * each.periods >= _FULL_SHARE * longest), _NONE)
