"""Passes of a pipeline stage."""

from typing import Literal, NamedTuple

Pass = Literal["forward", "backward", "weights"]


class Work(NamedTuple):
    """One pass of one micro-batch through one chunk of layers."""

    # "forward"; "backward", including gradients of weights unless is_split; or "weights", the gradients of weights that
    # a split backward pass defers
    kind: Pass
    micro_batch: int  # Number of the micro-batch, from 0, unique in the step of a replica
    chunk: int = 0  # Number of the chunk in the stage, from 0
    # Whether a backward pass computes gradients of inputs only; those of weights are a later Work
    is_split: bool = False
    # Whether this forward pass runs together with the backward pass that follows it in the list, layer by layer, so
    # that the communication of each overlaps the computation of the other
    is_paired: bool = False
