"""Text of others on the terminal and in pages, on terminals that lack letters, and on devices that are full."""

import io
import json
import os
import subprocess
import sys

import pytest

from nadi import et
from nadi.cli.app import command_line
from nadi.cli.main import main
from nadi.et import CollectiveCommType
from nadi.inputs import shown
from nadi.terminal import Terminal, in_page, plain

EVIL = "[red]x[/] [/] :bomb: \x1b[2J\x1b]0;title\x07 \u202eback\u2066 <script>alert(1)</script>"
SHOWN = r"[red]x[/] [/] :bomb: \x1b[2J\x1b]0;title\x07 \u202eback\u2066 <script>alert(1)</script>"
DANGEROUS = ("\x1b", "\x07", "\u202e", "\u2066")


@pytest.fixture
def evil(tmp_path):
    """A run file in whose folder all that can have a name has a bad one."""
    folder = tmp_path / EVIL.replace("/", "|")
    folder.mkdir()
    grads = CollectiveCommType.ALL_REDUCE
    for npu in range(4):
        nodes = [
            et.comp_node(1, EVIL, duration_micros=1),
            et.coll_node(2, EVIL, grads, 1 << 16, pg_name=EVIL, deps=[1]),
            et.coll_node(3, "all", grads, 1 << 12, deps=[2]),
        ]
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
    (folder / "groups.json").write_text(json.dumps({EVIL: [0, 1, 2, 3]}))
    name = json.dumps(EVIL)
    (folder / "net.toml").write_text(
        f"npus = 4\n[[switches]]\nname = {name}\n[[links]]\nrate = '100Gbps'\ndelay = '1us'\n"
        f"cables = [[0, {name}], [1, {name}], [2, {name}], [3, {name}]]\n"
    )
    run = folder / "run.toml"
    run.write_text('[workload]\ntraces = "t"\ngroups = "groups.json"\n[topology]\nfile = "net.toml"\n')
    return run


def is_harmless(text):
    return not any(character in text for character in DANGEROUS)


def test_what_is_shown():
    assert shown(EVIL) == SHOWN
    assert shown("plain text, µs → 日本") == "plain text, µs → 日本"
    assert shown("a\nb\rc\x00\x7f\x9b") == r"a\nb\rc\x00\x7f\x9b"
    assert shown("a\nb", lines=True) == "a\nb"
    assert shown(os.fsdecode(b"caf\xe9")) == r"caf\xe9"
    assert in_page("<b>\x1b") == r"&lt;b&gt;\x1b"
    assert plain("µ → ─ é", "ascii") == r"u -> - \xe9"
    assert plain("µ → é", "latin-1") == "µ -> é"


def test_every_command_shows_names_as_they_are(nadi, evil):
    folder = evil.parent
    for arguments in (
        ("run", evil, "--out", folder / "out", "-q"),
        ("trace", "show", folder / "t.0.et"),
        ("topology", "show", folder / "net.toml"),
        ("topology", "build", folder / "net.toml", "-o", folder / "copy.toml"),
        ("net", folder / "out"),
        ("partition", evil, "--parts", "1"),
        ("collective", "all-reduce", "-t", folder / "net.toml", "--sizes", "1KiB", "-q", "-o", folder / "sweep"),
    ):
        outcome = nadi(*arguments)
        assert outcome.code == 0, outcome
        assert is_harmless(outcome.out + outcome.err)
    for name in ("net.toml", "run.toml"):
        assert "[red]x[" in nadi("trace", "show", folder / name).err
    assert nadi("trace", "show", folder / "t.0.et").out.count("[red]x[/]") >= 2
    assert "[red]x[/] [/] :bomb:" in nadi("run", evil, "-q").out


def test_errors_show_names_as_they_are(nadi, evil):
    folder = evil.parent
    for arguments in (
        ("run", evil, "--set", f"engine.{EVIL}=1"),
        ("run", folder / "none.toml"),
        ("topology", "show", EVIL),
        ("collective", EVIL, "-t", "ring:npus=4"),
        ("collective", "all-reduce", "-t", "ring:npus=4", "--algorithm", EVIL),
        ("net", folder),
        (EVIL,),
    ):
        outcome = nadi(*arguments)
        assert outcome.code == 2, outcome
        assert is_harmless(outcome.err)
        assert outcome.err.count("\n") == 1


