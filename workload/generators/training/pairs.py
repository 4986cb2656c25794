"""Order of the parts of a forward and a backward pass that run together, so that each hides the other's exchange.

A GPU has a stream for computations and one for the exchange of tokens between experts. The order of both passes' layers
is that of Megatron-Core (core/models/common/model_chunk_schedule_plan.py, TransformerLayerSchedulePlan.run, with
delay_wgrad_compute, as NVIDIA's recipes have it) and of DualPipe (DeepSeek-V3, arXiv 2412.19437, figure 4); F and B are
the passes:

| exchange | combine B | dispatch F, dispatch B | combine F |
| --- | --- | --- | --- |
| computation | attention F | experts B, their weights' gradients, experts F | attention B, its weights' gradients |

Shared experts, the router and the norm before it belong to attention. What sums the results that a combine brings, and
adds the residual, follows it on the stream of the exchange. Layers that the other pass lacks run alone. After the last
layers come, in this order: the send of the forward pass, the send of the backward pass, the gradients of the weights of
its last attention, and the output layer. The output layer's backward pass comes first of all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nadi.workload.generators.training.blocks import EXCHANGES, BlockLink
from nadi.workload.generators.training.item_lists import Items, only
from nadi.workload.generators.training.units import HEAD, ModelUnit

RECEIVE = {"forward": -2, "backward": -1}
"""Place of the message with which a pass begins."""
_LAYER = 10  # Distance of the places of consecutive layers
_COMBINE_B, _OLDER_WEIGHTS, _ATTENTION_F, _EXPERTS_B, _DISPATCH_F, _DISPATCH_B = range(6)
_WEIGHTS_B, _EXPERTS_F, _ATTENTION_B, _COMBINE_F = range(6, _LAYER)
"""Places in a layer; the gradients of attention's weights come in the next layer, beside its combine."""
TAIL = 1 << 30  # Place of the first part after all layers
SEND = {"forward": TAIL, "backward": TAIL + 1}
"""Place of the message with which a pass ends."""
_LAST_WEIGHTS, _OUTPUT_F, _EMBEDDING_B = range(TAIL + 2, TAIL + 5)


class PassPart(NamedTuple):
    """Consecutive items of a unit's pass."""

    place: int  # Position among the parts of both passes
    link: BlockLink  # What the items wait for, and what waits for them
    items: Items  # Items in order
    unit: int  # Index of the unit in the chunk
    begins: bool = True  # Whether they are the first ones of the unit's pass
    ends: bool = True  # Whether they are the last ones of the unit's pass
    is_divided: bool = False  # Whether each item's computation is a row, between which other work may run


def forward_parts(units: Sequence[ModelUnit], *, moves_output: bool) -> list[PassPart]:
    """Return the parts of a chunk's forward pass in order.

    Args:
        units: The units of the chunk in the order of the forward pass.
        moves_output: Whether output layers come after all layers; else they keep their place.
    """
    parts: list[PassPart] = []
    for number, (unit, layer) in enumerate(zip(units, _layers(units), strict=True)):
        items, base = unit.forward, layer * _LAYER
        if unit.name == "embedding":
            parts.append(PassPart(RECEIVE["forward"], BlockLink.GATE, items, number))
        elif unit.name == HEAD and moves_output:
            parts.append(PassPart(_OUTPUT_F, BlockLink.BOTH, items, number))
        elif unit.name != "mlp":
            parts.append(PassPart(base + _ATTENTION_F, BlockLink.BOTH, items, number))
        elif not (exchanges := _exchanges(items)):
            parts.append(PassPart(base + _EXPERTS_F, BlockLink.BOTH, items, number))
        else:
            dispatched = 1 + max(at for at in exchanges if items[at].name.startswith("dispatch/"))
            combined = 1 + exchanges[-1]
            parts += _of_unit(
                PassPart(base + _ATTENTION_F, BlockLink.BOTH, items[: exchanges[0]], number),
                PassPart(base + _DISPATCH_F, BlockLink.BESIDE, items[exchanges[0] : dispatched], number),
                PassPart(base + _EXPERTS_F, BlockLink.BOTH, items[dispatched:combined], number),
                PassPart(base + _COMBINE_F, BlockLink.BESIDE, items[combined:], number),
            )
    return sorted(parts, key=lambda part: part.place)


