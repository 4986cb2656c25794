"""Tensor-parallel communication cut in pieces that run beside the products next to them.

As Transformer Engine's userbuffers (comm_gemm_overlap; tp_comm_overlap of Megatron-LM): an all-gather's first piece
comes before the product of the first piece of rows, the others beside; a reduction's pieces follow the product of their
rows, and only the last one's is waited for. Pieces are of rows, so that only operators of which each row is by itself
are cut: attention's core is not.
"""

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.training.items import Compute, GroupCollective, Items

PIECES = 4
_BY_ROWS = ("gemm", "norm", "norm-backward", "elementwise", "dropout")
_REDUCTIONS = (CollectiveCommType.REDUCE_SCATTER, CollectiveCommType.ALL_REDUCE)


def overlapped(items: Items) -> Items:
    """Items whose all-gathers before, and reductions after, a computation by rows are cut with it."""
    made: Items = []
    number = 0
    for item in items:
        before = made[-1] if made else None
        if isinstance(item, Compute) and _is_waited_for(before, CollectiveCommType.ALL_GATHER) and _is_by_rows(item):
            assert isinstance(before, GroupCollective)  # noqa: S101 - for the type checker: _is_waited_for says so
            made[-1:] = _gathered(before, item, number)
            number += 1
        elif (
            isinstance(item, GroupCollective)
            and _is_waited_for(item, *_REDUCTIONS)
            and not item.name.startswith("loss")
        ):
            first = _of_pieces(made)
            made[first:] = _reduced(made[first:], item, number)
            number += 1
        else:
            made.append(item)
    return made


def _is_waited_for(item: object, *kinds: CollectiveCommType) -> bool:
    return isinstance(item, GroupCollective) and item.family == "tp" and not item.key and item.kind in kinds


def _is_by_rows(item: Compute) -> bool:
    return all(operator.kind in _BY_ROWS for operator in item.operators)


def _gathered(gather: GroupCollective, compute: Compute, number: int) -> Items:
    """All pieces of the gather begin one after another; each piece of the computation waits for its own."""
    sizes, computes = shares(gather.bytes), _pieces(compute)
    keys = [f"piece {number}.{i}" for i in range(PIECES)]
    gathers = [gather._replace(bytes=size, key=key) for size, key in zip(sizes, keys, strict=True)]
    waiting = [each._replace(needs=(*each.needs, key)) for each, key in zip(computes, keys, strict=True)]
    return [*(each for each in gathers if each.bytes), *waiting]


def _of_pieces(made: Items) -> int:
    """Where the last computation begins that can be cut, or is cut already."""
    at = len(made)
    if at and isinstance(made[-1], Compute) and _is_by_rows(made[-1]):
        at -= 1
        first = made[at]
        while (
            at and isinstance(made[at - 1], Compute) and isinstance(first, Compute) and _is_piece(made[at - 1], first)
        ):
            at -= 1
    return at


def _is_piece(item: object, of: Compute) -> bool:
    return isinstance(item, Compute) and item.name == of.name and any(key.startswith("piece") for key in item.needs)


def _reduced(computes: Items, reduction: GroupCollective, number: int) -> Items:
    """Each piece is reduced once it is worked out."""
    if not computes:
        return [reduction]
    pieces = computes if len(computes) > 1 else list(_pieces(computes[0])) if isinstance(computes[0], Compute) else []
    keys = [f"reduced {number}.{i}" for i in range(PIECES)]
    made: Items = []
    for compute, size, key in zip(pieces, shares(reduction.bytes), keys, strict=True):
        made += [compute, reduction._replace(bytes=size, key=key)]
    return [*made[:-1], reduction._replace(bytes=shares(reduction.bytes)[-1])]


def shares(whole: int) -> list[int]:
    """Whole numbers that are nearly equal and together are `whole`."""
    return [whole * (i + 1) // PIECES - whole * i // PIECES for i in range(PIECES)]


def _pieces(compute: Compute) -> list[Compute]:
    cut = [_cut(operator) for operator in compute.operators]
    return [compute._replace(operators=tuple(each)) for each in zip(*cut, strict=True)]


def _cut(operator: Operator) -> list[Operator]:
    return [operator._replace(shape=(rows, *operator.shape[1:])) for rows in shares(operator.shape[0])]
