"""`nadi collective` on two ranks: one table, the same as alone."""

import json

from tests import needs
from tests.nonempty import nonempty

ARGUMENTS = ("all-reduce", "-t", "ring:npus=8,rate=100Gbps,delay=1us", "--sizes", "8:4KiB:x32", "--algorithm", "all")


@needs.ranks
def test_two_ranks_have_one_table(nadi, tmp_path):
    done = {ranks: nadi(ranks, "collective", *ARGUMENTS, "--json", "-o", tmp_path / str(ranks)) for ranks in (None, 2)}
    for outcome in nonempty(done.values()):
        assert outcome.returncode == 0, outcome.stderr
    assert json.loads(done[2].stdout) == json.loads(done[None].stdout)
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["collective.html", "collective.parquet"]


@needs.ranks
def test_two_ranks_refuse_with_one_line(nadi, tmp_path):
    done = nadi(2, "collective", *ARGUMENTS[:-1], "rnig", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("nadi: error")]
    assert "rnig" in line
    assert not (tmp_path / "out").exists()
