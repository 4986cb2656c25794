"""Text on the terminal and in pages: tables at every width, quantities, names of others, and devices that are full."""

import io
import itertools
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console

from nadi import et, terminal
from nadi.cli.commands import command_line
from nadi.cli.main import main
from nadi.inputs import shown
from nadi.inputs.units import parse_bytes, parse_time
from nadi.reports.pages import COLOURS, series_style
from tests.docs.pages import DOCS
from tests.nonempty import nonempty

EVIL = "[red]x[/] [/] :bomb: \x1b[2J\x1b]0;title\x07 \u202eback\u2066 <script>alert(1)</script>"
SHOWN = r"[red]x[/] [/] :bomb: \x1b[2J\x1b]0;title\x07 \u202eback\u2066 <script>alert(1)</script>"
DANGEROUS = ("\x1b", "\x07", "\u202e", "\u2066")


@pytest.fixture
def evil(tmp_path):
    """A run file in whose folder all that can have a name has a bad one."""
    folder = tmp_path / EVIL.replace("/", "|")
    folder.mkdir()
    grads = et.CollectiveCommType.ALL_REDUCE
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
    assert terminal.in_page("<b>\x1b") == r"&lt;b&gt;\x1b"
    assert terminal.plain("µ → ─ é", "ascii") == r"u -> - \xe9"
    assert terminal.plain("µ → é", "latin-1") == "µ -> é"


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
        outcome = nadi.ok(*arguments)
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
        outcome = nadi.refuse(*arguments)
        assert is_harmless(outcome.err)
        assert outcome.err.count("\n") == 1


def test_pages_hold_no_html_of_names(nadi, evil):
    folder = evil.parent
    nadi.ok("run", evil, "--out", folder / "out", "-q")
    nadi.ok("net", folder / "out", "-o", folder / "net.html")
    nadi.ok("partition", evil, "--parts", "1", "--plot", folder / "cut.html")
    arguments = ("-t", folder / "net.toml", "--sizes", "1KiB", "-q", "-o", folder / "sweep")
    nadi.ok("collective", "all-reduce", *arguments)
    pages = [folder / "net.html", folder / "cut.html", *(folder / "sweep").glob("*.html")]
    assert len(pages) == 3
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "\\u003cscript\\u003ealert" not in text, "plotly would take it for HTML"


def test_a_console_takes_text_as_it_is():
    stream = io.StringIO()
    terminal.Terminal(file=stream, width=200).print(EVIL, "a\nb")
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

    monkeypatch.setattr("nadi.cli.commands.bench.doctor", doctor)
    monkeypatch.setattr("nadi.cli.commands.command_line", command_line.__wrapped__)
    assert nadi("doctor") == (code, "", f"nadi: error: {text}\n")


COLUMNS = (
    terminal.TableColumn("link", form="name"),
    terminal.TableColumn("rate", 2),
    terminal.TableColumn("sent", 1),
    "busy",
    terminal.TableColumn("longest queue", 3),
    terminal.TableColumn("what", 4, "text"),
)
ROWS = (
    ("pod 0 spine 12 → pod 1 leaf 3 [red]", "100 Gb/s", "401.89 MB", "48.8%", "4.18 kB", "a few words that may wrap"),
    ("leaf 0 → npu 0", "400 Gb/s", "1.23 MB", "1,123,448.8%", "17.94 kB", "none"),
)


def made():
    table = terminal.FittedTable("a title of some length", *COLUMNS)
    for row in ROWS:
        table.add_row(*row)
    return table


def printed(table, width):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    return console.file.getvalue()


def shown_columns(text):
    return [column for column in (getattr(c, "heading", c) for c in COLUMNS) if f" {column}" in text.split("─")[0]]


def test_columns_go_by_rank_and_are_said():
    """Widths by hand: 1 + the widest cells + 3 between neighbours and 2 more; prose may shrink to 24 cells."""
    cells = {"link": 35, "rate": 8, "sent": 9, "busy": 12, "longest queue": 13, "what": 24}
    gone = ["what", "longest queue", "rate", "sent"]
    for left_out in nonempty(range(len(gone) + 1)):
        rest = [name for name in cells if name not in gone[:left_out]]
        least = 1 + sum(cells[name] for name in rest) + 3 * len(rest) - 1
        text = printed(made(), least)
        assert shown_columns(text) == rest
        note = f"not shown: {', '.join(name for name in cells if name not in rest)} (a terminal 120 columns wide or"
        assert (note in " ".join(text.split())) == (left_out > 0)
        if left_out < len(gone):
            assert shown_columns(printed(made(), least - 1)) == [name for name in rest if name != gone[left_out]]
    whole = printed(made(), 120)
    assert all(cell in whole for row in ROWS for cell in row)
    assert "a few words that may wrap" not in printed(made(), 119)


