"""Run as a script: a kernel and a hook use indices of an array that it does not have. Says which the kernel refused."""

import sys
from typing import Annotated, NamedTuple

import numpy as np

from nadi.pdes.core.jit import Directory, call_hook, hook, hook_address, kernel, reader


class Words(NamedTuple):
    words: Annotated[np.ndarray, np.int64]


words_at = reader(Words)


@hook
def word(address, i):
    return words_at(address).words[i]


@kernel
def word_by_hook(called, address, i):
    return call_hook(called, address, i)


@kernel
def word_at(address, i):
    return words_at(address).words[i]


if __name__ == "__main__":
    three = Directory(Words(np.arange(3)))
    assert word_by_hook(hook_address(word), three.address, 2) == word_at(three.address, 2) == 2
    for index in (3, -1):
        try:
            word_at(three.address, index)
        except IndexError:
            sys.stdout.write(f"refused {index}\n")
        word_by_hook(hook_address(word), three.address, index)
