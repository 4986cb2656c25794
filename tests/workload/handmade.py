"""Schedules that use views and parts, made by hand."""

import numpy as np

from nadi.workload.collectives.plans.plan import Lane, everyone_alike, lines


def reduce_scatter(lane, n):
    """A ring's; afterwards the own chunk is summed."""
    for k in range(n - 1):
        lane.step(
            send_to=1, to_lane=lane.number, send=(-1 - k) % n, receive_from=n - 1, receive=(-2 - k) % n, reduce=True
        )
    return lane


def all_gather(lane, n, after=(-1, -1)):
    """A ring's, which waits for another lane."""
    for k in range(n - 1):
        waits = after if k == 0 else (-1, -1)
        lane.step(send_to=1, to_lane=lane.number, send=-k % n, receive_from=n - 1, receive=(-1 - k) % n, after=waits)
    return lane


def numbered(number, **attributes):
    """A lane that knows its number."""
    lane = Lane(**attributes)
    lane.number = number
    return lane


def two_rings(n, stride=-1, wire=(1, 1)):
    """All-reduce: two rings, each of one half of the buffer, from a member to the next and to that `stride` on."""
    views = [lines([range(n)]), lines([[k * stride % n for k in range(n)]])]
    rings = [numbered(k, view=k, part=k, parts=2, wire=wire) for k in range(2)]
    return everyone_alike(n, n, [all_gather(reduce_scatter(ring, n), n) for ring in rings], views=views)


def grid(rows, columns, part=None):
    """All-reduce of rows x columns members, rows side by side: along rows, along columns of what is left, and back."""
    member = np.arange(rows * columns).reshape(rows, columns)
    part = member.reshape(-1) % columns if part is None else part
    views = [lines(member), lines(member.T, part, columns)]
    lanes = [
        reduce_scatter(numbered(0, view=0, chunks=columns), columns),
        numbered(1, view=1, chunks=rows),
        numbered(2, view=0, chunks=columns),
    ]
    first = {"after": (0, columns - 2)}
    for k in range(rows - 1):
        lanes[1].step(
            send_to=1, to_lane=1, send=(-1 - k) % rows, receive_from=rows - 1, receive=(-2 - k) % rows, reduce=True,
            **(first if k == 0 else {}),
        )  # fmt: skip
    all_gather(lanes[1], rows)
    all_gather(lanes[2], columns, after=(1, 2 * (rows - 1) - 1))
    return everyone_alike(rows * columns, rows * columns, lanes, views=views)
