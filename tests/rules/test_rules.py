"""Each rule finds what it forbids, and has something to look at."""

import numpy as np
import pytest

from tests.rules import annotations, documents, doors, kernels, places, rows, sizes
from tests.rules.documents import Page
from tests.rules.sources import Source, engine, product


def said(found):
    return [(finding.line, finding.what) for finding in found]


def test_there_is_something_to_check():
    names = {function.name for source in engine() for function in kernels.kernels(source)}
    assert {"work", "window", "on_ack", "link_send", "mix"} <= names
    assert len(product()) > len(engine()) > 100
    assert len(rows.kinds()) > 60
    contributing = next(page for page in documents.pages() if page.path == documents.CONTRIBUTING)
    for section in (*documents.TABLES, "Adding to the engine"):
        assert len([*contributing.lines(section)]) > 10, section


def test_a_finding_is_one_line():
    (finding,) = places.misplaced([Source("nadi/a.py", "\nimport numba\n")], [places.PLACES[0]._replace(files=set())])
    assert str(finding).startswith("nadi/a.py:2: ")


@pytest.mark.parametrize("text", ["import numba.core", "def f():\n    from numba import njit"])
def test_numba_outside_of_its_files_is_found(text):
    rule = places.PLACES[0]._replace(files=set())
    assert len([*places.misplaced([Source("nadi/a.py", text)], [rule])]) == 1


def test_mpi_is_found_where_a_module_imports_it():
    rule = places.PLACES[1]
    assert [*places.misplaced([Source("a.py", "def f():\n    from mpi4py import MPI\n")], [rule])] == []
    assert len([*places.misplaced([Source("a.py", "from mpi4py import MPI\n")], [rule])]) == 1


@pytest.mark.parametrize("text", ["pa.array([1])", "pq.read_table(path)", 'table["a"].to_numpy()', "x.fill_null(0)"])
def test_conversions_that_import_pandas_are_found(text):
    rule = places.PLACES[-1]
    assert len([*places.misplaced([Source("nadi/a.py", text)], [rule])]) == 1


def test_a_file_that_has_lost_its_right_is_found():
    (finding,) = places.misplaced([Source("inputs/files.py", "")], [places.PLACES[2]])
    assert (finding.path, finding.line) == ("inputs/files.py", 1)


def test_namesakes_are_found():
    sources = [
        Source("et/a.py", "class A: ...\nclass _B: ..."),
        Source("et/checks/b.py", "class _B: ...\nclass A: ..."),
    ]
    sources += [Source(f"et/checks/{name}.py", "class TraceCheck: ...") for name in ("x", "y")]
    assert [finding[:2] for finding in places.shared_class_names(sources)] == [("et/a.py", 1), ("et/checks/b.py", 2)]


@pytest.mark.parametrize(
    "line",
    [
        'if network.fidelity == "packet": pass',
        'keys = {"fidelity": "closed-form"}',
        "raise ValueError('expected fidelity = \"analytical\"')",
        'model = fidelity("flow")',
        "x = settings.fidelity.collectives",
    ],
)
def test_a_model_that_is_named_is_found(line):
    source = Source("nadi/a.py", f'"""Not "packet" in a docstring."""\n{line}\n')
    assert [finding.line for finding in places.named_models(places.beside_models([source]))] == [2]


@pytest.mark.parametrize("path", ["pdes/fidelity/new.py", "nadi/importers/simai/a.py", "nadi/cli/importers/simai.py"])
def test_models_and_importers_name_models(path):
    importer, other = Source("nadi/importers/simai/a.py", ""), Source("nadi/cli/commands/run.py", "")
    assert places.beside_models([importer, other, Source(path, "")]) == [other]


def test_a_long_function_and_a_long_file_are_found():
    body = "    x = 0\n" * sizes.MOST_LINES_OF_A_FUNCTION
    text = f"class A:\n    def one(self): ...\n@hook\ndef two():\n{body}"
    assert [finding.line for finding in sizes.long_functions([Source("a.py", text)])] == [4]
    assert [*sizes.long_functions([Source("a.py", text.removesuffix("    x = 0\n"))])] == []
    lines = "\n" * sizes.MOST_LINES_OF_A_FILE
    assert [len([*sizes.long_files([Source("a.py", each)])]) for each in (lines, f"{lines}\n")] == [0, 1]


