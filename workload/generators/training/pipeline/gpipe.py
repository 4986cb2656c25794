"""GPipe: all forward passes, then all backward passes (Huang et al., arXiv 1811.06965).

A step takes m (F + B) of work plus a bubble of (p - 1) (F + B), with F and B the times of a forward and a backward
pass. Each stage holds the activations of all m micro-batches.
"""

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work


class Pipeline(PipelineSchedule):
    """All forward passes, then all backward passes in the same order of micro-batches."""

    WAITS_FOR_SENDS = "always"

    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in order.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        forward = [Work("forward", micro_batch) for micro_batch in range(self.micro_batches)]
        return forward + [Work("backward", micro_batch) for micro_batch in range(self.micro_batches)]

    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return the number of micro-batches that a stage holds: all.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        return (self.micro_batches,)
