import pytest

from nadi import et
from nadi.et.formats import chosen, format_of, formats
from tests.nonempty import nonempty


def test_every_format_has_what_the_folder_asks_for():
    for name, module in nonempty(formats().items()):
        assert module.TITLE, name
        assert hasattr(module, "read") or hasattr(module, "write")
        assert hasattr(module, "read") == hasattr(module, "recognises")
        assert hasattr(module, "write") == hasattr(module, "names")


def test_chakra_traces_are_recognised_and_written_as_they_were_read(tmp_path):
    gather = et.coll_node(2, "y", et.CollectiveCommType.ALL_GATHER, 5, deps=[1])
    nodes = [et.comp_node(1, "x", duration_micros=3), gather]
    for npu in (0, 11):
        et.write_trace(tmp_path / f"a.{npu}.et", et.metadata(), nodes)
    (tmp_path / "groups.json").write_text('{"1": [0, 11]}')
    chakra = formats()["chakra"]
    assert format_of(tmp_path) == format_of(tmp_path / "a.11.et") == "chakra"
    traces = chakra.read([tmp_path], {})
    made = tmp_path / "made"
    made.mkdir()
    chakra.write(traces, made, "b", {})
    assert sorted(file.name for file in made.iterdir()) == sorted(chakra.names(traces, "b"))
    assert (made / "b.11.et").read_bytes() == (tmp_path / "a.11.et").read_bytes()
    assert et.read_groups(made / "groups.json") == {"1": (0, 11)}


def test_traces_of_two_sets_in_a_folder_are_refused(tmp_path):
    for name in ("a.0.et", "b.1.et"):
        et.write_trace(tmp_path / name, et.metadata(), [et.comp_node(1, "x")])
    with pytest.raises(et.TraceError, match=r"b\.1\.et: another name than a\.0\.et, expected one trace per NPU"):
        formats()["chakra"].read([tmp_path], {})


def test_what_no_format_knows_is_named(tmp_path):
    (tmp_path / "page.html").write_text("<html></html>")
    with pytest.raises(et.TraceError, match=r"page\.html: is text, expected one of: .*chakra "):
        format_of(tmp_path / "page.html")
    with pytest.raises(et.TraceError, match="no such file or folder"):
        format_of(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "--from 'nonsense': expected one of"),
        ("chakra:a=b", "found 'a=b', expected each once as option=value, of strict"),
    ],
)
def test_a_wrong_choice_says_what_there_is(text, says):
    with pytest.raises(et.TraceError, match=says):
        chosen(text, "read", "--from")
    assert chosen("chakra", "write", "--to") == ("chakra", formats()["chakra"], {})
