"""Numbers have bounds, which fit what the engine holds; whatever is beyond is one line and exit code 2."""

import typing
from types import UnionType

import pytest
from pydantic import BaseModel

from nadi.configuration import bounds
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs import limits as quantities
from nadi.inputs.limits import MAX_EQUAL_MESSAGES
from nadi.pdes.construction.fabric import MAX_RTO_PS
from nadi.pdes.core import packet
from nadi.pdes.core import state as engine
from nadi.pdes.core.packet import BYTES_BITS
from nadi.pdes.nic.control import ECHO_MASK
from nadi.pdes.nic.port import MAX_BACKOFF

HUGE = ("9" * 30, "1" + "0" * 300, str(2**63), str(2**62 + 1), '"99999999PB"', '"9e9s"', '"1e30ps"', '"9e90GB/s"')
TINY = ("-1", '"-1ns"', '"1bps"', '"0.1ps"', "nan", "-inf")


def kinds_of(annotation):
    """The types of a key, without what validates them."""
    if typing.get_origin(annotation) in {typing.Annotated, typing.Union, UnionType}:
        return [kind for argument in typing.get_args(annotation) for kind in kinds_of(argument)]
    return [annotation] if isinstance(annotation, type) else []


def numbers():
    """Every key that takes numbers, sizes, rates or times."""
    for section, field in RunConfig.model_fields.items():
        model = field.annotation
        for key, known in (
            model.model_fields.items() if isinstance(model, type) and issubclass(model, BaseModel) else ()
        ):
            if {int, float} & set(kinds_of(known.annotation)):
                yield section, key


KEYS = sorted(numbers())
NEEDS = {
    "ecn": "ecn = true\n",
    "pfc": "pfc = true\n",
    "endpoint_delay": 'fidelity = "analytical"\n',
    "reduction_bandwidth": 'fidelity = "analytical"\n',
    "resolution": 'fidelity = "analytical"\n',
    "reorder": 'load_balancing = "spray"\n',
}


def test_all_numeric_keys_are_found():
    assert len(KEYS) > 30
    assert {("network", "ack"), ("network", "buffer"), ("memory", "bandwidth"), ("engine", "seed")} <= set(KEYS)


def value_of(path, section, key):
    """What a key holds, or None and what is wrong."""
    try:
        return getattr(getattr(load_config(path), section), key), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_what_a_key_holds_fits_the_engine(tmp_path, section, key):
    """Whatever is written is refused in one line, or becomes a number that is far from overflowing."""
    needs = next((text for word, text in NEEDS.items() if key.startswith(word)), "")
    for value in (*HUGE, *TINY, "0", "1", "true", '"x"'):
        path = tmp_path / "run.toml"
        fabric = 'cluster = "selene"' if section == "topology" else f'spec = "ring:npus=4"\n[{section}]'
        path.write_text(
            f'[workload]\ntraces = "x"\n[topology]\n{fabric}\n'
            f"{needs if section == 'network' and not needs.startswith(key) else ''}{key} = {value}\n"
        )
        held, text = value_of(path, section, key)
        assert "\n" not in text
        assert len(text) < 400
        assert held is not None or (text.startswith(f"{path}: [{section}]") and key in text)
        assert held is None or abs(held) <= (10**24 if key == "peak_flops" else engine.INF)


def test_bounds_are_what_the_engine_holds():
    assert bounds.MAX_WIRE_BYTES == packet.MAX_WIRE_BYTES
    assert packet.HALF_PSN // 2 == bounds.MAX_WINDOW_PACKETS
    assert bounds.MAX_COLLECTIVES_IN_FLIGHT == MAX_EQUAL_MESSAGES
    assert (bounds.MAX_TELEMETRY_BUFFER_BYTES + 1).bit_length() - 1 == 64 - engine.TELEMETRY_QUEUE_SHIFT - 1
    assert quantities.MAX_BYTES == (1 << BYTES_BITS) - 1
    assert engine.MAX_NODES - 1 == quantities.MAX_NODES
    assert 2 * quantities.MAX_CABLES < engine.MAX_LINKS
    assert engine.LONGEST_RUN_PS + quantities.LONGEST_PS < engine.INF
    assert quantities.LONGEST_TIMEOUT_PS == MAX_RTO_PS
    assert MAX_RTO_PS << MAX_BACKOFF <= quantities.LONGEST_PS
    slowest_packet_ps = packet.MAX_WIRE_BYTES * 8e12 / quantities.LINK_RATE_BPS.minimum
    assert slowest_packet_ps < quantities.LONGEST_TIMEOUT_PS
    assert quantities.LONGEST_DELAY_PS > ECHO_MASK  # so controls that go by it check the round trip