@pytest.mark.parametrize("width", range(40, 130))
def test_no_line_is_too_long_and_no_number_is_cut(width):
    text = printed(made(), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    numbers = {cell for row in ROWS for cell in row[1:5]}
    for cells in nonempty(row[1:5] for row in ROWS):
        assert cells[2] in text  # rank 0 is always there
        assert set(re.findall(r"[\d,]+\.?\d* ?(?:%|Gb/s|[kM]B)", text)) <= numbers


def test_where_nothing_more_can_go_digits_continue_on_the_next_line():
    text = printed(made(), 16)
    assert "".join(re.findall(r" ([\d,.%]+)$", text, re.MULTILINE)).endswith("1,123,448.8%")


def test_facts_wrap_their_prose():
    text = printed(terminal.facts("", [("longest path", "6 hops"), ("balance", "3.2, events of the busiest part")]), 40)
    assert [line.rstrip() for line in text.splitlines()] == [
        " longest path  6 hops",
        " balance       3.2, events of the",
        "               busiest part",
    ]


def test_rows_must_have_a_cell_for_each_column():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        terminal.FittedTable("", "a", "b").add_row("1")


RING = "ring:npus=4,rate=100Gbps,delay=1us"
COMMANDS = {
    "run": ("run", "{run}"),
    "collective": ("collective", "all-reduce", "-t", RING, "--sizes", "1KiB,1MiB", "--algorithm", "ring,direct"),
    "topology list": ("topology", "list"),
    "topology show": ("topology", "show", "rail-optimised:npus=16"),
    "net": ("net", "{out}"),
    "net controls": ("net", "controls"),
    "partition": ("partition", "{run}", "--parts", 2, "--all-methods"),
    "trace show": ("trace", "show", "{trace}"),
    "bench": ("bench", "permutation", "-t", "fat-tree:k=4", "--size", "4KiB", "--runs", 1),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_narrow_terminals_get_whole_numbers_and_pipes_all(nadi, write_run, step, tmp_path, monkeypatch, name):
    run = write_run([step] * 4)
    nadi("run", run, "--out", tmp_path / "out", "-q")
    words = {"run": run, "out": tmp_path / "out", "trace": tmp_path / "trace.0.et"}
    arguments = [str(word).format(**words) for word in COMMANDS[name]]
    piped = nadi.ok(*arguments)
    assert "not shown" not in piped.out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = nadi(*arguments).out
    assert "…" not in narrow
    tables = [line for line in narrow.splitlines() if line.startswith(" ")]
    assert max(map(cell_len, tables)) <= 80
    if name in {"run", "bench"}:  # what is measured is another figure each time
        return
    wide = set(piped.out.split())
    assert {word for line in tables for word in line.split() if re.search(r"\d", word)} <= wide


def test_tables_that_are_too_wide_say_so(nadi, write_run, step, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = " ".join(nadi("run", write_run([step] * 4), "-q").out.split())
    assert re.search(r"not shown: group, .*algbw \(a terminal \d+ columns wide or --out has all\)", shown)


def test_units_are_those_of_the_median():
    assert [terminal.time_unit([ps]).name for ps in (1, 999, 10**6 - 1, 10**6, 10**9, 10**12)] == [
        *("ns", "ns", "ns"),
        *("µs", "ms", "s"),
    ]
    assert terminal.time_unit([0, 0, 5 * 10**9]).name == "ms"
    assert terminal.time_unit([1, 2 * 10**6, 3 * 10**12]).name == "µs"
    assert terminal.time_unit([0]).name == terminal.time_unit([]).name == "µs"


def test_small_times_keep_two_digits():
    ms = terminal.time_unit([10**9])
    assert [terminal.in_unit(ps, ms) for ps in (40_146_587_000, 1_234_567 * 10**6, 10**7, 4_989_000, 12, 0)] == [
        *("40.147", "1,234.567", "0.010", "0.0050", "0.000000012", "0.000")
    ]


@given(st.integers(1, 2**62))
def test_times_read_back(time_ps):
    number, unit = terminal.time_text(time_ps).split()
    assert parse_time(f"{number.replace(',', '')}{unit}") == pytest.approx(time_ps, rel=5e-6)
    whole = number.partition(".")[0].replace(",", "")
    assert unit == "s" or len(whole) <= 4


@given(st.integers(1, 2**62))
def test_sizes_read_back_exactly(size):
    assert parse_bytes(terminal.size_text(size).replace(" ", "")) == size
    assert parse_bytes(terminal.buffer_text(size).replace(" ", "")) == pytest.approx(size, rel=6e-3)


def test_quantities():
    assert [terminal.rate_text(bps) for bps in (25_600 * 10**9, 100 * 10**9, 429_496_729_600, 1)] == [
        *("25.6 Tb/s", "100 Gb/s", "429.497 Gb/s", "1 b/s")
    ]
    assert [terminal.size_text(size) for size in (1 << 16, 1 << 30, 8, 1_500_000)] == [
        "64 KiB",
        "1 GiB",
        "8 B",
        "1.5 MB",
    ]
    assert [terminal.buffer_text(size) for size in (1 << 21, 33_578_496, 0)] == ["2 MiB", "33.58 MB", "0 B"]
    assert terminal.amount_text(401_890_000) == "401.89 MB"
    assert terminal.time_text(0) == "0 s"


def lab(colour):
    """CIELAB of sRGB, D65 (IEC 61966-2-1; CIE 15)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    x, y, z = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in rows)
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x / 0.95047, y, z / 1.08883))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_series_differ():
    assert len(COLOURS) >= 12
    for a, b in itertools.combinations((*COLOURS, "#dc1e1e", "#ffffff"), 2):
        assert sum((p - q) ** 2 for p, q in zip(lab(a), lab(b), strict=True)) ** 0.5 > 30, (a, b)
    looks = [series_style(number) for number in range(48)]
    assert len({(look.colour, look.dash) for look in looks}) == 48
    assert len({(look.colour, look.mark) for look in looks}) == 48
    assert not {look.dash for look in looks} & {look.expected_dash for look in looks}


def test_the_fabric_of_the_how_to_shows_the_oversubscription_that_its_page_says(nadi):
    page = (DOCS / "how-to" / "my-fabric.md").read_text()
    spec = re.search(r"^    nadi topology show (rail-optimised\S+)$", page, re.MULTILINE)[1]
    [ratio] = re.findall(r"`(\S+ at a leaf)`", page)
    assert re.search(rf"^ oversubscription +{ratio} *$", nadi("topology", "show", spec).out, re.MULTILINE)


def test_a_foreign_trace_shows_what_a_run_would_refuse(nadi, tmp_path):
    """Control dependencies on a node that is not there, and a cycle that they close; a schema in an attribute."""
    meta = et.metadata()
    meta.version = ""
    meta.attr.append(et.attribute("schema", "string", "1.0.1"))
    nodes = [et.comp_node(1, "a" * 60), et.comp_node(2, "b", deps=[1], duration_micros=1500)]
    nodes[0].ctrl_deps.extend([2, 7])
    et.write_trace(tmp_path / "t.0.et", meta, nodes)
    document = nadi("trace", "show", tmp_path / "t.0.et", "--json").document
    assert (document["version"], document["dangling_dependencies"]) == ("1.0.1", 1)
    assert (document["dropped_control_dependencies"], document["control_cycle"]) == (2, "1 -> 2 -> 1")
    shown = nadi("trace", "show", tmp_path / "t.0.et").out
    for text in (
        "schema version             1.0.1",
        "dangling dependencies      1, on nodes that the file lacks",
        "all 2 dropped: they close a cycle, 1 -> 2 -> 1",
        "--set workload.strict=false, drops them",
        "duration (ms)",
        "1.500",
        f"{'a' * 37}...",
    ):
        assert text in shown
    run = tmp_path / "run.toml"
    run.write_text(f'[workload]\ntraces = "t.0.et"\n[topology]\nspec = "{RING}"\n')
    refused = nadi.refuse("run", run, "-q")
    assert "(1 such dependencies)" in refused.err
    assert "--set workload.strict=false, drops such dependencies" in refused.err
    nadi.ok("run", run, "-q", "--set", "workload.strict=false")
