"""What a stage of a pipeline does at a time."""

from typing import Literal, NamedTuple

Pass = Literal["forward", "backward", "weights"]


class Work(NamedTuple):
    """One pass of one micro-batch through one chunk of layers.

    Attributes:
        kind: forward; backward, which works out gradients of weights too unless is_split; weights, what a split
            backward left.
        micro_batch: from 0, unique over the whole step of a replica.
        chunk: of the stage's chunks, from 0.
        is_split: of a backward: gradients of inputs only. The weights' follow as a Work of their own, later.
        is_paired: this forward and the backward after it in the list are done together, layer by layer, so that the
            communication of each hides behind the computation of the other.
    """

    kind: Pass
    micro_batch: int
    chunk: int = 0
    is_split: bool = False
    is_paired: bool = False
