"""Files appear under their names when they are complete, and nothing else is written to on the way."""

import errno
import os

import pytest

from nadi.inputs import whole_file, write_whole


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("before")
    with whole_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.html"]


def test_nothing_stays_of_what_is_not_finished(tmp_path):
    path = tmp_path / "a.html"
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"half", "no bytes"])
    assert [*tmp_path.iterdir()] == []


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path, monkeypatch):
    """Neither is one whose random name somebody has guessed."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0123")
    for name in (".a.html.part", ".a.html.0123.part"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(FileExistsError) as caught:
        write_whole(tmp_path / "a.html", "page")
    assert caught.value.filename == str(tmp_path / "a.html")
    (tmp_path / ".a.html.0123.part").unlink()
    write_whole(tmp_path / "a.html", "page")
    assert (tmp_path / "a.html").read_text() == "page"
    assert precious.read_text() == "precious"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a.html").symlink_to("precious")
    write_whole(tmp_path / "a.html", "page")
    assert not (tmp_path / "a.html").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_new_file_has_the_usual_mode(tmp_path):
    old = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("no/a", errno.ENOENT, "No such file or directory"),
        ("folder", errno.EISDIR, "a folder"),
        ("fifo", errno.EINVAL, "a FIFO"),
        ("x" * 300, errno.ENAMETOOLONG, "File name too long"),
    ],
)
def test_what_cannot_be_written_names_the_file(tmp_path, name, number, said):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=said) as caught:
        write_whole(tmp_path / name, "x")
    assert caught.value.errno == number
    assert caught.value.filename == str(tmp_path / name)
