import random

import pytest

from nadi.pdes.core import state as s
from tests.congestion.harness import ROW, US, Sender
from tests.plain_python import plain_python

HERE = "from tests.congestion.test_plain import rows; import sys; print(rows(sys.argv[1]))"


def rows(name):
    """The row after each of many random events, as one number."""
    dice = random.Random(name)  # noqa: S311 - a test's dice
    sender = Sender(name, gbps=77, window=50, **({"byte_counter_bytes": 3000} if name == "dcqcn" else {}))
    now, seen = 0, 0
    for _ in range(1500):
        now += dice.choice([0, US, 7 * US, 90 * US, 10**8, 10**10])
        what = dice.choice(["sent", "sent", "ack", "ack", "cnp", "loss"])
        if what == "ack":
            newly = min(dice.randint(0, 3), sender.outstanding)
            sender.ack(now, newly, dice.randint(0, 1), dice.randint(1, 700 * US))
        elif what == "loss":
            if dice.random() < 0.1:
                sender.loss(now, dice.choice([s.LOSS_NAK, s.LOSS_TIMEOUT]))
        else:
            getattr(sender, what)(now)
        seen = hash((seen, *sender.words[ROW].tolist()))
    return seen


@pytest.mark.parametrize("name", ["dcqcn", "dctcp", "timely"])
def test_plain_python_agrees_bit_for_bit(name):
    assert plain_python("-c", HERE, name).split() == [str(rows(name))]