def test_untyped_functions_beside_kernels_are_found():
    source = Source("pdes/a.py", "@inline\ndef a(x): return x\ndef b(x: int): return x\ndef c() -> None: ...")
    assert said(annotations.untyped([source])) == [(3, "b has no types")]
    project = (
        '[[tool.mypy.overrides]]\nmodule = [\n    "nadi.pdes.b",\n    "nadi.compiling.compiler",\n'
        '    "nadi.compiling.primitives",\n]\ndisallow_untyped_defs = false\n'
    )
    assert said(annotations.wrongly_exempt([source], project)) == [
        (1, "nadi.pdes.a has kernels, add it to those that mypy spares"),
        (3, "nadi.pdes.b has no kernels, mypy must not spare it"),
        (1, "the modules that mypy spares are not in the order of the alphabet"),
    ]


def test_what_no_kernel_may_do_is_found():
    source = Source(
        "pdes/a.py",
        "own = seen_as(Kind)\nother = kind_of(Kind)\n"
        "@inline\ndef g(a, i):\n    b = np.zeros(3)\n    c = [1]\n    print(a)\n    a.sort()\n"
        "    own(a)[i].word = other(a)[i].word + a.own(i)\n    return a[i, -1] + state + CONSTANT\n",
    )
    assert sorted(what.removeprefix("kernel g ") for _, what in said(kernels.unfit([source]))) == [
        "calls other",
        "calls own",  # as an attribute
        "calls print",
        "calls sort",
        "calls zeros",
        "has a negative index",
        "makes a List",
        "reads other, which is no constant and no helper",
        "reads print, which is no constant and no helper",
        "reads state, which is no constant and no helper",
    ]


def test_imports_of_kernels_are_followed():
    source = Source(
        "pdes/a.py",
        "import os\nfrom nadi.pdes.core import state as s\nfrom nadi.pdes.core.state import INF\n"
        "from nadi.et import read_trace\n"
        "if TYPE_CHECKING:\n    from nadi.workload import Program",
    )
    assert [*kernels.imported(source)] == ["nadi.pdes.core.state", "nadi.pdes.core.state", "nadi.et"]
    kernel = Source("nadi/configuration/effects.py", "@inline\ndef a(x): return x")
    assert next(kernels.not_hashed([kernel])).path == "nadi/configuration/effects.py"


def test_imports_past_a_door_are_found():
    text = (
        "from nadi.topologies import Graph, registry\nfrom nadi.topologies.graph import Graph\n"
        "from nadi.topologies.clusters import find\nimport nadi.topologies.routing\nfrom nadi import topologies\n"
        "from nadi.topologies.clusters import own\ntopologies.Graph(topologies.hidden)"
    )
    sources = [Source("workload/a.py", text), Source("topologies/b.py", text)]
    found = [*doors.passed_by(sources, "topologies", {"topologies": {"Graph"}, "topologies.clusters": {"find"}})]
    assert [(each.path, each.line) for each in found] == [("workload/a.py", line) for line in (1, 2, 4, 6, 7)]


def test_doors_offer_what_they_define_and_what_they_import_of_their_folder():
    text = "import a\nfrom nadi.et.b import c as d, e\nfrom nadi.inputs import g\nF: int = 1\n_H = F\ndef i(): return e"
    assert doors.names_of(Source("et/j/__init__.py", text)) == ({"g", "F", "i"}, {"d", "e"}, {"d"})
    names = tuple(f"n{i}" for i in range(doors.MAX_NAMES))
    taking = Source("workload/a.py", "from nadi.et import more, less")
    for offered, wide in ((names[1:], 0), (names, 1)):
        door = (set(offered), {"more"}, set())
        assert [each.path for each in doors.too_wide([taking], "et", {"et": door})] == ["et/__init__.py"] * wide


