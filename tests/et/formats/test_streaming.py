"""Conversions hold one trace at a time: eight times as many NPUs need hardly more memory."""

import tracemalloc

import pytest

from nadi.et.formats import formats
from tests.nonempty import nonempty


def goal_text(npus, nodes=240):
    yield f"num_ranks {npus}\n"
    for rank in range(npus):
        lines = [f"c{i}: calc {2000 + i}\nc{i} requires c{i - 1}\n" if i else "c0: calc 5000\n" for i in range(nodes)]
        yield f"rank {rank} {{\n" + "".join(lines) + "}\n"


def peak_bytes(source, target, given, out):
    out.mkdir(parents=True)
    tracemalloc.start()
    try:
        formats()[target].write(formats()[source].read(given, {}), out, "t", {})
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["json", "goal"])
def test_memory_does_not_grow_with_the_npus(tmp_path, target):
    peaks = {}
    for npus in (4, 32):
        folder = tmp_path / str(npus)
        folder.mkdir()
        (folder / "in.goal").write_text("".join(goal_text(npus)))
        file_bytes = (folder / "in.goal").stat().st_size
        there = peak_bytes("goal", "chakra", [folder / "in.goal"], folder / "et") - file_bytes  # a piece of the text
        back = peak_bytes("chakra", target, [folder / "et"], folder / "back")
        peaks[npus] = there, back
    for few, many in nonempty(zip(peaks[4], peaks[32], strict=True)):
        assert many < 1.3 * few + 64_000, peaks
