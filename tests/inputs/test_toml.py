"""TOML is parsed as `tomllib` does, within bounds that a small file cannot make slow."""

import time
import tomllib
from pathlib import Path

import pytest

from nadi.inputs import parse_toml
from nadi.inputs.files import MAX_KEY_PARTS, MAX_LEVELS

ROOT = Path(__file__).parents[2]
LONG = ".".join(["a"] * 200_000)


@pytest.mark.parametrize(
    "text",
    [
        LONG + " = 1\n",
        f"[{LONG}]\n",
        f"[[ {LONG} ]]\n",
        f"x = {{ {LONG} = 1 }}\n",
        '"a".' * 100_000 + "a = 1\n",
        "'a' . " * 100_000 + "a = 1\n",
        '"a,=#".' * 50_000 + "a = 1\n",
        '""."\\"".' * 50_000 + "a = 1\n",
        "s = '''\n#'''\n" + LONG + " = 1\n",
        's = """\\"""" # "\n' + LONG + " = 1\n",
    ],
)
def test_a_key_of_many_parts_is_refused_at_once(text):
    began = time.process_time()
    with pytest.raises(ValueError, match=f"a dotted key of more than {MAX_KEY_PARTS} parts"):
        parse_toml(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * MAX_KEY_PARTS) + " = 1\n",
        f"s = '{LONG}'\n",
        f's = "{LONG}"\n',
        f's = """\n{LONG} \\"" #\n"""\n',
        f"s = '''\n{LONG}'' '''\n",
        f"# {LONG}\na = 1.5 # it's {LONG}\n",
        f"a = [{', '.join(['1.5'] * 10_000)}]\n",
    ],
)
def test_dots_elsewhere_are_no_keys(text):
    assert parse_toml(text) == tomllib.loads(text)


def test_levels_are_bounded():
    key = ".".join(["a"] * (MAX_KEY_PARTS - 1))
    with pytest.raises(ValueError, match=f"tables within more than {MAX_LEVELS} others"):
        parse_toml("x = " + f"{{ {key} = " * 10 + "1" + " }" * 10 + "\n")
    assert parse_toml("x = { a.b = [ { c = 1 } ] }\n") == {"x": {"a": {"b": [{"c": 1}]}}}
