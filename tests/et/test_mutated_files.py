"""A few hundred mutated files; `python -m tests.et.fuzz_files` tries ten thousand."""

from tests.et.mutations import folder_for, of_seed, tried

FILES = 240


def test_mutated_files_are_read_rightly_or_refused_in_one_line(tmp_path):
    complaints, were_read = [], 0
    for seed in range(FILES):
        said, was_read = tried(seed, folder_for(tmp_path))
        were_read += was_read
        if said:
            complaints.append(f"seed {seed} ({of_seed(seed)[0]}): {said}")
    assert not complaints
    assert FILES // 20 < were_read < FILES  # some changes leave a good file, most do not


def test_files_of_a_seed_are_always_the_same_and_of_all_kinds():
    made = [of_seed(seed) for seed in range(200)]
    assert made == [of_seed(seed) for seed in range(200)]
    assert {name.split(".", 2)[2] for name, _ in made} == {
        kind + end for kind in ("et", "json", "txt", "goal") for end in ("", ".gz")
    }
