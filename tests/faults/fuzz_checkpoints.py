"""Continue from exchanged, truncated and forged checkpoints: python -m tests.faults.fuzz_checkpoints --files 300

An exchanged or truncated file must be refused in one line with exit code 2. A forged one, which has plausible wrong
content and a seal that names it, must end in one line or in results: a traceback, a signal or a run without end is
printed with the seed that makes it again. The exit code is 1 if there is one.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nadi.cli.main import main as nadi
from nadi.inputs.arrays import read_arrays, seal_of, write_arrays
from nadi.launching.checkpoints import RUN
from tests.features.running import write_traces
from tests.forked import Forked
from tests.parallel.cut_at import cut_at

ENDS_S = 60  # seconds in which every run that continues ends
KINDS = ("exchanged", "truncated", "forged")
LOSSES = '[[faults]]\nlink = "npu 5 - leaf 2"\nat = "10us"\nerror_rate = 0.01\n'
LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
BASES = {  # name -> kind of collective, topology, text, engine
    "packets": ("all-to-all", LEAVES, f"[network]\nmax_retries = 1000\n{LOSSES}", "lps_per_worker = 2"),
    "trims": (
        "all-to-all",
        LEAVES,
        "[network]\nselective_repeat = true\npfc = false\ntrimming = true\nbuffer = '40KB'\n",
        "",
    ),
    "whole messages": ("all-to-all", LEAVES, '[network]\nfidelity = "analytical"\n', ""),
    "flows": ("all-to-all", LEAVES, '[network]\nfidelity = "flow"\n', ""),
    "domains": ("all-reduce", "rail-optimised:npus=8,gpus_per_host=4", "", 'reuse = "exact"'),
}


def make_base(folder, name):
    """Write a run and two of its checkpoints, in the middle and later, into a folder."""
    kind, topology, text, engine = BASES[name]
    run = folder / "run.toml"
    traces = folder.parent / kind / "trace"
    run.write_text(
        f'[workload]\ntraces = "{traces}"\n[topology]\nspec = "{topology}"\n[memory]\nbandwidth = "100GB/s"\n'
        f'[engine]\ncheckpoint = "1h"\n{engine}\n{text}'
    )
    whole = folder / "whole"
    assert nadi(["run", str(run), "--quiet", "--out", str(whole)]) == 0
    end_ps = json.loads((whole / "summary.json").read_text())["finish_time_ps"]
    with cut_at(end_ps * 2 // 3, end_ps * 5 // 6):
        assert nadi(["run", str(run), "--quiet", "--out", str(folder / "out")]) == 143
    assert len(checkpoints(folder)) == 2


def checkpoints(folder):
    """The folders of the checkpoints of a run, oldest first."""
    return sorted((folder / "out" / "checkpoints").glob("[0-9]*"))


def exchanged(random, newest, others):
    parts = [(part, other / part.name) for part in newest.glob("*.nadi") for other in others]
    parts = [(part, other) for part, other in parts if other.exists() and other.read_bytes() != part.read_bytes()]
    part, other = parts[random.integers(len(parts))]
    shutil.copy(other, part)
    return f"{part.name} of {other.parent.parent.parent.parent.name}/{other.parent.name}"


def truncated(random, newest, _others):
    parts = sorted(newest.glob("*.nadi"))
    part = parts[random.integers(len(parts))]
    size = int(random.integers(part.stat().st_size))
    os.truncate(part, size)
    return f"{part.name} of {size} bytes"


def forged(random, newest, others):
    """Change a part, and seal it."""
    parts = sorted(newest.glob("*.nadi"))
    part = parts[random.integers(len(parts))]
    values, arrays = read_arrays(part)
    arrays = {name: array.copy() for name, array in arrays.items()}
    names = [name for name, array in arrays.items() if len(array)]
    what = random.choice(["words", "words", "words", "array", "values"])
    if what == "values" or not names:
        values = wrong_value(random, values)
        said = "values"
    else:
        name = str(names[random.integers(len(names))])
        arrays[name] = (
            wrong_words(random, arrays[name])
            if what == "words"
            else wrong_array(random, name, arrays[name], others, part.name)
        )
        if arrays[name] is None:
            del arrays[name]
        said = f"{what} of {name}"
    rewrite(part, values, arrays)
    if part.stem != RUN:
        run = newest / f"{RUN}.nadi"
        values, arrays = read_arrays(run)
        values["parts"][part.stem] = seal_of(part)
        rewrite(run, values, arrays)
    return f"{part.name}: {said}"


def rewrite(path, values, arrays):
    path.unlink()
    write_arrays(path, values, arrays)


def wrong_words(random, array):
    """Some words take values of others, or typical ones."""
    for at in random.integers(len(array), size=random.integers(1, 4)):
        usual = [
            -1,
            0,
            1,
            2,
            7,
            1 << 20,
            1 << 62,
            int(array[random.integers(len(array))]),
            int(random.integers(1 << 40)),
        ]
        value = usual[random.integers(len(usual))]
        array[at] = value if array.dtype.kind in "fb" else np.array(value, np.int64).astype(array.dtype)
    return array


def wrong_array(random, name, array, others, part):
    """Another length, another type, that of another checkpoint, or none."""
    other = others[random.integers(len(others))] / part
    choices = [array[: len(array) // 2], np.tile(array, 2), array.astype(np.int8), None]
    choices.append(read_arrays(other)[1].get(name, array) if other.exists() else array)
    return choices[random.integers(len(choices))]


def wrong_value(random, values):
    """Replace one value of a document."""
    wrong = [None, -1, 0, 1 << 70, "x", [], {}, True, 0.5]
    if not isinstance(values, dict | list) or not values or random.random() < 0.2:
        return wrong[random.integers(len(wrong))]
    keys = list(values) if isinstance(values, dict) else list(range(len(values)))
    key = keys[random.integers(len(keys))]
    values[key] = wrong_value(random, values[key])
    return values


def complaint(folder, kind):
    """What is wrong with how a run continues, "" if nothing is; it runs in a process of its own."""
    said = folder / "said"
    words = ["run", str(folder / "run.toml"), "--quiet", "--json", "--resume", str(folder / "out")]
    process = Forked(lambda: nadi(words), said, said)
    try:
        code = process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "has no end"
    if code < 0:
        return f"signal {-code}"
    lines = said.read_text().splitlines()
    if code == 0 and kind == "forged":
        return ""
    if code not in ({2} if kind != "forged" else {1, 2}):
        return f"exit code {code}: {' | '.join(lines)[-300:]}"
    is_line = len(lines) == 1 or (lines and lines[0].startswith("nadi: error: nothing is left to happen"))
    return "" if is_line else f"{len(lines)} lines: {' | '.join(lines)[-300:]}"


def examples(seeds, folder, kinds=KINDS):
    """Yield seed, kind, what was changed and what is wrong of examples, made in an empty folder."""
    write_traces(folder)
    for name in BASES:
        (folder / name).mkdir()
        make_base(folder / name, name)
    for seed in seeds:
        random = np.random.default_rng(seed)
        name, kind = list(BASES)[seed % len(BASES)], kinds[seed // len(BASES) % len(kinds)]
        own = folder / "example"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(folder / name, own)
        older, newest = checkpoints(own)
        others = [older, *(last for other in BASES if other != name for last in checkpoints(folder / other)[-1:])]
        changed = globals()[kind](random, newest, others)
        yield seed, kind, f"{name}, {kind}, {changed}", complaint(own, kind)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz_checkpoints", description=__doc__)
    parser.add_argument("--files", type=int, default=300, help="number of examples")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first example")
    parser.add_argument("--kind", choices=KINDS, help="kind of the examples; all if not given")
    given = parser.parse_args(arguments)
    kinds, begin, complaints, tried = (given.kind,) if given.kind else KINDS, time.monotonic(), 0, collections.Counter()
    with tempfile.TemporaryDirectory() as parent:
        for seed, kind, made, wrong in examples(range(given.seed, given.seed + given.files), Path(parent), kinds):
            tried[kind] += 1
            if wrong:
                complaints += 1
                sys.stdout.write(f"seed {seed}: {made}: {wrong}\n")
                sys.stdout.flush()
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(tried.items()))
    sys.stdout.write(f"{counts} in {time.monotonic() - begin:.0f} s, {complaints} complaints\n")
    return int(complaints > 0)


if __name__ == "__main__":
    sys.exit(main())
