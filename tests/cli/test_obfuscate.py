"""`nadi trace obfuscate`: what is hidden, and what stays."""

import dataclasses
import json

import numpy as np
import pytest

from nadi import et
from nadi.et.obfuscation import LEVELS, Obfuscation, SecretKey, Vocabulary, obfuscate
from nadi.workload import TraceSet, read_set, write_set
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from tests.nonempty import nonempty

MODEL = """
layers = 4
hidden = 256
heads = 4
vocab = 1024
sequence = 128
"""
KEY, OTHER_KEY = b"a key of 16 bytes", b"another one of 16"
FABRICS = ("dgx-h100-superpod:gpus=8", "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us")
NUMBERS = ("comm_size", "duration_micros", "num_ops", "tensor_size")


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(KEY)
    return file


@pytest.fixture
def trained(tmp_path):
    (tmp_path / "small.toml").write_text(MODEL)
    traces = generate(find(str(tmp_path / "small.toml")), parallel_plan("tp2,pp2,dp2,gb8"))
    return write_set(tmp_path / "trained", traces, "secretmodel")


@pytest.fixture
def simulated(nadi):
    def simulate(traces, fabric, *settings):
        words = [f"--set=workload.traces={traces}", f"--set=topology.spec={fabric}"]
        words += [f"--set={setting}" for setting in settings]
        return nadi.ok("run", *words, "--fidelity", "closed-form", "--quiet", "--json").document["finish_time_ps"]

    return simulate


def words_of(tables):
    """Texts that must not be seen: names, what is between their slashes if long enough, operators and groups."""
    names = {name for table in tables for name in table.names}
    parts = {part for name in names for part in name.split("/") if len(part) > 4}
    return names | parts | {text for table in tables for text in table.operator_lists if text} | {"secretmodel"}


def bytes_of(folder):
    return b"".join(file.name.encode() + file.read_bytes() for file in sorted(folder.iterdir()))


@pytest.mark.parametrize("fidelity", LEVELS)
def test_no_word_of_the_original_is_left(nadi, trained, key_file, tmp_path, fidelity):
    out = tmp_path / "out"
    nadi.ok("trace", "obfuscate", trained, "-o", out, "--key-file", key_file, "--fidelity", fidelity)
    content = bytes_of(out)
    original = read_set(trained)
    assert len(words_of(original.traces)) > 100
    assert all(word.encode() in bytes_of(trained) for word in words_of(original.traces))
    assert not [word for word in words_of(original.traces) if word.encode() in content]
    made = read_set(out)
    assert not set(made.families) & set(original.families)
    for before, after in nonempty(zip(original.traces, made.traces, strict=True)):
        assert np.any(before.node_id != after.node_id)
        assert np.array_equal(before.dep, after.dep)
        assert np.array_equal(before.type, after.type)


@pytest.mark.parametrize("fabric", FABRICS)
def test_full_fidelity_takes_the_same_time(nadi, simulated, trained, key_file, tmp_path, fabric):
    """To the picosecond where a roofline times the nodes; within 1 % where operators became whole microseconds."""
    roofline = "compute.peak_flops=100TFLOPS", "memory.bandwidth=1TB/s"
    gpu = ("compute.gpu=h100",)
    plain, timed = tmp_path / "plain", tmp_path / "timed"
    nadi.ok("trace", "obfuscate", trained, "-o", plain, "--key-file", key_file)
    nadi.ok("trace", "obfuscate", trained, "-o", timed, "--key-file", key_file, "--gpu", "h100")
    if "dgx" not in fabric:
        assert simulated(plain, fabric, *roofline) == simulated(trained, fabric, *roofline)
    assert simulated(timed, fabric) == pytest.approx(simulated(trained, fabric, *gpu), rel=0.01)


@pytest.mark.parametrize(("fidelity", "within"), [("near", 0.01), ("coarse", 0.09)])
def test_lower_fidelity_costs_what_is_said(nadi, simulated, trained, key_file, tmp_path, fidelity, within):
    out = tmp_path / "out"
    nadi.ok("trace", "obfuscate", trained, "-o", out, "--key-file", key_file, "--fidelity", fidelity)
    roofline = "compute.peak_flops=1TFLOPS", "memory.bandwidth=10GB/s"
    original = simulated(trained, FABRICS[1], *roofline)
    found = simulated(out, FABRICS[1], *roofline)
    assert found != original
    assert found == pytest.approx(original, rel=within)


def test_plain_traces_keep_their_groups_and_pairs(nadi, simulated, trained, key_file, tmp_path):
    """A folder of a file for each NPU, gzipped or not, with its group file; packets find their receives."""
    plain, out = tmp_path / "plain", tmp_path / "out"
    nadi("trace", "expand", trained, "-o", plain, "--prefix", "secretmodel")
    said = nadi.ok("trace", "obfuscate", plain, "-o", out, "--key-file", key_file, "--json").document
    assert (said["traces"], said["out"]) == (8, str(out / "trace"))
    assert not [word for word in words_of(read_set(trained).traces) if word.encode() in bytes_of(out)]
    before = json.loads((plain / "groups.json").read_text())
    after = json.loads((out / "groups.json").read_text())
    assert sorted(before.values()) == sorted(after.values())
    assert before != after
    fabric, roofline = FABRICS[1], ("compute.peak_flops=1TFLOPS", "memory.bandwidth=10GB/s")
    original = simulated(plain / "secretmodel", fabric, f"workload.groups={plain / 'groups.json'}", *roofline)
    assert simulated(out / "trace", fabric, f"workload.groups={out / 'groups.json'}", *roofline) == original


