# Two commands on a fresh machine with Python ≥ 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
# Bytecode is made when a module is first imported, not for all of every package: it halves the installation.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable

.PHONY: demo test test-slow lint format bench clean

demo: $(READY)
	$(BIN)/retrace demo --force

test: $(INSTALLED)
	$(BIN)/pytest -m "not slow" -n auto --dist loadfile

test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow -n auto --dist load

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/asv machine --yes
	$(BIN)/asv run --python $(CURDIR)/$(BIN)/python --quick --show-stderr

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(INSTALLED): $(READY)
	$(INSTALL) ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) retrace-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
