"""Errors of all folders have one base class, and say place, value and what was expected in one line."""

import ast

import pytest

from nadi import et, topologies
from nadi.inputs.errors import InputError, NadiError
from tests.rules.sources import product

OWN_CODES = ("inputs/errors.py", "compiling/", "pdes/", "nadi/launching/")
"""Where classes set exit codes: `compiling` and `pdes` import no error, and launching passes on those of others."""


def test_an_error_says_place_value_and_what_was_expected():
    error = topologies.TopologyError.at("net.toml: links.3", "rate 0", "more than 0")
    assert str(error) == "net.toml: links.3: rate 0; expected more than 0"
    assert (type(error), error.exit_code) == (topologies.TopologyError, 2)


@pytest.mark.parametrize("kind", [et.TraceError, topologies.TopologyError])
def test_wrong_input_is_a_value_error(kind):
    assert issubclass(kind, InputError)
    assert issubclass(InputError, ValueError)
    assert NadiError.exit_code == 1


def test_exit_codes_are_set_by_the_base_classes():
    own = [
        f"{source.path}:{node.lineno}"
        for source in product()
        if not source.path.startswith(OWN_CODES)
        for parent in source.nodes
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "exit_code"
    ]
    assert own == []
