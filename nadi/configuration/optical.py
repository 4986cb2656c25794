"""Sections [[optical]] of a run file: optical circuit switches, their matchings, and when these change."""

from collections import Counter
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, PlainSerializer, StrictInt, model_validator

from nadi.configuration.values import Moment, Section, Time, TimeAboveZero
from nadi.inputs.units import format_rate, format_time, parse_delay, parse_link_rate

MAX_MATCHINGS = 4096  # of a switch, each of which may need routing tables of its own
MAX_PORTS = 4096  # of a switch: a rotor of so many has 8 million circuits, more than a fabric may have cables

Rate = Annotated[int, BeforeValidator(parse_link_rate), PlainSerializer(format_rate)]
Delay = Annotated[int, BeforeValidator(parse_delay), PlainSerializer(format_time)]
Port = Annotated[int, Field(ge=0, lt=MAX_PORTS)]
Groups = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Matching = Annotated[tuple[tuple[Port, Port], ...], Field(max_length=MAX_PORTS)]
Matchings = Annotated[tuple[Matching, ...], Field(min_length=1, max_length=MAX_MATCHINGS)]


class Epochs(NamedTuple):
    """When the matchings of an optical switch begin, in the order of time."""

    begins_ps: tuple[int, ...]  # of each matching
    period_ps: int  # 0 = they happen once


