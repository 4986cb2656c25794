"""The page of validation is what was recorded, and what is quickly run again is as recorded."""

import json
import re
import runpy
import sys

import pytest

from nadi.launching.installation import COMMIT, source_hash
from tests.docs.pages import DOCS, ROOT
from tests.nonempty import nonempty

sys.path.insert(0, str(ROOT / "scripts"))  # for the modules beside the script
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "validation.py"))
RECORDED = json.loads((ROOT / "scripts" / "validation.json").read_text())
GROUPS = {group.name: group for group in SCRIPT["GROUPS"]}


def test_the_page_is_what_was_recorded():
    assert RECORDED.keys() == GROUPS.keys()
    assert (DOCS / "explanation" / "validation.md").read_text() == SCRIPT["page"](RECORDED)
    pictures = {path.stem: path.read_text() for path in (DOCS / "images" / "validation").iterdir()}
    assert pictures == SCRIPT["plots"](RECORDED)


def test_a_point_stands_at_its_error():
    """10 to 1,000 s, within 10 %: zero is half-way up, and so is a point without error."""
    picture = SCRIPT["error_plot"]([10.0, 100.0, 1000.0], [0.0, -0.1, 0.05], "s")
    x, y = zip(*((float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)), strict=True)
    assert x[1] - x[0] == pytest.approx(x[2] - x[1])
    assert y[0] - y[2] == pytest.approx((y[1] - y[0]) / 2, abs=0.1)
    assert [label for label in ("+10%", "-5%", "1,000") if f">{label}<" not in picture] == []


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if group.takes == "moments"])
def test_quick_groups_are_as_recorded(name):
    assert GROUPS[name].run() == pytest.approx(RECORDED[name]["values"], rel=1e-9)


def test_errors_are_relative_and_signed():
    zero = GROUPS["zero"]
    assert SCRIPT["errors_of"](zero, [60, 31.4, 33.2, 1.9]) == pytest.approx([-0.5, 0, 1, 0])


def test_the_readme_has_the_errors_of_all_groups():
    page, readme = (DOCS / "explanation" / "validation.md").read_text(), (ROOT / "README.md").read_text()
    row = r"\(docs/explanation/validation.md#([\w-]+)\) \| (\d+) figures?: mean ([\d.]+)%, worst ([\d.]+)% \|"
    rows = re.findall(row, readme)
    assert [name for name, *_ in rows] == list(GROUPS)
    for name, count, mean, worst in nonempty(rows):
        assert f"(#{name}) | {count} | {mean}% | {worst}% |" in page, name


def test_all_groups_are_run_once_by_one_code(tmp_path):
    """As after an interruption: the first group was told by this code, the second by another, the third never."""
    first, second, third = list(GROUPS.values())[:3]
    record, made = tmp_path / "validation.json", tmp_path / "validation.md"
    recorded = {one.name: {"code": code, "date": "", "values": []} for one, code in ((first, "a"), (second, "b"))}
    SCRIPT["write"](recorded, record, made)
    assert json.loads(record.read_text()) == recorded
    assert not made.exists()  # some are missing
    left = [one for one in (first, second, third) if SCRIPT["wanted"](one, recorded, [], "a", everything=True)]
    assert left == [second, third]
    assert SCRIPT["wanted"](first, recorded, [first.name], "a", everything=False)


def test_a_changed_file_of_the_code_is_another_code(tmp_path):
    package, room = tmp_path / "nadi", tmp_path / "pdes"
    for folder in (package, room):
        (folder / "__pycache__").mkdir(parents=True)
    (package / "pdes").symlink_to(room)
    before = source_hash(package)
    for made in (package / "__pycache__" / "some.pyc", room / "__pycache__" / "some.pyc", package / COMMIT):
        made.touch()
    assert source_hash(package) == before
    (room / "some.toml").write_text("a = 1")
    assert source_hash(package) != before
