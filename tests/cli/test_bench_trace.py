"""`nadi bench trace`: files of both kinds are read by the kernel, and the figures say what was read."""

import pytest

from nadi import et
from nadi.et import decoder
from nadi.launching.progress import NoProgress
from nadi.pdes.core.jit import jit_enabled
from nadi.studies.benchmarks import trace_decoding


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(decoder, "MIN_KERNEL_BYTES", 0)


@pytest.mark.parametrize("kind", ["megatron", "pytorch"])
def test_what_is_measured_is_what_was_written(tmp_path, kind):
    path = tmp_path / "a.0.et"
    getattr(trace_decoding, f"_write_{kind}")(path, 2000)
    _, nodes = et.read_messages(path)
    found = trace_decoding.measure(str(path), 1)
    assert found["nodes"] == len(nodes) > 300
    assert min(found[f"{name}nodes_per_s"] for name in ("", "kept_", "protobuf_")) > 0
    assert found["peak_rss_bytes"] >= found["rss_before_bytes"] > 0
    if jit_enabled():
        assert decoder.decoded(path) is not None


def test_the_command(nadi, monkeypatch):
    monkeypatch.setattr(trace_decoding, "_measure_in_process", lambda path, n: trace_decoding.measure(str(path), n))
    monkeypatch.setattr(trace_decoding.run_decoding_bench, "__defaults__", (1000, 1))
    found = nadi("bench", "trace", "--runs", "1", "--json", "-q").document
    assert [row["kind"] for row in found["files"]] == ["megatron", "pytorch"]
    assert "protobuf" in nadi("bench", "trace", "--runs", "1", "-q").out
    assert trace_decoding.run_decoding_bench(NoProgress())["runs"] == 1
