"""ZB-H1: backward passes split into gradients of inputs (B) and of weights (W).

Source: Qi et al., arXiv 2401.10241, section 2.1. The order is that of 1F1B, but stage s delays each pass W by s
backward passes, so that every stage holds p micro-batches, as 1F1B's first stage does. The bubble is
(p - 1) (F + B - W): a third of 1F1B's if the three passes take the same time.
"""

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work


class Pipeline(PipelineSchedule):
    """p - 1 - s forward passes, then forward, backward and delayed W passes in turns, then the other passes."""

    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in order.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        ahead = min(self.stages - 1 - stage, self.micro_batches)
        passes = [Work("forward", micro_batch) for micro_batch in range(ahead)]
        for micro_batch in range(self.micro_batches):
            if micro_batch + ahead < self.micro_batches:
                passes.append(Work("forward", micro_batch + ahead))
            passes.append(Work("backward", micro_batch, is_split=True))
            if micro_batch >= stage:
                passes.append(Work("weights", micro_batch - stage))
        first_left = max(self.micro_batches - stage, 0)
        return passes + [Work("weights", micro_batch) for micro_batch in range(first_left, self.micro_batches)]

    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return the number of micro-batches that a stage holds: as many as there are stages, or all of the step.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        return (min(self.stages, self.micro_batches),)
