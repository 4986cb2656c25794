"""The registry of plug-ins: names, files of users, packages, and what is wrong with them in one line."""

import re
import sys
from pathlib import Path

import pytest

from nadi import topologies
from nadi.inputs import plug_ins
from nadi.workload.collectives import choose, default_algorithm
from nadi.workload.errors import WorkloadError
from tests.nonempty import nonempty

FINE = "def assign(graph, clusters, parts):\n    return None\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make a package whose entry points are known, with files by their names; a second call makes a second package."""
    monkeypatch.setattr(plug_ins, "LOADED", {})

    def make(package, entry_points, **files):
        folder = tmp_path / "site"
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{group}]\n{entry}\n" for group, entry in entry_points]
        (info / "entry_points.txt").write_text("".join(lines))
        (folder / package).mkdir()
        for name, text in {"__init__.py": "", **files}.items():
            (folder / package / name).write_text(text)
        monkeypatch.syspath_prepend(folder)
        forget()

    def forget():
        plug_ins._entry_points.cache_clear()
        plug_ins._installed.cache_clear()

    yield make
    forget()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"mine", "others"}]:
        del sys.modules[name]


def test_every_kind_has_plug_ins_of_nadi():
    for kind, declared in nonempty(plug_ins.KINDS.items()):
        files = plug_ins.own_files(kind)
        assert len(files) == len(set(files.values())) > 0, kind
        assert {*declared.renamed.values()} <= files.keys(), kind


def test_the_guide_lists_all_kinds_with_what_a_file_needs():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "plug-in.md").read_text()
    rows = re.findall(r"^\| ([\w ]+) \| (.*?) \| .* \| `nadi\.(\w+)` \|$", page, re.MULTILINE)
    assert {kind: group for kind, _, group in rows} == {kind: kind.lower().replace(" ", "_") for kind in plug_ins.KINDS}
    for kind, defines, _ in rows:
        missing = [name for name in plug_ins.KINDS[kind].needs if f"`{name}" not in defines]
        assert missing == [] or "(congestion-control.md)" in defines, kind


@pytest.mark.parametrize("kind", [kind for kind, declared in plug_ins.KINDS.items() if declared.needs])
def test_each_file_of_nadi_has_what_its_kind_needs(kind):
    for name in nonempty(plug_ins.own_files(kind)):
        module = plug_ins.module(kind, name)
        assert [needed for needed in plug_ins.KINDS[kind].needs if not hasattr(module, needed)] == []


def test_a_file_is_loaded_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FINE)
    path, folders = str(tmp_path / "mine.py"), [*sys.path]
    module = plug_ins.module("partition method", "mine.py")
    assert module is plug_ins.module("partition method", path)
    assert sys.path == folders
    assert "mine" not in sys.modules
    assert sorted(tmp_path.iterdir()) == [tmp_path / "mine.py"]


def test_a_file_that_changes_is_loaded_again(tmp_path):
    path = tmp_path / "mine.py"
    seen = []
    for text in (FINE, f"{FINE}VALUE = 2\n", FINE):
        path.write_text(text)
        module = plug_ins.module("partition method", str(path))
        seen.append((hasattr(module, "VALUE"), plug_ins.LOADED[str(path)]))
    assert [changed for changed, _ in seen] == [False, True, False]
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file or directory"),
        ("x = ", "SyntaxError: invalid syntax"),
        ("x = 1\n", "no assign"),
        ("raise OSError('of its own')\n", "OSError: of its own"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, complaint):
    path, known = tmp_path / "wrong.py", {*sys.modules}
    if text is not None:
        path.write_text(text)
    with pytest.raises(plug_ins.PlugInError) as refused:
        plug_ins.module("partition method", str(path))
    assert str(refused.value).startswith(f"{path}: {complaint}")
    assert str(refused.value).endswith("; expected a partition method with assign")
    assert "\n" not in str(refused.value)
    assert len({*sys.modules} - known) == (text == "x = 1\n")


def test_a_plug_in_of_a_package(install):
    install("mine", [("nadi.partition_method", "halves = mine.halves")], **{"halves.py": FINE})
    assert plug_ins.names("partition method") == ["auto", "blocks", "by-pod", "halves", "metis", "scatter"]
    assert "mine.halves" not in sys.modules
    assert plug_ins.module("partition method", "halves").__name__ == "mine.halves"
    file = plug_ins.outside_file("partition method", "halves")
    assert (file.name, plug_ins.outside_file("partition method", "metis")) == ("halves.py", None)


def test_a_toml_file_of_a_package(install):
    install("mine", [("nadi.gpu", "h300 = mine:h300.toml")], **{"h300.toml": "name = 'h300'\n"})
    assert "h300" in plug_ins.names("GPU")
    assert plug_ins.toml_file("GPU", "h300").read_text() == "name = 'h300'\n"
    assert plug_ins.outside_file("GPU", "h300") == plug_ins.toml_file("GPU", "h300")


