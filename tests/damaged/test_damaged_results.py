"""Some damaged inputs; `python -m tests.damaged.fuzz_results` tries ten thousand."""

import pytest

from nadi.cli.main import main
from tests.conftest import points_in_this_process
from tests.damaged.mutations import complaint, example, make_bases
from tests.samples import some

EXAMPLES = some(60, 250)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    with points_in_this_process():
        make_bases(folder)
    return folder


def test_damaged_inputs_are_read_or_refused_in_one_line(bases, tmp_path):
    complaints, kinds = [], set()
    for seed in range(EXAMPLES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        made = example(seed, bases, folder)
        kinds.add(made.kind)
        complaints.append(complaint(made, folder))
    assert not [text for text in complaints if text]
    assert kinds == {"results", "plan", "kineto", "msccl", "astra-sim", "simai", "htsim", "mscclpp", "fabric"}


def test_a_failure_is_one_line_for_each_entry_of_its_list(monkeypatch, capsys, tmp_path):
    """Names of files and nodes may hold line feeds."""

    class FailedError(RuntimeError):
        exit_code = 1

    def fail(*_):
        raise FailedError("a\nb\n\nc waits:\n  npu 0\n  npu 1\nx")

    monkeypatch.setattr("nadi.insight.runs.Run.__init__", fail)
    assert main(["energy", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("nadi: error: a b c waits:\n  npu 0\n  npu 1 x\n")
