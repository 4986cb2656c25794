"""Collectives that users bring, from the command line and from a run file."""

from nadi import et
from nadi.configuration.run_file import load_config
from tests.workload import msccl_files


def test_paths_in_a_run_file_begin_at_its_folder(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n[system.collectives]\nall-to-all = "direct"\n'
        'all-reduce = "custom:file=own/ring, size=1MiB"\nall-gather = "custom:file=/abs/a.xml"\n',
        encoding="utf-8",
    )
    assert load_config(file).system.collectives == {
        "all-to-all": "direct",
        "all-reduce": f"custom:file={tmp_path}/own/ring, size=1MiB",
        "all-gather": "custom:file=/abs/a.xml",
    }


def test_a_ring_that_is_none_is_refused(nadi, tmp_path):
    file = tmp_path / "ring.xml"
    file.write_text(msccl_files.ring(4).replace('type="rrc"', 'type="r"', 1), encoding="utf-8")
    outcome = nadi("collective", "all-reduce", "-t", "ring:npus=4", "--algorithm", f"custom:file={file}", "-q")
    assert outcome.code == 2
    assert outcome.err.startswith(f"nadi: error: {file}: no all-reduce: member ")
    assert outcome.err.count("\n") == 1


def test_a_run_uses_the_file_beside_it(nadi, write_run, step, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "ring.xml").write_text(msccl_files.fused_ring(4), encoding="utf-8")
    text = '[system.collectives]\nall-reduce = "{}"\n'
    took = []
    for spec in ("custom:file=own/ring.xml", "ring"):
        outcome = nadi("run", write_run([step] * 4, text.format(spec)), "--json", "--quiet")
        assert outcome.code == 0
        took.append(outcome.document["finish_time_ps"])
    assert took[0] == took[1]


def test_traces_of_a_collective_run_beside_a_built_in(nadi, tmp_path):
    for me in range(4):
        nodes, last = [], []
        for k in range(6):
            nodes.append(et.send_node(2 * k, "s", me, (me + 1) % 4, 25_000, deps=last))
            nodes.append(et.recv_node(2 * k + 1, "r", (me - 1) % 4, me, 25_000, deps=[2 * k]))
            last = [2 * k + 1]
        et.write_trace(tmp_path / f"c.{me}.et", et.metadata(), nodes)
    algorithms = f"ring,custom:file={tmp_path}/c,custom:file={tmp_path}/c,size=50kB"
    outcome = nadi(
        "collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "100000", "--algorithm", algorithms, "--json", "-q"
    )
    rows = outcome.document["rows"]
    assert rows[0]["time_ps"] == rows[1]["time_ps"] < rows[2]["time_ps"]
    assert rows[0]["closed_form_ps"] > 0
    assert rows[1]["closed_form_ps"] < rows[2]["closed_form_ps"]