def test_words_without_names_are_found():
    text = "a.b[i * WORDS + NEXT] = c[[state.UNA, i]] + d[i + j + 2 * SIDES] + e[i & MASK] + f(x)[:, AT]\ng[:MOST]"
    assert sorted(
        said(kernels.numbered_words([Source("a.py", text)], {("a.py", "c", "UNA"): "", ("*", "z", "*"): ""}))
    ) == [
        (1, "NOT_WORDS_OF_ROWS: nothing needs ('*', 'z', '*')"),
        (1, "[AT]: give the word a name (Row)"),
        (1, "b[NEXT]: give the word a name (Row)"),
    ]


def test_unpacked_words_are_found():
    (finding,) = kernels.unpacked([Source("a.py", "a = tag >> 44\nb = 1 << 20\nc = w1 << KIND_SHIFT")])
    assert finding.what.startswith("tag >> 44: ")
    packet = [source for source in engine() if source.path in kernels.PACKED]
    assert [*kernels.unpacked(packet)]


def test_wrong_calls_of_hooks_are_found():
    word = min(kernels.WORDS_OF_HOOKS)
    few = Source("a.py", f"hook = net.hooks.{word}\ncall_hook(hook, address{', 1' * 20})")
    first, *others = kernels.wrong_hook_calls([few])
    assert first.what.startswith(f"{word} gets 20 arguments, expected ")
    assert len(others) == len(kernels.WORDS_OF_HOOKS) - 1


def test_rows_of_tables_that_lead_nowhere_are_found():
    way = "| `{}` | `pdes/window.py` | runs | `{}` |"
    lines = [
        "## The path of a packet",
        "| function | a",
        "| --- | b",
        way.format("window", "take_in"),
        way.format("no", ""),
    ]
    lines += [way.format("window", "no"), "| no row |", "## Other", "| `no` |"]
    assert said(documents.wrong_ways(Page("A.md", "\n".join(lines)))) == [
        (5, "pdes/window.py has no function no"),
        (6, "window of pdes/window.py does not use no"),
        (7, "expected | `function` | `file` | what it does | `calls` |"),
    ]


def test_names_and_files_that_do_not_exist_are_found():
    page = Page(
        "docs/a.md", "[a](reference/interfaces.md#a) [b](no.md) pdes/no.py pdes/window.py pdes/NAME\n## B\n`no` `f`"
    )
    assert said(documents.missing_files(page)) == [
        (1, "the link no.md leads nowhere"),
        (1, "pdes/no.py does not exist"),
    ]
    of_plug_ins = Page("CONTRIBUTING.md", "et/checks/NAME.py et/no/NAME.py")
    assert said(documents.missing_files(of_plug_ins)) == [(1, "et/no/NAME.py does not exist")]
    unknown = documents.unknown_names(page, "B", [Source("a.py", "def f(): ...")])
    assert said(unknown) == [(3, "nothing in the engine is named no")]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (np.typing.NDArray[np.int32], "int32"),
        (np.typing.NDArray[np.bool_] | None, "bool or None"),
        (tuple[tuple[int, ...], ...], "tuple[tuple[int, ...], ...]"),
        (dict[str, np.ndarray], "dict[str, array]"),
    ],
)
def test_types_as_the_page_writes_them(annotation, expected):
    assert documents.spoken(annotation) == expected


def test_types_of_a_row():
    assert documents.split("int64[n+1], int32[]") == ["int64[n+1]", "int32[]"]
    assert documents.split("Mapping[str, tuple[int, ...]]") == ["Mapping[str, tuple[int, ...]]"]
    assert documents.as_declared("dict[str, int64[n]] or None", "dict[str, int64] or None")
    assert documents.as_declared("int64[n]", "array")
    assert not documents.as_declared("int64", "array")


def test_wrong_fields_are_found():
    lines = ["## topologies.TableRouting", "| nothing | int | of ours |"]
    found = said(documents.wrong_fields(Page("a.md", "\n".join(lines)), {"topologies.TableRouting", "et.TraceTable"}))
    assert (1, "et.TraceTable: described, or among STAGES, but not both") in found
    assert (2, "topologies.TableRouting has no field nothing") in found
    real = next(page for page in documents.pages() if page.path == documents.INTERFACES)
    wrong = real._replace(text=real.text.replace("int32[", "int64[", 1))
    assert len({finding.line for finding in documents.wrong_fields(wrong, documents.STAGES)}) == 1