def backward_parts(units: Sequence[ModelUnit], *, moves_output: bool) -> list[PassPart]:
    """Return the parts of a chunk's backward pass in order.

    Args:
        units: The units of the chunk in the order of the forward pass.
        moves_output: Whether the output layers' passes come before all layers; else they keep their place.
    """
    parts: list[PassPart] = []
    layers = _layers(units)
    last = max((layer for layer, unit in zip(layers, units, strict=True) if unit.name == "attention"), default=0)
    for number in reversed(range(len(units))):
        unit, base = units[number], (last - layers[number]) * _LAYER
        is_last = layers[number] == 0
        older = _LAST_WEIGHTS if is_last else base + _LAYER + _OLDER_WEIGHTS
        data, weights = only(unit.backward, weights=False), only(unit.backward, weights=True)
        if unit.name == "embedding":
            parts.append(PassPart(_EMBEDDING_B, BlockLink.BOTH, unit.backward, number))
        elif unit.name == HEAD:
            place = RECEIVE["backward"] if moves_output else base + _LAYER + _COMBINE_B
            parts.append(PassPart(place, BlockLink.GATE if moves_output else BlockLink.BOTH, unit.backward, number))
        elif unit.name != "mlp":
            parts += _of_unit(
                PassPart(base + _ATTENTION_B, BlockLink.BOTH, data, number, is_divided=is_last),
                PassPart(older, BlockLink.GPU, weights, number),
            )
        elif not (exchanges := _exchanges(data)):
            parts += _of_unit(
                PassPart(base + _EXPERTS_B, BlockLink.BOTH, data, number),
                PassPart(base + _WEIGHTS_B, BlockLink.GPU, weights, number),
            )
        else:
            combines = [at for at in exchanges if data[at].name.startswith("combine/")]
            begin = 1 + max(at for at in exchanges if at < combines[0])
            own = [item for item in weights if item.name.startswith("experts")]
            parts += _of_unit(
                PassPart(base + _COMBINE_B, BlockLink.BOTH, data[:begin], number),
                PassPart(base + _EXPERTS_B, BlockLink.BOTH, data[begin : combines[0]], number),
                PassPart(base + _DISPATCH_B, BlockLink.BESIDE, data[combines[0] : combines[-1] + 1], number),
                PassPart(base + _WEIGHTS_B, BlockLink.GPU, own, number),
                PassPart(base + _ATTENTION_B, BlockLink.BOTH, data[combines[-1] + 1 :], number, is_divided=is_last),
                PassPart(older, BlockLink.GPU, [item for item in weights if item not in own], number),
            )
    return sorted(parts, key=lambda part: part.place)


def _of_unit(*parts: PassPart) -> list[PassPart]:
    """Return the parts of a unit that have items, with marks of the first and the last."""
    found = [part for part in parts if part.items]
    ends = len(found) - 1
    return [part._replace(begins=number == 0, ends=number == ends) for number, part in enumerate(found)]


def _layers(units: Sequence[ModelUnit]) -> list[int]:
    """Return the number of each unit's layer in the chunk; of a unit outside layers, that of the next layer."""
    numbers, layer, before = [], -1, ""
    for unit in units:
        if unit.layer and unit.layer != before and unit.name != HEAD:
            layer, before = layer + 1, unit.layer
        numbers.append(layer + (not unit.layer or unit.name == HEAD))
    return numbers


def _exchanges(items: Items) -> list[int]:
    """Return the indices of items that exchange tokens, without those that a backward pass repeats."""
    return [
        number
        for number, item in enumerate(items)
        if getattr(item, "family", "") in EXCHANGES and not item.name.startswith("recompute/")
    ]
