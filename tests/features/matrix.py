"""Runs that together have every two choices (`values`) at once, as far as they go together.

Each run is made greedily: from a pair of choices that no run has had, with those further choices that keep the run file
valid and make the most pairs that no run has had. What Nadi refuses only when it knows fabric and traces is learned: a
refused run is reduced to fewer choices that are still refused, and no later run has all of these.
"""

import argparse
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.features.values import ALWAYS, OPTIONAL, choices

REFUSED = "refused"
ENOUGH = 3
"""Values of a factor that are tried to find that its value does not matter."""
PLAIN = dict.fromkeys(ALWAYS, 0)
MOST_ADDED = 12
"""Optional choices of a run: with more of them, refusals are many and hide each other."""


def options(prog, description):
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seed", type=int, help="seed of the order in which pairs are tried; default: a random one")
    parser.add_argument("--seconds", type=float, default=1800, help="no run begins later than this")
    return parser


@dataclass
class Matrix:
    """Which pairs of choices have been tried.

    Attributes:
        is_valid: Function from a run (a dictionary of choices) to whether its run file is valid.
        outcome_of: Function from a run to "" (it ran), REFUSED with the reason behind it, or what is wrong.
        seed: Seed of the order in which pairs and choices are tried.
        always: Factors of which every run chooses a value, with their values; the first value of each is plain.
        optional: Factors that a run may leave out, with their values.
        conflicts: Sets of choices that Nadi refuses together.
        reasons: Why it refuses each of these.
        defects: Runs that neither ran nor were refused, and what they did.
        runs: Number of runs so far.
        refused: Number of pairs that Nadi refuses whatever else is chosen.
        refusal_of: Function like outcome_of that may take a run that is not refused for one that ran; None = that.
    """

    is_valid: Any
    outcome_of: Any
    seed: int = 0
    always: dict = field(default_factory=lambda: ALWAYS)
    optional: dict = field(default_factory=lambda: OPTIONAL)
    conflicts: list = field(default_factory=list)
    reasons: list = field(default_factory=list)
    defects: list = field(default_factory=list)
    runs: int = 0
    refused: int = 0
    refusal_of: Any = None

    def __post_init__(self):
        self._random = np.random.default_rng(self.seed)
        self._plain = dict.fromkeys(self.always, 0)
        all_choices = choices(self.always | self.optional)
        pairs = [pair for pair in itertools.combinations(all_choices, 2) if pair[0][0] != pair[1][0]]
        self._left = dict.fromkeys(frozenset(pair) for pair in self._shuffled(pairs))

    @property
    def left(self):
        return len(self._left)

    def cover(self, most_runs=np.inf, seconds=np.inf):
        """Try pairs until none is left, for so many runs, or for so long."""
        end = time.monotonic() + seconds
        while self._left and self.runs < most_runs and time.monotonic() < end:
            pair = next(iter(self._left))
            run = self._run_for(pair)
            if run is None:
                self._refuse(pair)
                continue
            outcome = self._try(run)
            if outcome.startswith(REFUSED):
                self._learn(run, outcome)
                continue
            for tried in itertools.combinations(run.items(), 2):
                self._left.pop(frozenset(tried), None)

    def _run_for(self, pair):
        """Return a run that has a pair and more that fits; None if there is none, also with one choice more."""
        optional = choices(self.optional)
        companies = [{}, *({factor: number} for factor, number in self._shuffled(optional))]
        run = next(filter(None, (self._completed(company | dict(pair)) for company in companies)), None)
        if run is None:
            return None
        gains = {choice: self._gain(choice, run.items()) for choice in self._shuffled(optional) if choice[0] not in run}
        while len(run) < len(self.always) + MOST_ADDED and any(gains.values()):
            best = max(gains, key=gains.__getitem__)
            del gains[best]
            if self._fits(run | dict([best])):
                run |= dict([best])
                gains = {
                    choice: gain + self._gain(choice, [best]) for choice, gain in gains.items() if choice[0] != best[0]
                }
        return run

    def _gain(self, choice, others):
        """Return the number of pairs that a choice makes with others and that are left."""
        return sum(frozenset((choice, other)) in self._left for other in others)

    def _completed(self, run, factors=None):
        """Return a run with a value of each factor that every run has; None if nothing fits.

        factors: Factors that may still lack a value; None = all.
        """
        factors = list(self.always) if factors is None else factors
        if not factors:
            return run
        first, *others = factors
        for number in [run[first]] if first in run else self._by_need(run, first):
            more = run | {first: number}
            if self._fits(self._plain | more):
                found = self._completed(more, others)
                if found is not None:
                    return found
        return None

    def _fits(self, run):
        return not any(conflict <= run.items() for conflict in self.conflicts) and self.is_valid(run)

    def _by_need(self, run, factor):
        """Return the numbers of a factor's values, those first that make most pairs that are left."""
        need = [self._gain((factor, number), run.items()) for number in range(len(self.always[factor]))]
        return [int(number) for number in np.argsort(-np.array(need) + self._random.random(len(need)) / 2)]

    def _shuffled(self, items):
        return [items[i] for i in self._random.permutation(len(items))]

    def _try(self, run, outcome_of=None):
        """Return the outcome of a run, also of one that only reduces a refusal; what is wrong is a defect of either."""
        self.runs += 1
        outcome = (outcome_of or self.outcome_of)(run)
        if outcome and not outcome.startswith(REFUSED):
            self.defects.append((run, outcome))
        return outcome

    def _learn(self, run, reason):
        """Reduce a refused run to fewer choices that are refused together for the same reason."""
        matter = self._matter(self._reduced(run, reason), reason)
        conflict = frozenset(item for item in run.items() if item[0] in matter)
        if not conflict:
            raise AssertionError(f"{run} is refused whatever it chooses: {reason}")
        self.conflicts.append(conflict)
        self.reasons.append(reason)
        for pair in [pair for pair in self._left if conflict <= pair]:
            self._refuse(pair)

    def _reduced(self, run, reason):
        """Return a run that is refused for a reason, with as few choices as possible and the others plain.

        Choices are left out many at a time, then fewer (delta debugging: Zeller and Hildebrandt, IEEE Transactions on
        Software Engineering 28, 2002).
        """
        kept = [factor for factor in run if run[factor] != self._plain.get(factor)]
        kept.sort(key=self.always.__contains__)
        size = (len(kept) + 1) // 2
        while size > 0:
            for begin in range(0, len(kept), size)[::-1]:
                fewer = kept[:begin] + kept[begin + size :]
                if self._is_refused(self._plain | {factor: run[factor] for factor in fewer}, reason):
                    kept = fewer
            size = min(size // 2, len(kept))
        return self._plain | {factor: run[factor] for factor in kept}

    def _matter(self, needed, reason):
        """Return the factors of a refused run whose other values are not refused, too."""
        found = set(needed)
        for factor, values in self.always.items():
            others = [number for number in range(len(values)) if number != needed[factor]]
            others = self._shuffled(others)[:ENOUGH]
            if all(self._is_refused(needed | {factor: number}, reason) for number in others):
                found.remove(factor)
        return found

    def _is_refused(self, run, reason):
        return self.is_valid(run) and self._try(run, self.refusal_of) == reason

    def _refuse(self, pair):
        del self._left[pair]
        self.refused += 1
