"""Switch disciplines of the naive fabric, one class each, by the names of pdes/network/disciplines.

Each has choose(ready, sizes), which returns the class that goes. ready: by class, whether it has a packet that no pause
holds back; sizes: by class, bytes of the packets that wait.
"""


class Strict:
    def __init__(self, *_):
        pass

    def choose(self, ready, _sizes):
        return ready.index(True)


class Weighted:
    def __init__(self, rules, _full_packet):
        self.weights = [*rules.class_weights, *[1] * 8][:8]
        assert all(weight > 0 for weight in self.weights)
        self.turn, self.left = 0, self.weights[0]

    def choose(self, ready, _sizes):
        while self.left == 0 or not ready[self.turn]:
            self.turn = (self.turn + 1) % 8
            self.left = self.weights[self.turn]
        self.left -= 1
        return self.turn


class Ets:
    """Strict classes, then deficit round robin as in the paper: a counter for each class, a quantum at each visit."""

    def __init__(self, rules, full_packet):
        weights = [*rules.class_weights, *[1] * 8][:8]
        self.strict = [c for c in range(8) if weights[c] == 0]
        self.quantum = [weight * full_packet for weight in weights]
        self.counter, self.turn, self.visited = [0] * 8, 0, False

    def choose(self, ready, sizes):
        first = [c for c in self.strict if ready[c]]
        if first:
            return max(first)
        while True:
            c = self.turn
            if not ready[c]:
                self.counter[c] = 0
            else:
                if not self.visited:
                    self.counter[c] += self.quantum[c]
                    self.visited = True
                if sizes[c][0] <= self.counter[c]:
                    self.counter[c] -= sizes[c][0]
                    if len(sizes[c]) == 1:
                        self.counter[c] = 0
                        self.pass_on()
                    return c
            self.pass_on()

    def pass_on(self):
        self.turn, self.visited = (self.turn + 1) % 8, False


DISCIPLINES = {"strict": Strict, "weighted": Weighted, "ets": Ets}
