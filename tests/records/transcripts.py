"""Transcripts of commands: text files that hold commands, their files, what they print, and their exit codes.

    # a remark
    $ write run.toml
    < [workload]
    $ nadi run run.toml
    > what it prints on standard output
    ! what it prints on standard error
    = 2

A transcript begins in an empty folder. `write FILE` writes the lines with `<`, `show FILE` prints a text file, and
`list DIR` the names of all files in a folder. `traces PREFIX` writes a trace for each NPU, whose lines with `<` are
nodes: NPUs, the function of `nadi.et` that makes the node, and its arguments, as `0-3 coll 1 grads ALL_REDUCE 1024`.
Everything else is a command of Nadi, which runs in this process. With `stopped` before it, a run saves its state and
ends before it is done. A command without `=` ends with 0.
"""

import ast
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from nadi import et
from tests.features.restarting import after, often

FOLDER = Path(__file__).with_name("transcripts")
ROOT = Path(__file__).parents[2]
TIMES = {"start_time_micros", "duration_micros"}
"""Fields that every node of a trace may have."""
_WIDTHS = re.compile(r"(?<=\S) {2,}|─+")
_SECONDS = r"[\d.]+ (?:s|min|h)"
_RULES = (
    # Whether kernels were compiled before: no such line.
    (r"^nadi: compiling the kernels, once, into .*\n", ""),
    # Times on this machine, and rates that follow from them.
    (rf"(?<=simulated in ){_SECONDS}, {_SECONDS}(?= since the command began)", "TIME, TIME"),
    (r"[\d.]+ M/s$", "RATE"),
    (r'(?P<key>"(?:wall|setup|first_event)_s": )[\d.e-]+', r"\g<key>TIME"),
    (r'(?<="packet_hops_per_s": )[\d.e+]+', "RATE"),
    (r"^ *(wall \(s\)|peak rss) .*", r" \1 NUMBERS"),
    # Memory of this process.
    (r'(?<="peak_rss_bytes": )\d+', "BYTES"),
    # The last digits of a floating-point sum, which depend on the instructions of the processor.
    (r"(?<![\w.])\d+\.\d{12,}(?:e[+-]?\d+)?", lambda number: f"{float(number[0]):.10g}"),
    # Errors of a class of questions, which change with each validation.
    (r"(?<=\): )mean [\d.]+%, worst [\d.]+% of [\d,]+ cases?.*?(?=\"|$)", "ERRORS"),
    (r'(?<="cases": )[1-9]\d*,\n *"mean": [^,]+,\n *"worst": [^,]+,(\n(?! *"text": ).*)*', "ERRORS"),
    # The day on which a file was written.
    (r'(?<=^date = ")[\d-]{10}', "DATE"),
    # Memory of this machine that nobody uses.
    (r"[\d.,]+ GB(?= are free)", "MEMORY"),
    # The version, which changes with each release, and names of folders that are hashes of it and of settings.
    (r'(?<="version": ")[^"]+', "VERSION"),
    (r"(?<=runs/)[0-9a-f]{20}\b", "HASH"),
)
_MASKS = [(re.compile(pattern, re.MULTILINE), text) for pattern, text in _RULES]
"""What differs between machines and versions, and what is recorded in its place."""


class Step(NamedTuple):
    """A command of a transcript.

    Attributes:
        before: Remarks and empty lines before it.
        command: Its line.
        given: Content of the file that it writes.
        out: Lines on standard output.
        err: Lines on standard error.
        code: Exit code.
    """

    before: tuple[str, ...]
    command: str
    given: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    code: int = 0


def read(path):
    steps, before = [], []
    for line in path.read_text().splitlines():
        mark, text = line[:1], line[2:]
        if mark == "$":
            steps.append(Step(tuple(before), text))
            before = []
        elif mark in {"#", ""}:
            before.append(line)
        elif mark == "=":
            steps[-1] = steps[-1]._replace(code=int(text))
        else:
            field = {"<": "given", ">": "out", "!": "err"}[mark]
            steps[-1] = steps[-1]._replace(**{field: (*getattr(steps[-1], field), text)})
    return steps


def written(steps):
    lines = []
    for step in steps:
        lines += [*step.before, f"$ {step.command}"]
        for mark, texts in (("<", step.given), (">", step.out), ("!", step.err)):
            lines += [f"{mark} {text}".rstrip() for text in texts]
        lines += [f"= {step.code}"] * (step.code != 0)
    return "\n".join(lines) + "\n"


def run(step: Step, nadi: Callable, folder: Path) -> Step:
    """Run a step in the current folder and return it with what it prints now.

    Args:
        step: A step of a transcript.
        nadi: Runs a command of Nadi: the fixture of tests/cli/conftest.py.
        folder: The current folder.
    """
    program, *words = shlex.split(step.command)
    if program == "write":
        Path(words[0]).parent.mkdir(parents=True, exist_ok=True)
        Path(words[0]).write_text("".join(f"{line}\n" for line in step.given))
        return step._replace(out=(), err=(), code=0)
    if program == "traces":
        write_traces(Path(words[0]), step.given)
        return step._replace(out=(), err=(), code=0)
    if program == "show":
        return step._replace(out=masked(Path(words[0]).read_text(), folder), err=(), code=0)
    if program == "list":
        names = sorted(path.relative_to(words[0]).as_posix() for path in Path(words[0]).rglob("*") if path.is_file())
        return step._replace(out=tuple(names), err=(), code=0)
    assert program in {"nadi", "stopped"}, step.command
    with stopping() if program == "stopped" else nullcontext():
        outcome = nadi(*words[program == "stopped" :])
    return step._replace(out=masked(outcome.out, folder), err=masked(outcome.err, folder), code=outcome.code)


def write_traces(prefix, lines):
    """Write traces of which each line is a node of some NPUs, for example `0-3 comp 2 work deps=[1]`."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    nodes = {}
    for line in lines:
        npus, kind, *words = shlex.split(line)
        named = {name: argument(text) for name, _, text in (word.partition("=") for word in words if "=" in word)}
        fields = {name: named.pop(name) for name in TIMES & named.keys()}
        made = getattr(et, f"{kind}_node")(*(argument(word) for word in words if "=" not in word), **named)
        for name, value in fields.items():
            setattr(made, name, value)
        first, _, last = npus.partition("-")
        for npu in range(int(first), int(last or first) + 1):
            nodes.setdefault(npu, []).append(made)
    for npu, own in nodes.items():
        et.write_trace(f"{prefix}.{npu}.et", et.metadata(), own)


def argument(text):
    """Return an argument of a node: a kind of collective or of node, a literal of Python, or the text itself."""
    for known in (et.CollectiveCommType, et.NodeType):
        if text in known.__members__:
            return known[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@contextmanager
def stopping():
    """Have a run stop with a checkpoint, as a signal makes it do, after some of its events."""
    with after(2), often():
        yield


def masked(text, folder):
    """Return the lines of a text with patterns in place of what differs between machines, folders and commits."""
    text = text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON").replace(str(ROOT), "ROOT")
    if "peak rss" in text:  # a table whose columns are as wide as numbers of this machine
        text = _WIDTHS.sub(lambda width: width[0][:2], text)
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return tuple(line.rstrip() for line in text.splitlines())
