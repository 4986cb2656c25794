"""Interleaved 1F1B: stage s has v chunks, slices s, s + p, ... (Narayanan et al., arXiv 2104.04473, section 2.2.2).

The order is that of Megatron-LM (megatron/core/pipeline_parallel/schedules.py): micro-batches form groups of p, each
group passes through one chunk and then through the next, and stage s runs 2 (p - 1 - s) + (v - 1) p forward passes
before the first backward pass. The bubble is (p - 1) (F + B) / v, and the first stage holds 1 + (p - 1) / (p v) times
as much as with 1F1B (arXiv 2205.05198, section 4.2.3). Earlier versions of Megatron-LM ran all forward passes first if
m = p; as in the current version, this schedule does not. With pairs of passes a stage runs one more forward pass first
(get_pp_rank_microbatches, overlap_moe_expert_parallel_comm).
"""

from typing import Literal

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work


class Pipeline(PipelineSchedule):
    """The first forward passes, then alternating forward and backward passes, then the other backward passes."""

    TAKES_PAIRS = True
    TAKES_VPP = True
    WAITS_FOR_SENDS = "without overlap"  # overlap_p2p_comm; Megatron-LM before 3.0 always waited

    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in order.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        total = self.micro_batches * self.vpp
        ahead = self._ahead(stage)
        passes = [self._work("forward", i) for i in range(ahead)]
        for i in range(total):
            if i + ahead < total:
                passes.append(self._work("forward", i + ahead)._replace(is_paired=self.pairs))
            passes.append(self._work("backward", i))
        return passes

    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return the first forward passes plus one; groups of p micro-batches pass through one chunk, then the next.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        held = min(self._ahead(stage) + 1, self.micro_batches * self.vpp)
        rounds, rest = divmod(held, self.stages * self.vpp)
        in_last_round = (min(self.stages, max(0, rest - chunk * self.stages)) for chunk in range(self.vpp))
        return tuple(rounds * self.stages + count for count in in_last_round)

    def position(self, stage: int, chunk: int) -> int:
        """Return the slice of a chunk; slices are assigned round-robin to stages.

        Args:
            stage: The number of the pipeline stage, from 0.
            chunk: The number of the chunk in its stage, from 0.
        """
        return chunk * self.stages + stage

    def _ahead(self, stage: int) -> int:
        """Return the number of forward passes before the first backward pass."""
        ahead = 2 * (self.stages - 1 - stage) + (self.vpp - 1) * self.stages + self.pairs
        return min(ahead, self.micro_batches * self.vpp)

    def _work(self, kind: Literal["forward", "backward"], index: int) -> Work:
        """Return the pass with an index among those of a kind."""
        group, rest = divmod(index, self.stages * self.vpp)
        chunk, within = divmod(rest, self.stages)
        return Work(kind, group * self.stages + within, chunk if kind == "forward" else self.vpp - 1 - chunk)
