# Each target sets up its own virtual environment; nothing needs to be installed by hand.

PYTHON ?= python3
PYTHON312 ?= python3.12
VENV ?= .venv
VENV312 ?= .venv312
BIN := $(VENV)/bin
# Versions of all packages; without them, the newest that pyproject.toml allows: `make CONSTRAINTS= VENV=.venv-newest test`.
CONSTRAINTS ?= constraints.txt
# Also for what pip builds: newer versions of pip read the second name, older ones the first.
PIP_INSTALL = PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) \
  $(1)/bin/pip install --quiet --disable-pip-version-check
SOURCES := anytime_jax benchmarks configs lab tests
DEFAULT := -n 2 --dist loadfile -m "not slow and not oracle"
# glibc: back large arrays with huge pages. On a CPU an update of benchmarks/small.py takes 62 ms, not 83.
HUGE_PAGES := GLIBC_TUNABLES=glibc.malloc.hugetlb=1

.PHONY: quickstart test test-lab test-all test-faults test-py312 bench test-compilers lint lint-style lint-types lint-scripts lint-layers format golden docs compilers dist constraints clean help

help:  ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

quickstart: $(VENV)/.installed  ## Train a small anytime model on text that is already here
	$(HUGE_PAGES) $(BIN)/anytime train --config=quickstart

test: $(VENV)/.installed-dev  ## Run the default tests of the trainer
	$(BIN)/python -m pytest $(DEFAULT)

test-lab: $(VENV)/.installed-dev  ## Run the default tests of the laboratory
	cd lab && $(abspath $(BIN))/python -m pytest $(DEFAULT)

test-all: $(VENV)/.installed-dev  ## Run every test of both, the long ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not faults"
	cd lab && $(abspath $(BIN))/python -m pytest -n 2 --dist loadfile

test-faults: $(VENV)/.installed-dev $(VENV312)/.installed-dev  ## Make 1,000 random faults on both Pythons, and print what came of them
	$(BIN)/python -m pytest tests/faults -m faults -s
	$(VENV312)/bin/python -m pytest tests/faults -m faults -s

test-py312: $(VENV312)/.installed-dev  ## Run the default tests of both on Python 3.12 with jax 0.11
	$(VENV312)/bin/python -m pytest $(DEFAULT)
	cd lab && $(abspath $(VENV312))/bin/python -m pytest $(DEFAULT)

bench: $(VENV)/.installed-dev  ## Time this tree's parts in units of a matrix product, beside the last accepted times
	$(HUGE_PAGES) $(BIN)/python -m lab.benchmarks.ratios $(OPTIONS)

test-compilers: compilers $(VENV)/.installed-dev  ## Compile updates for absent devices, and hold their costs to those recorded
	$(BIN)/python -m benchmarks.program_costs
	cd lab && $(abspath $(BIN))/python -m pytest tests/compilation/test_real_compilers.py

lint: lint-style lint-types lint-scripts lint-layers  ## Check style, types, scripts, workflows and the layering

lint-style: $(VENV)/.installed-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

lint-types: $(VENV)/.installed-dev
	$(BIN)/pyright

lint-scripts: $(VENV)/.installed-dev
	$(BIN)/shellcheck launch/*.sh launch/*.sbatch
	$(BIN)/actionlint

lint-layers: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/test_layering.py
	cd lab && $(abspath $(BIN))/python -m pytest tests/test_public_imports.py

format: $(VENV)/.installed-dev  ## Format the sources
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

golden: $(VENV)/.installed-dev  ## Write what tests/golden has of the shipped runs: their settings and parameters
	PYTHONPATH=.:tests/helpers JAX_PLATFORMS=cpu $(BIN)/python tests/helpers/golden.py

docs: $(VENV)/.installed-docs  ## Build the documentation as a site, in site/
	$(BIN)/jupyter-nbconvert --log-level=WARN --to=markdown docs/tutorials/anytime_run.ipynb
	$(BIN)/zensical build --clean --strict -f mkdocs.yml

compilers: .venv-tpu/.installed .venv-cuda/.installed  ## The compilers for TPUs and GPUs (2.7 GB)

# What is not asked to change stays as it is; `make constraints UPGRADE=--upgrade` takes all that is new.
PROJECTS := '-e .[dev,docs,gpu,release,tpu]' '-e lab'
dist: $(VENV)/.installed-release  ## Build the distributions as they are uploaded, in dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist lab
	$(BIN)/twine check --strict dist/*

constraints: $(VENV)/.installed-release  ## Write constraints.txt, the versions that are installed and tested
	printf '%s\n' $(PROJECTS) | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	  --fork-strategy fewest --no-annotate --no-emit-package anytime_jax --no-emit-package anytime_lab \
	  --custom-compile-command 'make constraints' $(UPGRADE) - -o constraints.txt >/dev/null

clean:  ## Remove the virtual environments; runs and data stay
	rm -rf $(VENV) $(VENV312) .venv-tpu .venv-cuda .venv-maxtext site .cache

# The first command of a recipe fails early and says what to do where Python is too old or bare.
$(VENV)/.installed: pyproject.toml lab/pyproject.toml $(CONSTRAINTS)
	$(call make_venv,$(PYTHON),$(VENV))
	$(call PIP_INSTALL,$(VENV)) -e . -e lab
	touch $@

$(VENV)/.installed-dev: pyproject.toml lab/pyproject.toml $(CONSTRAINTS)
	$(call make_venv,$(PYTHON),$(VENV))
	$(call PIP_INSTALL,$(VENV)) -e '.[dev]' -e lab
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(call PIP_INSTALL,$(VENV)) -e '.[docs]'
	touch $@

$(VENV)/.installed-release: $(VENV)/.installed
	$(call PIP_INSTALL,$(VENV)) -e '.[release]'
	touch $@

$(VENV312)/.installed-dev: pyproject.toml lab/pyproject.toml $(CONSTRAINTS)
	$(call make_venv,$(PYTHON312),$(VENV312))
	$(call PIP_INSTALL,$(VENV312)) -e '.[dev]' -e lab
	touch $@

.venv-tpu/.installed: EXTRA := tpu
.venv-cuda/.installed: EXTRA := cuda12
.venv-%/.installed: pyproject.toml lab/pyproject.toml $(CONSTRAINTS)
	$(call make_venv,$(PYTHON),.venv-$*)
	$(call PIP_INSTALL,.venv-$*) -e . -e lab 'jax[$(EXTRA)]'
	touch $@

define make_venv
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "error: $(1) must be Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
@$(1) -m venv $(2) || \
  { echo "error: $(1) cannot make virtual environments; on Debian: apt install python3-venv"; exit 2; }
endef
