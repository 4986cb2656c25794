"""Plug-ins in files outside of the tree on two ranks: the digest of Nadi's own on one."""

import json

from tests import needs
from tests.cli.test_plug_ins import OWN, copied, written


@needs.ranks
def test_two_ranks_take_the_same_files(nadi, tmp_path):
    copies = {key: copied(tmp_path, kind, name) for key, (kind, name) in OWN.items()}
    digests = set()
    for ranks, path in ((None, written(tmp_path, "own")), (2, written(tmp_path, "copies", **copies))):
        done = nadi(ranks, "run", path, "--out", path.with_suffix(""), "-q")
        assert done.returncode == 0, done.stderr
        digests.add(json.loads((path.with_suffix("") / "summary.json").read_text())["digest"])
    assert len(digests) == 1
    wrong = written(tmp_path, "wrong", control="copies/none.py")
    refused = nadi(2, "run", wrong, "-q")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "none.py: No such file or directory; expected a congestion control with " in refused.stderr
