"""The oracle for all-to-alls of split sizes."""

from functools import partial

from nadi.workload.collectives.schedules.oracle import Game, play


def check_uneven(schedules, index, count, seed=0):
    """Run schedule `index` as an all-to-all-v, whose blocks are ordered by member in regions 0 and 1.

    The matrix `count` is int64[n, n], chunks from member to member.
    """
    play(partial(UnevenGame, count), "all-to-all", schedules, index, seed)


class UnevenGame(Game):
    """A run with blocks of different numbers of chunks: the input ordered by receiver, the output by sender."""

    def __init__(self, count, *arguments):
        self.count = count
        super().__init__(*arguments)

    def start(self, member):
        return {a: {(member, a): 1} for a in range(int(self.count[member].sum()))}

    def promised(self, member):
        promised, at = {}, self.grid.atoms
        for source, row in enumerate(self.count):
            first = int(row[:member].sum())
            for chunk in range(first, first + int(row[member])):
                promised[at] = {(source, chunk): 1}
                at += 1
        return promised
