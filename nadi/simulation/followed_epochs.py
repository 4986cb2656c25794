"""Epochs of optical switches that follow phases of the workload.

When a phase ends depends on the circuits before, and circuits change after it, so a run that is given the times at
which phases end, and in which they end at just these times, is the run that a switch with a controller would have:
nothing before a report depends on it, as circuits change at least a packet's time later, so there is only one such run.
It is found by runs with guessed times. All reports up to the first that a run contradicts are right. A late guess also
shows this one, as the run is right until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nadi import pdes
from nadi.launching.progress import Progress
from nadi.simulation.assembly.optical import OpticalSwitches
from nadi.simulation.assembly.workload_phases import WorkloadPhases
from nadi.workload import Exchange

Words = tuple[int, ...]
Run = Callable[[pdes.Settings], pdes.Results]

LATE_PS = 1 << 33  # 8.6 ms: first guess of the time between two reports, after which senders have timed out a few times
LATE_WITHOUT_TIMERS_PS = 1 << 43  # 8.8 s: where waiting costs nothing
FACTOR = 8  # by which a guess grows that was not late
MAX_FAILURES = 3  # runs with guesses that may fail
MAX_TRIES = 30_000  # timeouts of a queue pair in runs with guesses: more than in any time that is guessed


class _TooLongError(pdes.RunError):
    """Phases that end later than any run."""


@dataclass(frozen=True, eq=False)
class FollowedEpochs:
    """The epochs of a run that follow its phases."""

    switches: OpticalSwitches
    phases: WorkloadPhases
    scheduled: Callable[..., pdes.Faults]  # returns the faults of the run with `circuits`

    def faults(self, reports_ps: Sequence[int]) -> pdes.Faults:
        """Return the faults of a run with the circuits that follow these reports.

        Args:
            reports_ps: Times in ps at which the last NPU reports each phase but the last.
        """
        return self.scheduled(circuits=self.switches.circuits(self.phases.order, reports_ps))

    def guessed(self, known_ps: Words = (), step_ps: int = LATE_PS) -> Words:
        """Return reports of which the first are known, and the others come late.

        Args:
            known_ps: Reports that are known.
            step_ps: Time in ps between two others.
        """
        last_ps, missing = known_ps[-1] if known_ps else 0, len(self.phases.order) - 1 - len(known_ps)
        found = (*known_ps, *(last_ps + step_ps * number for number in range(1, missing + 1)))
        if found and found[-1] > pdes.LONGEST_RUN_PS // 2:
            raise _TooLongError(
                "phases that optical switches follow last too long: expected a run of less than 13 days"
            )
        return found

    def find(
        self,
        settings: pdes.Settings,
        run: Run,
        exchange: Exchange,
        progress: Progress,
        lasts_ps: int = 0,
    ) -> tuple[Words, pdes.Results | None]:
        """Return when phases are reported if circuits change then, and the results of this run.

        There are no results if the run may fail under its own settings.

        Args:
            settings: Settings of the run with guessed reports.
            run: Function that runs a program under settings.
            exchange: Exchange of values between ranks.
            progress: Display of the run's progress.
            lasts_ps: Estimate of the time in ps that the run takes, the same on all ranks.
        """
        has_timers = settings.fidelity.model.has_packets and settings.faults.circuits.need_timers
        patient = replace(settings, max_retries=MAX_TRIES)
        step_ps = max(LATE_PS, lasts_ps) if has_timers else LATE_WITHOUT_TIMERS_PS
        known_ps: Words = ()
        reports_ps, is_late = self.guessed(known_ps, step_ps), True
        failures: list[pdes.RunError] = []
        while True:
            try:
                results = run(replace(patient, faults=self.faults(reports_ps)))
            except pdes.RunError as error:
                # circuits that change too early may take for ever what a phase needs
                if getattr(error, "agreed", False):
                    raise
                failures.append(error)
                if len(failures) > MAX_FAILURES:
                    raise failures[0] from None
                step_ps, is_late = step_ps * FACTOR, True
                reports_ps = self.guessed(known_ps, step_ps)
                continue
            found_ps = self.phases.reports_ps(results, self.switches.trigger, exchange)
            agreed = _common(reports_ps, found_ps)
            progress.say(f"epochs follow phases: {agreed} of {len(found_ps)} begins are found")
            if agreed == len(found_ps):
                # with so few timeouts no queue pair has given up
                return reports_ps, results if results.counters["timeouts"] <= settings.max_retries else None
            is_early = found_ps[agreed] > reports_ps[agreed]
            if is_early and is_late:
                step_ps *= FACTOR
            is_late = is_early and agreed <= len(known_ps)
            known_ps = found_ps[:agreed]
            reports_ps = self.guessed(known_ps, step_ps) if is_late else _shifted(reports_ps, found_ps, agreed)


def _common(reports_ps: Words, found_ps: Words) -> int:
    """Return how many of the first reports are as found."""
    return next((i for i, (a, b) in enumerate(zip(reports_ps, found_ps, strict=True)) if a != b), len(found_ps))


def _shifted(reports_ps: Words, found_ps: Words, agreed: int) -> Words:
    """Return what was found up to the first report that was not as given, and the others as long after it as found."""
    following = list(found_ps[: agreed + 1])
    for i in range(agreed + 1, len(found_ps)):
        following.append(following[-1] + max(0, found_ps[i] - max(reports_ps[i - 1], found_ps[i - 1])))
    return tuple(following)
