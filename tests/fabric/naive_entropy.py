"""Entropy rules in plain Python, written from uet-htsim's uec_mp.cpp and from MRC's states of a path, not from kernels.

Each rule is a generator-like object: `choose()` returns the next path, `learn(path, what, now_ps)` hears of one.
"""

from collections import deque

from nadi.pdes.core.algorithms import mix3

GOOD, MARKED, TRIMMED, DROPPED, TIMED_OUT = "good", "marked", "trimmed", "dropped", "timed out"
MS = 10**9


PENALTY = {GOOD: 0, MARKED: 1, TRIMMED: 4, DROPPED: 15, TIMED_OUT: 15}


class Turns:
    """All paths in turn; each round in an order of its own, whose lowest three bits count up."""

    def __init__(self, paths, salt):
        self.paths, self.salt, self.turn = paths, salt, 0

    def next_turn(self):
        round_number, place = divmod(self.turn, self.paths)
        self.turn += 1
        high = (mix3(self.salt, 0x70BD, round_number) // 8 * 8) % self.paths
        return place ^ high

    def choose(self, _again=False):
        return self.next_turn()

    def learn(self, path, what, now_ps):
        pass


class Bitmap(Turns):
    """Paths with penalties lose turns."""

    def __init__(self, paths, salt):
        super().__init__(paths, salt)
        self.penalty = dict.fromkeys(range(paths), 0)

    def choose(self, _again=False):
        path = self.next_turn()
        if self.penalty[path]:
            self.penalty[path] -= 1
            for _ in range(self.paths):
                path = self.next_turn()
                if not self.penalty[path]:
                    break
        return path

    def learn(self, path, what, _now_ps):
        self.penalty[path] = min(15, self.penalty[path] + PENALTY[what])


class Mixed(Bitmap):
    """Good paths again, in their order; else as Bitmap."""

    def __init__(self, paths, salt):
        super().__init__(paths, salt)
        self.good = deque()

    def choose(self, _again=False):
        return self.good.popleft() if self.good else super().choose()

    def learn(self, path, what, now_ps):
        if what == GOOD:
            self.good.append(path)
        else:
            super().learn(path, what, now_ps)


class Reps:
    """A ring of the last eight good paths; random ones without any; frozen for 10 ms after a loss."""

    def __init__(self, paths, salt):
        self.paths, self.salt, self.draws = paths, salt, 0
        self.clear()
        self.explore = 0

    def clear(self):
        self.ring = [None] * 8
        self.head = self.fresh = self.used = self.rotate = 0
        self.frozen_until = None

    def random(self):
        self.draws += 1
        return mix3(self.salt, 0xD7A3, self.draws) % self.paths

    def choose(self, _again=False):
        if self.explore:
            self.explore -= 1
            return self.random()
        if self.frozen_until is not None and self.used:
            path = self.ring[self.rotate]
            self.rotate = (self.rotate + 1) % self.used
            return path
        if self.frozen_until is None and self.fresh:
            path = self.ring[(self.head - self.fresh) % 8]
            self.fresh -= 1
            return path
        return self.random()

    def learn(self, path, what, now_ps):
        if what in (DROPPED, TIMED_OUT) and self.frozen_until is None and not self.explore:
            self.frozen_until = now_ps + 10 * MS
        if self.frozen_until is not None and now_ps > self.frozen_until:
            self.clear()
            self.explore = 16
        if what == GOOD:
            self.ring[self.head] = path
            self.head = (self.head + 1) % 8
            self.fresh, self.used = min(self.fresh + 1, 8), min(self.used + 1, 8)


class Mrc(Turns):
    """States of paths: good, skipped once, assumed bad until a probe returns, denied."""

    def __init__(self, paths, salt, denied=()):
        super().__init__(paths, salt)
        self.skipped, self.bad, self.denied = set(), set(), set(denied)
        self.last_good, self.probe_ps, self.probed = 0, None, 0

    def usable(self, path):
        return path not in self.skipped | self.bad | self.denied

    def choose(self, again=False):
        if again and self.usable(self.last_good):
            return self.last_good
        for _ in range(2 * self.paths):
            path = self.next_turn()
            if self.usable(path):
                return path
            self.skipped.discard(path)
        return path

    def learn(self, path, what, now_ps):
        if what == GOOD:
            if path in self.bad:
                self.bad.remove(path)
            elif self.usable(path):
                self.last_good = path
        elif what in (MARKED, TRIMMED):
            if self.usable(path):
                self.skipped.add(path)
        elif path not in self.bad and self.paths - len(self.denied) - len(self.bad) > max(1, self.paths // 4):
            if not self.bad:
                self.probe_ps = now_ps + 2 * MS
            self.skipped.discard(path)
            self.bad.add(path)

    def probe(self, now_ps):
        if not self.bad or now_ps < self.probe_ps:
            return -1
        self.probe_ps = now_ps + 2 * MS // len(self.bad)
        self.probed = min(self.bad, key=lambda path: (path - self.probed - 1) % self.paths)
        return self.probed


RULES = {"oblivious": Turns, "bitmap": Bitmap, "mixed": Mixed, "reps": Reps, "mrc": Mrc}
