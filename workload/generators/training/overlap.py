"""Tensor-parallel communication in pieces that overlap the adjacent products.

The model is Transformer Engine's userbuffers (comm_gemm_overlap; tp_comm_overlap of Megatron-LM). The first piece of an
all-gather precedes the product of the first piece of rows, and the other pieces overlap products. The pieces of a
reduction follow the product of their rows, and later items wait for the last piece only. Because a piece is a range of
rows, only operators that treat each row separately are cut: attention's core is not.
"""

from nadi.et import CollectiveCommType
from nadi.workload.generators.training.items import Compute, GroupCollective, Items

PIECES = 4  # Number of pieces per collective, the same for all group sizes: an assumption of the model
_BY_ROWS = ("gemm", "norm", "norm-backward", "elementwise", "dropout")
_REDUCTIONS = (CollectiveCommType.REDUCE_SCATTER, CollectiveCommType.ALL_REDUCE)


def overlapped(items: Items) -> Items:
    """Return items in which each all-gather before, and each reduction after, a computation by rows is cut with it."""
    result: Items = []
    number = 0
    for item in items:
        before = result[-1] if result else None
        if isinstance(item, Compute) and _is_waited_for(before, CollectiveCommType.ALL_GATHER) and _is_by_rows(item):
            assert isinstance(before, GroupCollective)  # noqa: S101 - for the type checker: _is_waited_for checks it
            result[-1:] = _gathered(before, item, number)
            number += 1
        elif (
            isinstance(item, GroupCollective)
            and _is_waited_for(item, *_REDUCTIONS)
            and not item.name.startswith("loss")
        ):
            first = _first_piece(result)
            result[first:] = _reduced(result[first:], item, number)
            number += 1
        else:
            result.append(item)
    return result


def _is_waited_for(item: object, *kinds: CollectiveCommType) -> bool:
    return isinstance(item, GroupCollective) and item.family == "tp" and not item.key and item.kind in kinds


def _is_by_rows(item: Compute) -> bool:
    return all(operator.kind in _BY_ROWS for operator in item.operators)


def _gathered(gather: GroupCollective, compute: Compute, number: int) -> Items:
    """Return the pieces of an all-gather, then the pieces of a computation, each of which waits for its gather."""
    # number: distinguishes the keys of the pieces.
    sizes, computes = shares(gather.bytes), _pieces(compute)
    keys = [f"piece {number}.{i}" for i in range(PIECES)]
    gathers = [gather._replace(bytes=size, key=key) for size, key in zip(sizes, keys, strict=True)]
    waiting = [each._replace(needs=(*each.needs, key)) for each, key in zip(computes, keys, strict=True)]
    return [*(each for each in gathers if each.bytes), *waiting]


def _first_piece(items: Items) -> int:
    """Return the index of the last computation if it is by rows, or of its first piece if it is cut already."""
    # The result is len(items) if the last item is no such computation.
    at = len(items)
    last = items[-1] if items else None
    if isinstance(last, Compute) and _is_by_rows(last):
        at -= 1
        while at and isinstance(item := items[at - 1], Compute) and item.name == last.name:
            if not any(key.startswith("piece") for key in item.needs):
                break
            at -= 1
    return at


def _reduced(computes: Items, reduction: GroupCollective, number: int) -> Items:
    """Return the pieces of a computation (or the pieces given), each followed by its piece of the reduction."""
    # number: distinguishes the keys of the pieces.
    if not computes:
        return [reduction]
    pieces = computes if len(computes) > 1 else list(_pieces(computes[0])) if isinstance(computes[0], Compute) else []
    keys = [f"reduced {number}.{i}" for i in range(PIECES)]
    result: Items = []
    for compute, size, key in zip(pieces, shares(reduction.bytes), keys, strict=True):
        result += [compute, reduction._replace(bytes=size, key=key)]
    return [*result[:-1], reduction._replace(bytes=shares(reduction.bytes)[-1])]


def shares(total: int) -> list[int]:
    """Return PIECES nearly equal integers whose sum is `total`."""
    return [total * (i + 1) // PIECES - total * i // PIECES for i in range(PIECES)]


def _pieces(compute: Compute) -> list[Compute]:
    """Return the pieces of a computation, each with a share of the rows of all operators."""
    cut = [
        [operator._replace(shape=(rows, *operator.shape[1:])) for rows in shares(operator.shape[0])]
        for operator in compute.operators
    ]
    return [compute._replace(operators=tuple(operators)) for operators in zip(*cut, strict=True)]