def test_the_key_decides(nadi, trained, key_file, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(OTHER_KEY)
    outs = [tmp_path / name for name in ("one", "again", "different")]
    for out, key in zip(outs, (key_file, key_file, other), strict=True):
        nadi.ok("trace", "obfuscate", trained, "-o", out, "--key-file", key, "--fidelity", "near")
    assert bytes_of(outs[0]) == bytes_of(outs[1])
    one, different = read_set(outs[0]).traces[0], read_set(outs[2]).traces[0]
    assert not set(one.names) & set(different.names)
    for column in ("node_id", "comm_size", "num_ops"):
        assert np.any(getattr(one, column) != getattr(different, column))


def test_sizes_at_each_level(trained):
    """Equal numbers stay equal, absent ones absent; how far they are off is what the level says."""
    traces = read_set(trained).traces
    for level in nonempty(LEVELS.values()):
        used = Vocabulary()
        for table in traces:
            used.add(table)
        disguise = Obfuscation(SecretKey(KEY), level, used)
        for column in NUMBERS:
            before = np.concatenate([getattr(table, column) for table in traces])
            after = np.concatenate([getattr(obfuscate(table, disguise), column) for table in traces])
            assert len(np.unique(np.stack([before, after]), axis=1).T) == len(np.unique(before))
            assert np.array_equal(before <= 0, after <= 0)
            ratio = after[before > 200] / before[before > 200]  # of smaller ones, an integer's step is over 0.5 %
            if level.keeps_numbers:
                assert np.array_equal(before, after)
            elif level.name == "near":
                assert np.all(np.abs(ratio - 1) <= 0.006)
            elif level.name == "coarse":
                assert np.all(np.abs(ratio - 1) <= 0.1)


def test_ids_groups_and_tags_agree_across_traces():
    """An id, a group and a tag look the same in each trace of a set; shares of an uneven all-to-all still agree."""
    kind = et.CollectiveCommType.ALL_TO_ALL
    tables = []
    for npu, splits in enumerate(((3, 5), (7, 1))):
        block = et.Block()
        block.comp("work", duration_micros=5)
        received = (3, 7) if npu == 0 else (5, 1)
        block.coll("shuffle", kind, 4096 * 8, group="pair", in_split_size=splits, out_split_size=received)
        block.send("there", 640, peer=1 - npu, tag=7) if npu == 0 else block.recv("there", 640, peer=0, tag=7)
        columns = et.TraceColumns(npu=npu)
        columns.stamp(block, "step/")
        tables.append(columns.table())
    used = Vocabulary()
    for table in tables:
        used.add(table)
    for level in nonempty(LEVELS.values()):
        hidden = [obfuscate(table, Obfuscation(SecretKey(KEY), level, used)) for table in tables]
        assert np.array_equal(hidden[0].node_id, hidden[1].node_id)
        assert hidden[0].group_names == hidden[1].group_names == ("", "1")
        assert hidden[0].comm_tag[2] == hidden[1].comm_tag[2] >= 0
        assert hidden[0].comm_size[2] == hidden[1].comm_size[2]
        splits = [
            [table.split_sizes[column[1]] for column in (table.in_split_size, table.out_split_size)] for table in hidden
        ]
        sent = np.array([row for row, _ in splits])
        assert np.array_equal(sent.T, [row for _, row in splits])
        sizes = [table.comm_size[1] for table in hidden]
        assert sizes[0] * sent[1].sum() == sizes[1] * sent[0].sum()


def test_start_times_are_counted_from_the_first(tmp_path):
    nodes = [et.comp_node(1, "one", duration_micros=3), et.comp_node(2, "two", duration_micros=4)]
    for node, start in zip(nodes, (1_700_000_000_000_000, 1_700_000_000_000_500), strict=True):
        node.start_time_micros = start
    et.write_trace(tmp_path / "trace.0.et", et.metadata(), nodes)
    table = et.read_trace(tmp_path / "trace.0.et")
    used = Vocabulary()
    used.add(table)
    assert obfuscate(table, Obfuscation(SecretKey(KEY), LEVELS["full"], used)).start_time_micros.tolist() == [1, 501]
    assert obfuscate(table, Obfuscation(SecretKey(KEY), LEVELS["near"], used)).start_time_micros.tolist() == [0, 0]


def test_a_trace_set_that_is_wrong_leaves_nothing(nadi, trained, key_file, tmp_path):
    """A group that nobody has heard of is still a name that is hidden; a file that is cut off is named."""
    traces = read_set(trained)
    renamed = dataclasses.replace(traces.traces[0], group_names=("", *("secretgroup",) * 9))
    assert isinstance(traces, TraceSet)
    used = Vocabulary()
    used.add(renamed)
    assert obfuscate(renamed, Obfuscation(SecretKey(KEY), LEVELS["full"], used)).group_names[1] == "1"
    broken = next(trained.glob("*.et"))
    broken.write_bytes(broken.read_bytes()[:-3])
    found = nadi.refuse("trace", "obfuscate", trained, "-o", tmp_path / "out", "--key-file", key_file)
    assert str(broken) in found.err
    assert not (tmp_path / "out").exists()


def test_traces_of_others(nadi, simulated, shared_data, key_file, tmp_path):
    """Of STG: pipeline, tensor and data parallelism of eight NPUs, groups by numbers."""
    folder = shared_data / "chakra" / "dense_dp2tp2pp2"
    fabric, roofline = FABRICS[1], ("compute.peak_flops=1TFLOPS", "memory.bandwidth=10GB/s")
    groups = folder / "workload.json"
    out = tmp_path / "out"
    nadi.ok("trace", "obfuscate", folder, "-o", out, "--key-file", key_file, "--groups", groups)
    original = simulated(folder / "workload", fabric, f"workload.groups={groups}", *roofline)
    assert simulated(out / "trace", fabric, f"workload.groups={out / 'groups.json'}", *roofline) == original
