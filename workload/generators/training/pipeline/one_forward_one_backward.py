"""1F1B: each backward pass as soon as its input is available (Narayanan et al., arXiv 2104.04473, section 2.2.1).

It is also known as PipeDream-Flush. The bubble is GPipe's, (p - 1) (F + B); stage s holds at most p - s micro-batches,
and one more with pairs of passes, because both passes of a pair must be of different micro-batches.
"""

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work


class Pipeline(PipelineSchedule):
    """p - 1 - s forward passes, then alternating forward and backward passes, then the other backward passes."""

    TAKES_PAIRS = True
    WAITS_FOR_SENDS = "always"

    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in order.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        ahead = min(self.stages - 1 - stage + self.pairs, self.micro_batches)
        passes = [Work("forward", micro_batch) for micro_batch in range(ahead)]
        for micro_batch in range(self.micro_batches):
            if micro_batch + ahead < self.micro_batches:
                passes.append(Work("forward", micro_batch + ahead, is_paired=self.pairs))
            passes.append(Work("backward", micro_batch))
        return passes

    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return the number of micro-batches that a stage holds: its first forward passes plus one.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        return (min(self.stages - stage + self.pairs, self.micro_batches),)
