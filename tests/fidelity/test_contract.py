"""Each model of the network declares what it supports in its own file (tests/rules/places.py finds others)."""

import pytest

from nadi.configuration.sections import NetworkSection, given_default
from nadi.pdes import fidelity
from nadi.pdes.core.inputs import settings_of

NAMES = tuple(fidelity.networks())


def test_declared_keys_are_keys_of_the_section():
    """Every key of [network] belongs to some model."""
    keys = set().union(*(model.keys for model in fidelity.networks().values()))
    assert keys == set(NetworkSection.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_capabilities_agree(name):
    model = fidelity.networks()[name]
    assert model.title
    assert model.use
    moves = [hooks.act for hooks in model.hooks if hooks.act]
    assert not (model.has_packets and moves), "packets and whole messages"
    assert moves or model.has_packets or not model.has_links
    assert model.has_packets or not model.several_workers
    assert model.has_links or not moves, "whole messages cross links"
    assert len(model.hooks) == 1 or all(hooks.chosen_by for hooks in model.hooks)
    assert all(hooks.contends or hooks.overload or not model.has_links for hooks in model.hooks)
    assert model.conditions.keys() <= model.keys


@pytest.mark.parametrize("name", NAMES)
def test_keys_of_one_model_come_from_its_file(name):
    """They have defaults with this model, and are neither keys nor results of the others."""
    model = fidelity.networks()[name]
    own = {each.key: given_default(each.key) for each in settings_of(model.own)}
    assert own.keys() <= model.keys - fidelity.PACKET.keys
    for other in NAMES:
        section = NetworkSection(fidelity=other)
        values = {key: section.model_dump(mode="json").get(key) for key in own}
        assert values == (own if other == name else dict.fromkeys(own))
    assert [name for name in NAMES if settings_of(fidelity.networks()[name].own)] == ["flow", "analytical"]


@pytest.mark.parametrize(
    ("model", "key", "value", "expected"),
    [
        ("flow", "collectives", "ring", "'steps', 'coupled' or 'auto'"),
        ("analytical", "resolution", "0s", "more than 0"),
        ("analytical", "congestion_aware", 2, "valid boolean"),
    ],
)
def test_their_values_are_validated(model, key, value, expected):
    with pytest.raises(ValueError, match=expected):
        NetworkSection.model_validate({"fidelity": model, key: value})
