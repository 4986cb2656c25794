"""The page of validation is what was recorded, and what is quickly run again is as recorded."""

import json
import re
import runpy
import sys

import pytest

from nadi.launching.installation import COMMIT, source_hash
from nadi.validation import errors_by_class
from tests.docs.pages import DOCS, ROOT
from tests.nonempty import nonempty

sys.path.insert(0, str(ROOT / "scripts"))  # for the modules beside the script
import validation_groups
import validation_page

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "validation.py"))
RECORDED = json.loads((ROOT / "scripts" / "validation.json").read_text())
GROUPS = {group.name: group for group in SCRIPT["GROUPS"]}


def test_what_is_written_is_what_was_recorded():
    """Also nadi/validation/errors.json, from which answers take the errors of their class."""
    assert RECORDED.keys() == GROUPS.keys()
    for path, text in nonempty(SCRIPT["written_files"](RECORDED, ROOT).items()):
        assert path.read_text() == text, f"{path}: python scripts/validation.py zero writes it again"
    assert {path.stem for path in (DOCS / "images" / "validation").iterdir()} == GROUPS.keys()


def test_every_row_has_a_class_and_a_status():
    cases = validation_groups.cases_by_class(RECORDED)
    assert sum(map(len, cases.values())) == sum(len(group.rows) for group in GROUPS.values())
    for name, of_class in nonempty(cases.items()):
        errors = errors_by_class()[name]
        assert sum(errors.statuses.values()) == errors.cases == len(of_class)
        assert errors.worst == pytest.approx(max(abs(case.error) for case in of_class), abs=1e-4)


def test_the_readme_has_the_errors_of_all_classes():
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"\| \[([^]]+)\]\(docs/explanation/validation.md#[\w-]+\) \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \|", readme
    )
    found = {name: (int(cases.replace(",", "")), float(mean), float(worst)) for name, cases, mean, worst in rows}
    assert found.keys() == errors_by_class().keys()
    for name, errors in nonempty(errors_by_class().items()):
        assert found[name] == (
            errors.cases,
            *(pytest.approx(100 * each, abs=0.051) for each in (errors.mean, errors.worst)),
        )


FITTED = re.compile(r"\b(?:fitted|[Ff]its? them)(?: only)? to\b")


def test_what_is_fitted_names_the_group_of_its_rows():
    """Comments, docstrings and sources of GPUs and software, which keep these words for constants."""
    files = [path for kind in ("py", "toml") for path in (ROOT / "workload").rglob(f"*.{kind}")]
    fitted = {path: path.read_text() for path in files if FITTED.search(path.read_text())}
    without = [path for path, text in nonempty(fitted.items()) if not any(name in text for name in GROUPS)]
    assert without == [], "expected the name of a group of scripts/published_figures.toml"


def test_a_row_without_a_status_is_refused():
    group = GROUPS["zero"]
    with pytest.raises(SystemExit, match="zero, stage 0: status None"):
        validation_groups.checked(group._replace(rows=[{"what": "stage 0", "published": 120}]))


def test_a_point_stands_at_its_error():
    """10 to 1,000 s, within 10 %: zero is half-way up, and so is a point without error."""
    picture = validation_page.error_plot([10.0, 100.0, 1000.0], [0.0, -0.1, 0.05], "s")
    x, y = zip(*((float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)), strict=True)
    assert x[1] - x[0] == pytest.approx(x[2] - x[1])
    assert y[0] - y[2] == pytest.approx((y[1] - y[0]) / 2, abs=0.1)
    assert [label for label in ("+10%", "-5%", "1,000") if f">{label}<" not in picture] == []


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if group.takes == "moments"])
def test_quick_groups_are_as_recorded(name):
    assert SCRIPT["run"](GROUPS[name]) == pytest.approx(RECORDED[name]["values"], rel=1e-9)


def test_errors_are_relative_and_signed():
    zero = GROUPS["zero"]
    assert validation_groups.errors_of(zero, [60, 31.4, 33.2, 1.9]) == pytest.approx([-0.5, 0, 1, 0])


def test_all_groups_are_run_once_by_one_code(tmp_path):
    """As after an interruption: the first group was told by this code, the second by another, the third never."""
    first, second, third = list(GROUPS.values())[:3]
    record = tmp_path / "validation.json"
    recorded = {one.name: {"code": code, "date": "", "values": []} for one, code in ((first, "a"), (second, "b"))}
    SCRIPT["write"](recorded, record, tmp_path)
    assert json.loads(record.read_text()) == recorded
    assert list(tmp_path.iterdir()) == [record]  # no page, as some are missing
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
