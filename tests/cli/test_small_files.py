"""Small files and short options cannot make a command slow or large: each is refused with one line, at once."""

import time

import pytest

LAYERS = "DATA\n1\nfc -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 1048576 100\n"
RUN = '[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n'
LONG_KEY = ".".join(["a"] * 200_000)
MOST_S = 3
"""CPU seconds of a command, most of which it needs to import what it uses."""

# what is in the file, the command with FILE and OUT in it, what it says
CASES = {
    "comments of GOAL": ("/**/" * 28 + "x\n", "trace convert FILE -o OUT", "is text, expected one of"),
    "comments of GOAL, another command": ("/**/" * 28 + "x\n", "trace show FILE", "is text, expected a Chakra trace"),
    "comments of GOAL without an end": (
        "num_ranks 1\nrank 0 {\n" + "/*" * 200_000,
        "trace convert FILE -o OUT",
        "rank 0: ends without a bracket",
    ),
    "headings of Markdown": ("# a\n" * 12_000, "trace convert FILE -o OUT", "is text, expected one of"),
    "lines of TOML": ("#a\r\n" * 12_000 + "x", "run FILE", "no TOML"),
    "numbers of SimAI": ("1 2 3 4\n" + "1" * 60_000 + "x", "trace show FILE", "expected a Chakra trace"),
    "a long key": (f"{LONG_KEY} = 1\n", "run FILE", "a dotted key of more than 64 parts"),
    "a long key of a fabric": (f"[{LONG_KEY}]\n", "topology show FILE", "a dotted key of more than 64 parts"),
    "a long key on the command line": (
        RUN,
        f"run FILE --set {LONG_KEY[:100_000]}a=1",
        "expected section.key=value",
    ),
    "nested JSON": ("[" * 100_000, "trace convert FILE --from json -o OUT", "character 1"),
    "digits of a rate": ("", f"topology show ring:npus=4,rate={'9' * 5000}Gbps", "rate"),
    "digits of a size": ("", f"collective all-reduce -t ring:npus=4 --sizes {'9' * 5000}", "is not a size"),
    "digits of an entry": (RUN, f"run FILE --set faults.{'9' * 5000}.npu=3", "as a number of a list; expected 0"),
    "many NPUs": (
        LAYERS,
        "trace convert FILE --from astra-sim:npus=400000 -o OUT",
        "400,000 files would take about 1.6 GB, expected at most 131,072 files",
    ),
    "many ranks": (
        "num_ranks 400000\nrank 0 {\nl1: calc 5\n}\n",
        "trace convert FILE -o OUT",
        "400,000 files would take about 1.6 GB, expected at most 131,072 files",
    ),
    "many passes": (
        LAYERS,
        "trace convert FILE --from astra-sim:npus=4,passes=99999999 -o OUT",
        "99,999,999 passes over 1 layers, expected at most 131,072 layers in all",
    ),
    "many GPUs": (
        '<algo coll="allreduce" ngpus="16000000" nchunksperloop="1"/>',
        "collective all-reduce -t ring:npus=4 --sizes 1MiB --algorithm custom:file=FILE",
        "0 elements <gpu>, expected ngpus 16000000",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_small_file_is_refused_at_once(nadi, tmp_path, case):
    content, command, says = CASES[case]
    file, out = tmp_path / "file.toml", tmp_path / "out"
    file.write_text(content, encoding="utf-8", newline="")
    words = [word.replace("FILE", str(file)).replace("OUT", str(out)) for word in command.split()]
    began = time.process_time()
    outcome = nadi(*words)
    assert time.process_time() - began < MOST_S
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert not out.exists()


def test_files_that_the_disk_has_no_room_for_are_refused(nadi, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text(LAYERS, encoding="utf-8")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    outcome = nadi("trace", "convert", file, "--from", "astra-sim:npus=1000", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "1,000 files would take about 0.0 GB, expected at most the 0.0 GB that the disk has free" in outcome.err
