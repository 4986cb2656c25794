import pytest

from nadi import inputs


class OwnError(ValueError):
    pass


@pytest.mark.parametrize(
    ("problem", "also", "said"),
    [
        (FileNotFoundError(2, "No such file or directory"), (), "a.txt: No such file or directory; expected a poem"),
        (OSError("lost"), (), "a.txt: lost; expected a poem"),
        (ValueError("wrong"), (ValueError,), "a.txt: wrong; expected a poem"),
        (OwnError("b.txt: told already"), (ValueError,), "b.txt: told already"),
    ],
)
def test_problems_with_files_become_errors_of_one_line(problem, also, said):
    with pytest.raises(OwnError) as error, inputs.refusing("a.txt", "a poem", OwnError, *also):
        raise problem
    assert str(error.value) == said


def test_other_errors_pass():
    with pytest.raises(ValueError, match=r"^wrong$"), inputs.refusing("a.txt", "a poem", OwnError):
        raise ValueError("wrong")
