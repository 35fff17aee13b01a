# Two commands do everything on a fresh machine with Python 3.11+ and a package index:
#   make gate   the main job (profile pr): verdict, report, replayable counterexamples
#   make test   lint, types, import contracts and every suite
# Both create .venv when it is missing and install again only when pyproject.toml or constraints.txt changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
GATE_ARGS   ?=
PYTEST_ARGS ?= -n auto

.DEFAULT_GOAL := help
.PHONY: help venv gate test lint
.SILENT:

help:
	echo 'make gate   run the gate (profile pr) and write reports/<commit>/; GATE_ARGS="--profile quick" passes options on'
	echo 'make test   ruff, mypy --strict, import contracts, every test suite; PYTEST_ARGS="-n 4 properties" passes options on'
	echo 'make lint   the first three of these'
	echo 'make venv   create or refresh $(VENV); PYTHON=/path/to/python3.11 chooses the interpreter'

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "assay needs Python 3.11 or newer, found %d.%d at %s; say make PYTHON=/path/to/python3.11" % (v[0], v[1], sys.executable))'
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo 'creating $(VENV) with '"$$($(PYTHON) --version)"; \
		$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	echo 'installing assay and its tools into $(VENV), pinned by constraints.txt (two or three minutes the first time)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,model,reference,grammar,chaos,connector]'
	touch $(STAMP)

gate: $(STAMP)
	# Only a profile with the suite of the real model fetches it. Where it can not be had that suite is unknown, and says why.
	$(BIN)/assay gate --profile pr --fetch $(GATE_ARGS)

lint: $(STAMP)
	echo 'ruff check'
	$(BIN)/ruff check --quiet .
	echo 'ruff format --check'
	$(BIN)/ruff format --quiet --check .
	echo 'mypy --strict'
	$(BIN)/mypy
	echo 'import contracts'
	$(BIN)/lint-imports

# pytest comes last, so that its closing line is the last thing printed.
test: lint
	echo 'pytest $(PYTEST_ARGS)'
	$(BIN)/python -m pytest $(PYTEST_ARGS)
