"""Section [[faults]] of a run file."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt, model_validator

from nadi.inputs.errors import InputError
from nadi.inputs.limits import LONGEST_PS
from nadi.inputs.units import format_rate, format_time, parse_delay, parse_link_rate, parse_time_within

PLACES = ("link", "switch", "npu")
LINK_CHANGES = ("state", "rate", "added_latency", "error_rate")
NPU_CHANGES = ("slowdown", "pause_storm")
ALLOWED = {"link": LINK_CHANGES, "switch": ("state", "rate", "added_latency"), "npu": NPU_CHANGES}
"""Allowed changes per kind of place."""
MAX_SLOWDOWN = 1000.0  # maximum factor by which a fault extends computation
FOREVER = 1 << 62  # time in picoseconds after the end of any run


def _rate(value: object) -> int:
    """Return a link's rate in bits per second, above 0."""
    try:
        return parse_link_rate(value)
    except InputError as error:
        raise ValueError(f'{error}; a link that carries nothing has state = "down"') from None


def _moment(value: object) -> int:
    return parse_time_within(value, LONGEST_PS)


_show_time = PlainSerializer(lambda ps: None if ps is None else format_time(ps))
_Moment = Annotated[int, BeforeValidator(_moment), _show_time]
_OptionalMoment = Annotated[int | None, BeforeValidator(_moment), _show_time]
_OptionalDelay = Annotated[int | None, BeforeValidator(parse_delay), _show_time]
_OptionalRate = Annotated[
    int | None, BeforeValidator(_rate), PlainSerializer(lambda bps: None if bps is None else format_rate(bps))
]


class FaultSection(BaseModel):
    """One entry of [[faults]]: a time, a place and a change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: _Moment = Field(description="time at which the fault begins")
    until: _OptionalMoment = Field(None, description="time at which the fault ends; default: never")
    link: StrictInt | str | None = Field(
        None, description='link by its ends, "leaf 0 - spine 1" or "12-40", or by number; both directions'
    )
    cable: StrictInt | None = Field(
        None, description="index from 0 among several cables between the two ends; default: all"
    )
    switch: StrictInt | str | None = Field(
        None, description='switch with all its links, by name "leaf 0" or node number'
    )
    npu: StrictInt | str | None = Field(None, description='NPU, by number or as "npu 3"')
    state: Literal["down"] | None = Field(None, description="all packets are lost")
    rate: _OptionalRate = Field(None, description='rate during the fault, "50Gbps"')
    added_latency: _OptionalDelay = Field(None, description="delay in addition to the link's own")
    error_rate: float | None = Field(None, gt=0, le=1, description="probability that a packet is lost")
    slowdown: float | None = Field(None, ge=1, le=MAX_SLOWDOWN, description="factor by which computation takes longer")
    pause_storm: Literal[True] | None = Field(None, description="the NPU's NICs pause the links to them for ever (PFC)")

    @model_validator(mode="after")
    def _one_change_at_one_place(self) -> Self:
        """Refuse entries that do not make exactly one change at one place."""
        places = [key for key in PLACES if getattr(self, key) is not None]
        if len(places) != 1:
            raise ValueError(f"found {' and '.join(places) or 'none'} of link, switch and npu; expected exactly one")
        changes = [key for key in (*LINK_CHANGES, *NPU_CHANGES) if getattr(self, key) is not None]
        allowed = ALLOWED[places[0]]
        if len(changes) != 1 or changes[0] not in allowed:
            found = " and ".join(changes) or "nothing"
            raise ValueError(f"found {found} for a {places[0]}; expected exactly one of {', '.join(allowed)}")
        if self.cable is not None and not isinstance(self.link, str):
            raise ValueError('cable is set without two ends; expected link = "a-b" beside it')
        if self.until is not None and self.pause_storm:
            raise ValueError(f"found until {format_time(self.until)}; expected none, as a pause storm does not end")
        if self.until is not None and self.until <= self.at:
            raise ValueError(
                f"until {format_time(self.until)} is not after at {format_time(self.at)}; expected a later time"
            )
        return self

    @property
    def what(self) -> str:
        """Return the key of the change."""
        return next(key for key in (*LINK_CHANGES, *NPU_CHANGES) if getattr(self, key) is not None)

    @property
    def text(self) -> str:
        """Return place, change and time of the fault as a phrase: "leaf 0 down from 1ms to 2ms"."""
        key = next(key for key in PLACES if getattr(self, key) is not None)
        place, value = getattr(self, key), self.model_dump()[self.what]
        change = value if self.state else self.what.replace("_", " ") + ("" if value is True else f" {value}")
        until = "" if self.until is None else f" to {format_time(self.until)}"
        name = place if isinstance(place, str) else f"{key} {place}"
        return f"{name} {change} from {format_time(self.at)}{until}"

    @property
    def until_ps(self) -> int:
        """Return the end of the fault in picoseconds, or FOREVER."""
        return FOREVER if self.until is None else self.until