class OpticalSection(Section):
    """One entry of [[optical]]: a switch whose ports are joined in pairs, by other pairs at other times."""

    ports: str | tuple[StrictInt | str, ...] = Field(
        description="electrical switch at each port, by name or node number, or an NPU whose leaf has no other; a word "
        'stands for all nodes of that name, "leaf" for leaf 0, leaf 1 and so on, "npu" for all NPUs'
    )
    rate: Rate = Field(description='rate of each circuit, "100Gbps"')
    delay: Delay = Field(500_000, description="propagation delay of each circuit, from switch to switch")
    matchings: Literal["rotor"] | Matchings = Field(
        description="pairs of ports that are joined in each epoch, as [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]; "
        '"rotor": each two ports are joined in one epoch'
    )
    slot: TimeAboveZero | None = Field(
        None, description="time from the begin of an epoch to that of the next; the epochs repeat for ever"
    )
    offset: Time = Field(0, description="time by which all epochs begin later, beside slot")
    at: tuple[Moment, ...] = Field((), description="begin of each epoch, in place of slot")
    period: TimeAboveZero | None = Field(None, description="time after which the epochs of at repeat; default: never")
    phases: tuple[Groups, ...] = Field(
        (),
        description="groups whose collectives each matching serves, in place of slot and at; circuits follow the "
        'phases of the workload; ["tp", ["dp", "edp"]]',
    )
    trigger: Literal["end", "begin"] = Field(
        "end",
        description='circuits change when all NPUs have ended a phase ("end"), or also begun the next one ("begin")',
    )
    controller_delay: TimeAboveZero = Field(
        10_000_000, description="time from when the last NPU ends or begins a phase until the epoch begins"
    )
    dark: Time = Field(
        0, description="time without light at ports that get another circuit: mirrors move, receivers lock again"
    )
    drain: Time = Field(
        0, description="time from the begin of an epoch for which the circuits of the one before still carry packets"
    )
    in_flight: Literal["drop", "hold"] = Field(
        "drop", description="packets at a port that is dark: they are lost, or wait for the circuit's next time"
    )
    routes: Literal["epoch", "direct"] = Field(
        "epoch",
        description='"epoch": shortest paths over the circuits that carry packets; "direct": over all circuits',
    )

    @model_validator(mode="after")
    def _epochs_fit(self) -> Self:
        """Refuse ports in two circuits at a time, and epochs whose times contradict each other."""
        if not isinstance(self.ports, str) and not 2 <= len(self.ports) <= MAX_PORTS:
            raise ValueError(f"found {len(self.ports)} ports; expected 2 to {MAX_PORTS}")
        if self.matchings != "rotor":
            for number, matching in enumerate(self.matchings):
                port, times = (
                    Counter(port for pair in matching for port in pair).most_common(1)[0] if matching else (0, 0)
                )
                if times > 1:
                    raise ValueError(f"port {port} is {times} times in matching {number}; expected at most one circuit")
        timed = [key for key in ("slot", "at", "phases") if getattr(self, key)]
        if len(timed) != 1 and self.changes:
            found = " and ".join(timed) or "none"
            raise ValueError(f"found {found}; expected exactly one of slot, at and phases")
        if self.slot is None and self.offset:
            raise ValueError("offset is set without slot; expected slot beside it")
        if self.period is not None and not self.at:
            raise ValueError("period is set without at; expected at beside it")
        if self.in_flight == "drop" and self.routes == "direct":
            raise ValueError('routes = "direct" drops nearly all packets; expected in_flight = "hold" beside it')
        if self.at:
            self._check_times(self.at)
        self._check_phases()
        return self

    def _check_phases(self) -> None:
        """Refuse phases that are not one for each of several matchings, and their keys without them."""
        if not self.phases:
            if own := [key for key in ("trigger", "controller_delay") if key in self.model_fields_set]:
                raise ValueError(f"{own[0]} is set without phases; expected phases beside it")
            return
        if self.matchings == "rotor" or len(self.matchings) != len(self.phases):
            found = "rotor" if self.matchings == "rotor" else f"{len(self.matchings)} matchings"
            raise ValueError(f"found {found} and {len(self.phases)} phases; expected one for each of several matchings")
        name, times = Counter(name for names in self.phases for name in names).most_common(1)[0]
        if times > 1 or not all(self.phases):
            found = f"{name!r} in {times} phases" if times > 1 else "a phase without a group"
            raise ValueError(f"phases: found {found}; expected each group in one phase")

    def _check_times(self, at: tuple[int, ...]) -> None:
        """Refuse begins of epochs that are no times of one period, or not as many as matchings."""
        if self.matchings == "rotor":
            raise ValueError('at is set beside matchings = "rotor"; expected slot')
        if len(at) != len(self.matchings):
            raise ValueError(f"found {len(at)} times in at; expected {len(self.matchings)}, one for each matching")
        if list(at) != sorted(set(at)):
            raise ValueError("found times in at that do not grow; expected each later than the one before")
        if self.period is None and at[0]:
            raise ValueError(f"found {format_time(at[0])} as the first time of at; expected 0s")
        if self.period is not None and at[-1] >= self.period:
            raise ValueError(f"found {format_time(at[-1])} in at; expected less than period {format_time(self.period)}")

    @property
    def changes(self) -> bool:
        """Whether there are several epochs."""
        return self.matchings == "rotor" or len(self.matchings) > 1

    def pairs(self, ports: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return the pairs of ports of each matching.

        Args:
            ports: The number of ports.
        """
        return round_robin(ports) if self.matchings == "rotor" else self.matchings

    def epochs(self, matchings: int) -> Epochs:
        """Return when each matching begins.

        Args:
            matchings: The number of matchings.
        """
        if self.slot is not None:
            return Epochs(tuple(self.offset + number * self.slot for number in range(matchings)), matchings * self.slot)
        return Epochs(self.at or (0,), self.period or 0)


def round_robin(ports: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return matchings in which each two of the ports are joined once, and of an odd number one is idle at a time.

    All but the last port go round a circle, the last one meets each of them: as in a tournament.

    Args:
        ports: The number of ports.
    """
    even = ports + ports % 2
    circle = even - 1
    rounds = []
    for turn in range(circle):
        pairs = [((turn + step) % circle, (turn - step) % circle) for step in range(1, even // 2)]
        pairs.append((turn, even - 1))
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < ports)))
    return tuple(rounds)
