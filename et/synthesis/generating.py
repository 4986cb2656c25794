"""From trace sets to a model, and from the model to new traces that are valid and new."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from et.synthesis.conditions import Wanted, wanted_of
from et.synthesis.counts import Counts
from et.synthesis.layout import Groups, TraceSetFields
from et.synthesis.novelty import Originals
from et.synthesis.sampling import Drawn, StreamModel, events_of, received
from et.synthesis.search import streams_found
from et.synthesis.streams import Stream, stream_of
from et.synthesis.tokens import Words, encode, words_of
from et.synthesis.writing import families_of, traces_of
from et.table import TraceTable

ORDER = 3
"""Of the n-gram, in tokens: an event."""
EPOCHS = 32
_VALUES = 4
_LEAST_SHARE = 0.25

ModelKind = Literal["network", "counts"]


class SynthesisError(ValueError):
    """Nothing was generated that is valid and new."""

    exit_code = 1


class Learned(NamedTuple):
    """A model and what it has learned from.

    Attributes:
        model: what new streams are drawn from.
        words: tokens of the streams.
        wanted: what each stream was.
        originals: what may not come out.
    """

    model: StreamModel
    words: Words
    wanted: list[Wanted]
    originals: Originals


@dataclasses.dataclass(frozen=True, eq=False)
class Generated:
    """A new trace set, by the fields of one.

    Attributes:
        traces: one for each role.
        trace_of_npu: int32[npus].
        example_npu: int32[roles], the first NPU of each role.
        families: groups by name.
        is_whole: the model has ended the stream; else it was cut where it was a tenth too long.
    """

    traces: list[TraceTable]
    trace_of_npu: NDArray[np.int32]
    example_npu: NDArray[np.int32]
    families: Mapping[str, Groups]
    is_whole: bool


def learn(
    sets: Sequence[TraceSetFields],
    kind: ModelKind,
    seed: int,
    *,
    epochs: int = EPOCHS,
    told: Callable[[int, float], None] = lambda _, __: None,
) -> Learned:
    """Learn from trace sets whose compute nodes have durations.

    Args:
        sets: at least one.
        kind: "network" (needs PyTorch), or "counts", the n-gram.
        seed: of all that is drawn.
        epochs: how often the network sees each set.
        told: called with the epoch and the mean bits of an event in it.

    Raises:
        TraceError: a set is none that streams are made of (et.synthesis.streams.stream_of).
    """
    streams = [stream_of(each) for each in sets]
    words, wanted = words_of(streams), [wanted_of(stream) for stream in streams]
    rows = [encode(words, stream) for stream in streams]
    originals = Originals(table for each in sets for table in each.traces)
    return Learned(_trained(kind, words, rows, wanted, seed, epochs, told), words, wanted, originals)


def _trained(
    kind: ModelKind,
    words: Words,
    rows: Sequence[NDArray[np.int32]],
    wanted: Sequence[Wanted],
    seed: int,
    epochs: int,
    told: Callable[[int, float], None],
) -> StreamModel:
    if kind == "counts":
        counts = Counts(ORDER, words.sizes)
        counts.learn(rows)
        return counts
    from et.synthesis.recurrent import Recurrent  # noqa: PLC0415 - PyTorch is an extra

    network = Recurrent(words, seed)
    network.learn(rows, wanted, epochs, told)
    return network


def generate(learned: Learned, wanted: Wanted, seed: int) -> Generated:
    """A new trace set.

    Its events are those of the likeliest stream that is found (et.synthesis.search), one that ends by itself if any
    does.
    Sizes and times that would repeat eight of an original in a row are drawn again.

    Raises:
        SynthesisError: no stream has all roles, or all repeat originals.
        TraceError: the layout has no event that was learned.
    """
    generator = np.random.default_rng(seed)
    streams = streams_found(learned.model, learned.words, wanted)
    kept = next((each for each in streams if _has_all_roles(each.events, wanted)), None)
    if kept is None:
        raise SynthesisError(f"synthesis: no stream with events of all {wanted.layout.roles} stages, expected one")
    found = ""
    for _ in range(_VALUES):
        events = received(wanted.layout, events_of(kept.events, learned.words, wanted, generator))
        tables = traces_of(wanted.layout, events)
        found = learned.originals.found_in(tables)
        if not found:
            return _as_set(wanted, tables, is_whole=kept.is_whole)
    raise SynthesisError(f"synthesis: {found} is an original's, expected nothing of the originals")


def _has_all_roles(drawn: Sequence[Drawn], wanted: Wanted) -> bool:
    many = np.bincount([each.role for each in drawn], minlength=wanted.layout.roles)
    return bool(np.all(many >= _LEAST_SHARE * wanted.events / wanted.layout.roles))


def _as_set(wanted: Wanted, tables: list[TraceTable], *, is_whole: bool) -> Generated:
    layout = wanted.layout
    roles = np.arange(layout.roles, dtype=np.int32)
    used = {name for table in tables for name in table.group_names}
    return Generated(
        tables,
        np.repeat(roles, layout.width),
        (roles * layout.width).astype(np.int32),
        {name: groups for name, groups in families_of(layout).items() if name in used},
        is_whole,
    )


def bits_per_event(learned: Learned, held_out: Sequence[Stream]) -> tuple[float, float, float]:
    """Bits that a model needs for an event of streams that it has not learned from: what it is, its value, its parents.

    Ends count with the events; conditions that the network is told are not counted.
    """
    total = np.zeros(3)
    for stream in held_out:
        rows = encode(learned.words, stream)
        total += learned.model.bits(rows, wanted_of(stream))
    what, value, parents = (total / sum(len(stream.events) for stream in held_out)).tolist()
    return what, value, parents
