import pytest
from hypothesis import given
from hypothesis import strategies as st

from et import topological_order
from workload import ComputeModel, TransformerParams, WorkloadError, build_program, load_traces
from workload.generators import transformer

SMALL = TransformerParams(npus=4, layers=3, hidden=64, heads=4, vocab=100, seq=32, micro_batch=2, bucket_bytes=100_000)

params = st.builds(
    lambda heads, width, **rest: TransformerParams(heads=heads, hidden=heads * width, **rest),
    heads=st.integers(1, 8),
    width=st.integers(1, 16),
    layers=st.integers(1, 6),
    vocab=st.integers(1, 1000),
    seq=st.integers(1, 100),
    micro_batch=st.integers(1, 4),
    dtype_bytes=st.integers(1, 4),
    bucket_bytes=st.integers(1, 10**6),
    iterations=st.integers(1, 2),
    recompute=st.booleans(),
)


def attributes(node):
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


@given(params)
def test_parameters_and_work_are_those_of_the_paper(p):
    layers, h, s, v, b = p.layers, p.hidden, p.seq, p.vocab, p.micro_batch
    assert p.parameters() == pytest.approx(12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)))
    factor = 96 if p.recompute else 72
    flops = factor * b * s * layers * h**2 * (1 + s / (6 * h) + v / (factor / 6 * layers * h))
    assert p.flops() == pytest.approx(flops)
    nodes = transformer.generate(p)
    assert sum(attributes(n).get("num_ops", 0) for n in nodes) == p.iterations * p.flops()


@given(params)
def test_gradients_are_summed_once_in_full_buckets(p):
    sizes = [bucket.bytes for bucket in transformer.buckets(p)]
    assert sum(sizes) == p.parameters() * p.dtype_bytes
    assert all(size >= p.bucket_bytes for size in sizes[:-1])
    sent = [attributes(n)["comm_size"] for n in transformer.generate(p) if "comm_size" in attributes(n)]
    assert sent == sizes * p.iterations


def test_megatron_sizes():
    """Parameters of the table in arXiv 2104.04473, in billions."""
    for billions, heads, hidden, layers in ((1.7, 24, 2304, 24), (18.4, 48, 6144, 40), (1008.0, 160, 25600, 128)):
        p = TransformerParams(layers=layers, hidden=hidden, heads=heads, vocab=51_200, seq=2048)
        assert p.parameters() / 1e9 == pytest.approx(billions, abs=0.05)


def test_all_reduces_run_beside_the_backward_pass():
    nodes = transformer.generate(SMALL)
    by_name = {node.name: node for node in nodes}
    name_of = {node.id: node.name for node in nodes}

    def deps(name):
        return {name_of[d] for d in by_name[f"it0/{name}"].data_deps}

    assert deps("forward/layer0") == {"it0/forward/embedding"}
    assert deps("backward/head") == {"it0/forward/head"}
    assert deps("backward/layer1") == {"it0/backward/layer2"}
    # a layer has 12 h^2 + 13 h = 49,984 parameters, a bucket 50,000: one layer and a little of the next
    assert deps("allreduce/bucket0") == {"it0/backward/layer1"}
    assert deps("allreduce/bucket1") == {"it0/backward/layer0", "it0/allreduce/bucket0"}
    sums = {name for name in by_name if "allreduce" in name}
    assert deps("optimizer") == sums | {"it0/backward/embedding"}


def test_iterations_follow_each_other():
    nodes = transformer.generate(TransformerParams(npus=2, layers=1, iterations=2))
    first = next(n for n in nodes if n.name == "it1/forward/embedding")
    assert [nodes[d].name for d in first.data_deps] == ["it0/optimizer"]


def test_traces_are_read_as_they_were_written(tmp_path):
    prefix = transformer.write(SMALL, tmp_path / "new" / "folder")
    assert sorted(f.name for f in prefix.parent.iterdir()) == [f"transformer.{npu}.et" for npu in range(4)]
    traces, own = load_traces(prefix, 4)
    assert own.tolist() == [0] * 4
    assert topological_order(traces[0]).tolist() == list(range(len(traces[0])))
    program = build_program(traces, own, 4, {}, ComputeModel(peak_flops=1e12, memory_bandwidth_Bps=1e12))
    assert program.node_duration_ps[program.node_kind == 1].min() > 0
    assert program.schedules.members.tolist() == [4]
    transformer.write(SMALL, prefix.parent)  # again, over itself


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformer, "_link", fails)
    with pytest.raises(WorkloadError, match=r": No space left on device, expected a folder to write traces to$"):
        transformer.write(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_links_become_copies_where_there_are_none(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.hardlink_to", fails)
    prefix = transformer.write(SMALL, tmp_path)
    assert load_traces(prefix, 4)[1].tolist() == [0] * 4


def test_traces_of_another_run_are_not_mixed_in(tmp_path):
    transformer.write(SMALL, tmp_path)
    fewer = TransformerParams(npus=2, layers=1)
    with pytest.raises(WorkloadError, match=r"transformer\.2\.et: of another run, expected a folder without other"):
        transformer.write(fewer, tmp_path)
    transformer.write(fewer, tmp_path, prefix="fewer")


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(WorkloadError, match=r"x: File exists, expected a folder to write traces to$"):
        transformer.write(SMALL, tmp_path / "x")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"layers": 0}, "transformer: layers is 0, expected 1 to 100000"),
        ({"hidden": 100, "heads": 12}, "transformer: hidden is 100, expected a multiple of heads (12)"),
    ],
)
def test_sizes_that_cannot_be_are_refused(values, text):
    with pytest.raises(WorkloadError) as error:
        TransformerParams(**values)
    assert str(error.value) == text