def test_a_name_that_two_have_is_refused(install):
    install("mine", [("nadi.partition_method", "metis = mine.halves")], **{"halves.py": FINE})
    with pytest.raises(
        plug_ins.PlugInError, match=r"^partition method 'metis': found in Nadi and package mine 1\.0; e"
    ):
        plug_ins.module("partition method", "metis")
    assert plug_ins.module("partition method", "blocks")


@pytest.mark.parametrize(
    ("group", "spec", "complaint"),
    [
        ("topology", "dgx-h100:npus=8", "machine 'dgx-h100': found in Nadi and package mine 1.0 (topology)"),
        ("topology", "selene:gpus=8", "cluster 'selene': found in Nadi and package mine 1.0 (topology)"),
        ("machine", "ring:npus=8", "machine 'ring': found in package mine 1.0 and Nadi (topology)"),
        ("cluster", "ring:gpus=8", "cluster 'ring': found in package mine 1.0 and Nadi (topology)"),
    ],
)
def test_no_topology_has_the_name_of_a_machine_or_cluster(install, group, spec, complaint):
    value = "mine" if group == "topology" else "mine:own.toml"
    install("mine", [(f"nadi.{group}", f"{spec.partition(':')[0]} = {value}")], **{"own.toml": ""})
    topologies.clusters._named.cache_clear()  # other tests may have read it
    with pytest.raises(topologies.TopologyError, match=f"^{re.escape(complaint)}; expected one of this name$"):
        topologies.build(spec)
    assert topologies.build("switch:npus=4").npus == 4
    topologies.path_parameters.cache_clear()
    assert "path" in topologies.path_parameters(), "whatever packages call their plug-ins"


READER = """
from pathlib import Path
from nadi.topologies.builders import ring
from nadi.topologies.parameters import FilePath, Parameters
FILES = (".nodes", ".topo")
class Arguments(Parameters):
    path: FilePath
def build(arguments, name):
    return ring.build(ring.Arguments(npus=int(Path(arguments.path).read_text())), name)
"""


def test_a_topology_of_a_package_reads_files_of_another_program(install, tmp_path):
    (tmp_path / "six.nodes").write_text("6")
    (tmp_path / "six.topo").write_text("6")
    topologies.registry._readers.cache_clear()
    points = [("nadi.topology", "mine = mine.reader"), ("nadi.topology", "bad = mine.none")]
    install("mine", points, **{"reader.py": READER})
    try:
        graph = topologies.build(tmp_path / "six.nodes")
        assert (graph.npus, graph.name) == (6, str(tmp_path / "six.nodes"))
        with pytest.raises(topologies.TopologyError, match="expected one of nodes, tiers, podsize"):
            topologies.build(tmp_path / "six.topo")
    finally:
        topologies.registry._readers.cache_clear()


def test_a_machine_and_its_cluster_share_a_name(install):
    kinds = ("machine", "cluster")
    files = {f"{kind}.toml": plug_ins.own_files(kind)["gb200-nvl72"].read_text() for kind in kinds}
    install("mine", [(f"nadi.{kind}", f"mine = mine:{kind}.toml") for kind in kinds], **files)
    assert topologies.build("mine:npus=8").npus == topologies.build("mine:gpus=8").npus == 8


def test_what_a_package_does_wrong_names_the_package(install):
    points = ("nadi.partition_method", "bad = mine.bad"), ("nadi.partition_method", "none = mine.halves")
    install("mine", points[:1], **{"bad.py": "import nothing_of_this_name\n"})
    install("others", [(points[1][0], "empty = others")])
    with pytest.raises(
        plug_ins.PlugInError, match=r"^partition method 'bad' of package mine 1\.0: ModuleNotFoundError"
    ):
        plug_ins.module("partition method", "bad")
    with pytest.raises(
        plug_ins.PlugInError, match=r"'empty' of package others 1\.0: no assign; expected a partition me"
    ):
        plug_ins.module("partition method", "empty")


def test_a_wrong_package_disturbs_only_who_names_it(install):
    points = [("nadi.topology", "bad = mine.bad"), ("nadi.cluster", "worse = mine:none.toml")]
    install("mine", [*points, ("nadi.collective_algorithm", "bad = mine.bad")], **{"bad.py": "import nothing_here\n"})
    assert topologies.build("ring:npus=4").npus == 4
    assert topologies.build("small-a100:gpus=8").npus == 8
    assert default_algorithm("all-reduce") == choose("all-reduce", "ring").name == "ring"
    for spec in ("bad:npus=4", "worse"):
        with pytest.raises(topologies.TopologyError, match=r"mine"):
            topologies.build(spec)
    with pytest.raises(WorkloadError, match=r"^collective algorithm 'bad' of package mine 1\.0: ModuleNotFoundError"):
        choose("all-reduce", "bad")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(plug_ins.PlugInError) as refused:
        plug_ins.module("switch discipline", "wieghted")
    assert str(refused.value) == (
        "unknown switch discipline 'wieghted'; did you mean 'weighted'? known: strict, ets, weighted, or the path of a "
        "file NAME.py"
    )
