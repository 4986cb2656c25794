"""`nadi collective all-to-all-v`, and all-to-alls with split sizes in `nadi run`."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.studies.collectives.options import parse_skew
from tests.nonempty import nonempty

SWITCH = "switch:npus=4,rate=100Gbps,delay=1us"
RING = "ring:npus=4,rate=100Gbps,delay=1us"
MTU, HEADER, ACK, PS_PER_BYTE, DELAY_PS = 4096, 82, 86, 80, 10**6
MATRIX = np.array([[9, 1, 2, 3], [1, 9, 1, 1], [40, 1, 9, 0], [30, 0, 1, 9]]) * MTU


@pytest.fixture
def collective(nadi):
    """Run it; gives the document."""

    def run(*arguments, topology=SWITCH):
        outcome = nadi("collective", "all-to-all-v", "-t", topology, "--json", "-q", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.document

    return run


@pytest.fixture
def matrix_file(tmp_path):
    """MATRIX as CSV."""
    path = tmp_path / "bytes.csv"
    lines = [",".join(map(str, row)) for row in MATRIX.tolist()]
    path.write_text("# who sends, by row\n" + "\n\n".join(lines) + "  # the last\n")
    return path


def test_the_fullest_member_sets_the_pace(collective, matrix_file):
    """Members 2 and 3 send 70 packets to 0 together, which it takes one after another and acknowledges by its port.

    The bound leaves out acknowledgements that may come after the end, and what rounding may take off each packet.
    """
    document = collective("--matrix", matrix_file, "--algorithm", "direct")
    (row,) = document["rows"]
    assert document["matrix"] == str(matrix_file)
    assert row["bytes"] == MATRIX.sum() // 4
    assert row["busbw_Bps"] == pytest.approx(row["algbw_Bps"] * 3 / 4)
    in_ps = (71 * (MTU + HEADER) + 6 * ACK) * PS_PER_BYTE
    assert row["bound_ps"] == in_ps - 6 * ACK * PS_PER_BYTE - 71 / 2 + DELAY_PS
    assert row["bound_ps"] < row["time_ps"] < in_ps + 2 * DELAY_PS + 6 * (MTU + HEADER + ACK) * PS_PER_BYTE
    assert row["ratio"] == pytest.approx(1, rel=1e-2)


def test_numpys_files_are_the_same(collective, matrix_file, tmp_path):
    np.save(tmp_path / "bytes.npy", MATRIX.astype(np.uint32))
    one, other = (collective("--matrix", path)["rows"] for path in (matrix_file, tmp_path / "bytes.npy"))
    assert one == other


def test_even_bytes_take_as_long_as_the_all_to_all(collective, nadi):
    arguments = ("--sizes", "64KiB,1MiB", "--algorithm", "pairwise")
    uneven = collective("--skew", "zipf:0", *arguments)["rows"]
    even = nadi("collective", "all-to-all", "-t", SWITCH, "--json", "-q", *arguments).document["rows"]
    for column in ("bytes", "time_ps", "busbw_Bps", "packet_hops", "bound_ps"):
        assert [row[column] for row in uneven] == [row[column] for row in even], column
    assert [row["closed_form_ps"] for row in uneven] == pytest.approx([r["closed_form_ps"] for r in even], rel=1e-2)


@pytest.mark.parametrize("topology", [SWITCH, RING, "torus:sizes=3x2", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2"])
def test_nothing_is_faster_than_the_busiest_link(collective, topology):
    document = collective("--skew", "zipf:1.2", "--sizes", "4KiB,1MiB", "--algorithm", "all", topology=topology)
    assert len(document["rows"]) == 8
    for row in document["rows"]:
        assert row["bound_ps"] <= row["time_ps"]


def test_files_hold_bound_and_matrix(collective, tmp_path):
    rows = collective("--skew", "zipf:1", "--sizes", "4KiB,1MiB", "-o", tmp_path)["rows"]
    table = pq.read_table(tmp_path / "collective.parquet")
    assert table["bound_ps"].to_pylist() == [row["bound_ps"] for row in rows]
    assert b'"matrix": "zipf:1"' in table.schema.metadata[b"nadi"]
    assert ">zipf:1</td>" in (tmp_path / "collective.html").read_text()


def test_zipf_shares():
    """1, 1/2, 1/3, 1/4 of what a member sends, to members in a random order; whole tokens, none lost."""
    matrix = parse_skew("zipf:1", 7)(1 << 20, 4)
    assert np.all(matrix == matrix[0])
    assert matrix[0].sum() == 1 << 20
    expected = (1 << 20) / np.arange(1, 5) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert sorted(matrix[0].tolist(), reverse=True) == pytest.approx(expected.tolist(), abs=16)
    assert np.all(matrix % 16 == 0)
    wanted = {tuple(parse_skew("zipf:1", seed)(64, 4)[0]) for seed in range(20)}
    assert len(wanted) > 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "all-to-all-v: found neither of --matrix and --skew; expected one"),
        (("--matrix", "x", "--skew", "zipf:1"), "all-to-all-v: found both of --matrix and --skew; expected one"),
        (("--skew", "zipf:-1"), "--skew zipf:-1: expected zipf:EXPONENT, as zipf:1.2, with an exponent from 0 to 16"),
        (("--skew", "even"), "--skew even: expected zipf:EXPONENT, as zipf:1.2, with an exponent from 0 to 16"),
        (("--matrix", "none.csv"), "--matrix none.csv: No such file or directory, expected a file"),
        (
            ("--skew", "zipf:1", "--algorithm", "bruck"),
            "algorithm 'bruck' for all-to-all-v: expected one of direct, pairwise, hierarchical, nccl",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(nadi, arguments, text):
    outcome = nadi("collective", "all-to-all-v", "-t", SWITCH, "-q", *arguments)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"nadi: error: {text}\n")


def test_others_have_no_matrix(nadi):
    outcome = nadi("collective", "all-to-all", "-t", SWITCH, "--skew", "zipf:1")
    assert (outcome.code, outcome.err) == (
        2,
        "nadi: error: --skew: found with all-to-all; expected with all-to-all-v only\n",
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("1,2\n3\n", "rows of 1 and 2 numbers; expected rows of whole numbers, or NumPy's .npy"),
        ("", "rows of no numbers; expected rows of whole numbers, or NumPy's .npy"),
        ("1,2\n3,4\n", "found 2 x 2; expected 4 x 4, a row for each sender"),
        ("0,0,0,0\n" * 3 + "0,0,0,-5\n", "found -5 B; expected 0 or more, and a row sum below 2^63"),
    ],
)
def test_matrices_that_cannot_be_are_refused_in_one_line(nadi, tmp_path, content, text):
    path = tmp_path / "m.csv"
    path.write_text(content)
    outcome = nadi("collective", "all-to-all-v", "-t", SWITCH, "-q", "--matrix", path)
    assert (outcome.code, outcome.err) == (2, f"nadi: error: --matrix {path}: {text}\n")


def test_no_bytes_at_all_are_refused(nadi, tmp_path):
    np.save(tmp_path / "m.npy", np.zeros((4, 4), int))
    outcome = nadi("collective", "all-to-all-v", "-t", SWITCH, "-q", "--matrix", tmp_path / "m.npy")
    assert outcome.err == "nadi: error: all-to-all-v: no bytes at all, expected some\n"


def experts(npu):
    """Tokens to experts and back, and an even all-to-all."""
    kind, row, column = et.CollectiveCommType.ALL_TO_ALL, MATRIX[npu], MATRIX[:, npu]
    return [
        et.coll_node(1, "there", kind, int(row.sum()), in_split_size=row.tolist(), out_split_size=column.tolist()),
        et.coll_node(2, "back", kind, int(column.sum()), in_split_size=column.tolist(), deps=[1]),
        et.coll_node(3, "even", kind, 4 * MTU, deps=[2]),
    ]


def test_runs_have_them_too(nadi, write_run, tmp_path):
    """Each beside what its fullest member takes; the second begins where members are done with the first."""
    run = write_run(map(experts, range(4)), '[system.collectives]\nall-to-all-v = "pairwise"\n', f'spec = "{SWITCH}"')
    outcome = nadi("run", run, "--out", tmp_path / "out", "-q")
    assert outcome.code == 0, outcome.err
    rows = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [row["algorithm"] for row in rows] == ["pairwise", "pairwise", "direct"]
    assert {row["kind"] for row in rows} == {"all-to-all"}
    for row, matrix in nonempty(zip(rows, (MATRIX, MATRIX.T), strict=False)):
        np.save(tmp_path / "m.npy", matrix)
        arguments = ("--matrix", tmp_path / "m.npy", "--algorithm", "pairwise", "--json", "-q")
        (alone,) = nadi("collective", "all-to-all-v", "-t", SWITCH, *arguments).document["rows"]
        own = matrix * (1 - np.eye(4, dtype=int))
        packets = max(own.sum(axis=0).max(), own.sum(axis=1).max()) // MTU
        assert row["closed_form_ps"] == ((packets + 1) * (MTU + HEADER)) * PS_PER_BYTE + 2 * DELAY_PS
        assert row["closed_form_ps"] < row["time_ps"]
        assert row["time_ps"] == pytest.approx(alone["time_ps"], rel=2e-2)
        assert row["bytes"] == max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())


def test_on_hosts_with_nvswitches_nccls_costs_are_the_default(nadi, collective, tmp_path):
    """24 KiB on 8 A100 take as long with equal split sizes as an even all-to-all, not 0.15 us."""
    (tmp_path / "m.csv").write_text("\n".join([",".join(["3072"] * 8)] * 8))
    uneven = collective("--matrix", tmp_path / "m.csv", topology="dgx-a100:npus=8")["rows"]
    even = nadi("collective", "all-to-all", "-t", "dgx-a100:npus=8", "--sizes", "24KiB", "--json", "-q").document[
        "rows"
    ]
    assert [row["algorithm"] for row in (*even, *uneven)] == ["nccl", "nccl"]
    assert uneven[0]["time_ps"] == even[0]["time_ps"] > 7_200_000
    assert uneven[0]["ratio"] == 1
