# Every target sets up .venv in the clone from nothing but Python >= 3.11 and make: `make demo` and `make bench` with what
# users need, the others with the tools of developers, too.
# The stamps make it cheap to repeat: only a change of pyproject.toml installs again.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.installed-tools
DEMO := demo-out
WORKERS ?= 2
PYTEST ?= --durations=25
PARALLEL = -n $(WORKERS) --dist worksteal
SECONDS ?= 600
FILES ?= 10000
RESULTS ?= 10000
CHECKPOINTS ?= 300
# Tests of pairwise samples, of which `make fuzz` runs every case.
PRODUCTS = $(shell grep -rl --include='test_*.py' 'from tests.samples import' tests)
# All cases of the others take hours.
SMALL_PRODUCTS = $(filter-out tests/parallel/% tests/features/test_shift.py,$(PRODUCTS))
# Recorded runs that take seconds as plain Python.
SMALL_RUNS := (matrix or flows) and not (driven or nvls or sprayed or symbolic or crowd)
# Hundreds of processes of the tests import the project: they share its compiled modules.
unexport PYTHONDONTWRITEBYTECODE
BOUNDS_CACHE ?= $(HOME)/.cache/nadi/configuration/bounds-check

.PHONY: help setup demo test test-more test-all coverage fuzz fuzz-bounds fuzz-files fuzz-results fuzz-checkpoints kernels hooks entries lint types style imports rules bench docs clean

help:
	@echo "make setup   install what users need"
	@echo "make demo    install, make traces, simulate them, print the report"
	@echo "make test    install tools, lint, run the tests (WORKERS=2 beside each other)"
	@echo "make test-more  all cases of sampled products, SLURM, two hosts, and what takes long"
	@echo "make test-all  both"
	@echo "make coverage  lines that the tests execute, kernels included"
	@echo "make fuzz    all pairs of features, of situations of named machines, all cases of sampled products, then fresh random examples for SECONDS=600"
	@echo "make fuzz-bounds  all pairs of features with kernels that check each index"
	@echo "make fuzz-files  FILES=10000 mutated traces, read, checked and converted"
	@echo "make fuzz-results  RESULTS=10000 damaged results, plans, traces and files of other simulators, read by every command"
	@echo "make fuzz-checkpoints  CHECKPOINTS=300 exchanged, truncated and forged checkpoints, from which runs continue"
	@echo "make lint    ruff, mypy, import-linter, rules about sources and documents, budgets of lines (tests/rules)"
	@echo "make bench   packet-hops per second on this machine"
	@echo "make docs    the pages of docs/ as a site in site/, without the network"
	@echo "make clean   remove .venv and what the demo made"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "nadi needs Python 3.11 or later; say make PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable .
	@touch $@

$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[mpi,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/nadi workload transformer --npus 16 --layers 4 --hidden 1024 --heads 16 -o $(DEMO)/traces
	$(BIN)/nadi run scripts/demo.toml --out $(DEMO)

# Kernels are compiled beside the linters, two of these at a time; then all tests but those of `test-all`.
test: $(TOOLS)
	$(MAKE) --no-print-directory --jobs=2 --output-sync kernels lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not full" $(PYTEST)

# Tests of SLURM, whose daemons and times need the machine to themselves, come last, one after another.
test-more: $(TOOLS)
	NADI_FULL_PRODUCTS=1 $(BIN)/python -m pytest $(PARALLEL) -m "not full" $(PYTEST) $(SMALL_PRODUCTS)
	$(BIN)/python -m pytest $(PARALLEL) -m full $(PYTEST) --ignore=tests/slurm
	$(BIN)/python -m pytest $(PYTEST) tests/slurm

test-all:
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-more

# Compiled kernels are invisible to coverage, so small recorded runs are repeated without the compiler.
coverage: $(TOOLS)
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(PARALLEL) -m "not full" $(PYTEST)
	-$(BIN)/coverage run -m pytest -m full $(PYTEST)
	-NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q tests/digests/test_recorded.py -k "$(SMALL_RUNS)"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

fuzz: $(TOOLS)
	$(BIN)/python -m tests.features
	$(BIN)/python -m tests.features.situations
	$(BIN)/python -m tests.features.situations.changes
	NADI_FULL_PRODUCTS=1 $(BIN)/python -m pytest -q $(PRODUCTS)
	$(BIN)/python -m tests.features --seconds $(SECONDS) --restart
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

fuzz-bounds: $(TOOLS)
	NUMBA_BOUNDSCHECK=1 NADI_CACHE_DIR=$(BOUNDS_CACHE) $(BIN)/python -m tests.features

fuzz-files: $(TOOLS)
	$(BIN)/python -m tests.et.fuzz_files --files $(FILES)

fuzz-results: $(TOOLS)
	$(BIN)/python -m tests.damaged.fuzz_results --files $(RESULTS)

fuzz-checkpoints: $(TOOLS)
	$(BIN)/python -m tests.faults.fuzz_checkpoints --files $(CHECKPOINTS)

kernels: hooks entries

hooks: $(TOOLS)
	$(BIN)/python -m tests.kernels hooks

entries: $(TOOLS)
	$(BIN)/python -m tests.kernels entries

lint: types style imports rules

types: $(TOOLS)
	$(BIN)/mypy

style: $(TOOLS)
	$(BIN)/ruff check .

imports: $(TOOLS)
	$(BIN)/lint-imports

rules: $(TOOLS)
	$(BIN)/python -m tests.rules

bench: $(STAMP)
	$(BIN)/nadi bench permutation
	$(BIN)/nadi bench allreduce

docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) $(DEMO) site