def test_pages_hold_no_html_of_names(nadi, evil):
    folder = evil.parent
    assert nadi("run", evil, "--out", folder / "out", "-q").code == 0
    assert nadi("net", folder / "out", "-o", folder / "net.html").code == 0
    assert nadi("partition", evil, "--parts", "1", "--plot", folder / "cut.html").code == 0
    arguments = ("-t", folder / "net.toml", "--sizes", "1KiB", "-q", "-o", folder / "sweep")
    assert nadi("collective", "all-reduce", *arguments).code == 0
    pages = [folder / "net.html", folder / "cut.html", *(folder / "sweep").glob("*.html")]
    assert len(pages) == 3
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "\\u003cscript\\u003ealert" not in text, "plotly would take it for HTML"


def test_a_console_takes_text_as_it_is():
    stream = io.StringIO()
    Terminal(file=stream, width=200).print(EVIL, "a\nb")
    assert stream.getvalue() == f"{SHOWN} a\nb\n"


@pytest.fixture
def on(monkeypatch):
    """Run a command with its own standard output; gives the exit code and what came."""

    def run(encoding, *arguments):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([*map(str, arguments)])
            texts = []
            for stream in (out, err):
                stream.flush()
                texts.append(stream.buffer.getvalue().decode(encoding))
        return code, *texts

    return run


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_that_lack_letters(on, write_run, step, tmp_path, encoding):
    run = write_run([step] * 4)
    for arguments in (
        ("run", run, "--out", tmp_path / "out"),
        ("run", run, "--json"),
        ("trace", "show", tmp_path / "trace.0.et"),
        ("topology", "list"),
        ("topology", "show", "torus:sizes=2x2"),
        ("net", tmp_path / "out"),
        ("net", "controls"),
        ("collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "1KiB", "--algorithm", "ring,direct"),
        ("partition", run, "--parts", "2"),
    ):
        code, out, err = on(encoding, *arguments)
        assert code == 0, (arguments, err)
        assert out
    code, _, err = on(encoding, "topology", "show", "日本→")
    assert code == 2
    assert r"\u65e5\u672c->" in err
    out = on("ascii", "run", run)[1]
    assert "(us)" in out
    assert "->" in out
    assert len({len(line) for line in out.splitlines() if line.strip().startswith("npu ")}) <= 2


def test_full_devices():
    """The last flush of standard output is seen, and there is one line; where standard error is full, the exit code."""
    command = f"{sys.executable} -m nadi topology list --json"
    for redirected, said in (("> /dev/full", "nadi: error: standard output: No space left on device\n"), ("", "")):
        done = subprocess.run(
            ["bash", "-c", f"{command} {redirected or '> /dev/full 2> /dev/full'}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (1, said)


def test_files_that_nobody_may_read(tmp_path):
    """Everything is imported as root before: another user cannot read this Python."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    code = (
        "import os, sys\nfrom nadi.cli.main import main\nnone = sys.argv[1] + '/none'\n"
        "main(['run', sys.argv[1] + '/warm.toml']), main(['trace', 'show', none])\n"
        "os.setuid(65534)\nprint('now', file=sys.stderr)\n"
        "print(*(main(arguments.split()) for arguments in sys.argv[2:]))"
    )
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    text = '[workload]\ntraces = "closed/t"\n[topology]\nspec = "ring:npus=4"\n'
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "warm.toml").write_text(text.replace("closed", "."))
    arguments = f"run {tmp_path}/run.toml", f"run {closed}/run.toml", f"trace show {closed}/t"
    command = [sys.executable, "-c", code, tmp_path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = done.stderr.partition("now\n")[2].splitlines()
    assert done.stdout == "2 2 2\n", done.stderr
    assert len(lines) == 3
    assert all("Permission denied" in line for line in lines)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(28, "No space left on device", "/x/y"), 1, "/x/y: No space left on device"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: Permission denied"),
        (OSError(36, "File name too long", "z" * 300), 2, f"{'z' * 300}: File name too long"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_what_is_the_fault_of_the_world_is_no_defect(nadi, monkeypatch, error, code, text):
    def doctor():
        raise error

    monkeypatch.setattr("nadi.cli.commands.doctor.doctor", doctor)
    monkeypatch.setattr("nadi.cli.app.command_line", command_line.__wrapped__)
    assert nadi("doctor") == (code, "", f"nadi: error: {text}\n")
