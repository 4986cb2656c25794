"""Compiles the kernels that tests need: python -m tests.kernels

`make test` does it beside the linters. Otherwise two workers of pytest-xdist would begin by compiling the same kernels.
"""

from nadi.pdes.warm_up import compile_all
from nadi.simulation.closed_forms.advancing.run import compile_closed_form

if __name__ == "__main__":
    compile_all()
    compile_closed_form()
