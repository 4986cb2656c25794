"""Switch disciplines of the naive fabric, one class each, by the names of pdes/network/disciplines."""


class Strict:
    def __init__(self, rules):
        pass

    def choose(self, ready):
        """Class that goes; ready: by class, whether it has a packet that no pause holds back."""
        return ready.index(True)


class Weighted:
    def __init__(self, rules):
        self.weights = rules.class_weights or (1, 1)
        assert all(weight > 0 for weight in self.weights)
        self.turn, self.left = 0, self.weights[0]

    def choose(self, ready):
        while self.left == 0 or not ready[self.turn]:
            self.turn = 1 - self.turn
            self.left = self.weights[self.turn]
        self.left -= 1
        return self.turn


DISCIPLINES = {"strict": Strict, "weighted": Weighted}
