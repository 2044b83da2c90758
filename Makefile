# Two commands on a fresh machine with Python ≥ 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WARM := $(VENV)/.warm
INSTALLED := $(VENV)/.installed
# Bytecode is made when a module is first imported, not for all of every package: it halves the installation.
# Where the environment forbids writing it, each of the hundreds of processes that tests start would make all of it again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable


# With the lowest versions that pyproject.toml allows: what meets other libraries most.
OLD := .venv-minimum
OLD_TESTS ?= tests/io tests/panel tests/cli/test_door.py tests/cli/test_cli_tables.py tests/test_result.py tests/test_recovery.py tests/test_sklearn.py tests/test_lazy.py tests/test_anndata.py

.PHONY: demo test test-statistics test-minimum coverage calibration mutants lint format bench peers docs docs-numbers release-check clean

demo: $(WARM)
	$(BIN)/retrace demo --force

# Workers take tests from each other when they run out, so that all are busy to the end; kernels compiled by one are
# cached in __pycache__ for all.
test: $(INSTALLED)
	$(BIN)/pytest -n auto --dist worksteal

# Many seeds, every combination, the paper's sizes: before a release, and where a change touches statistics.
test-statistics: $(INSTALLED)
	$(BIN)/pytest -m statistics -n auto --dist worksteal
	$(BIN)/pytest properties -n auto --dist worksteal --hypothesis-profile many

# Lines of the sources that the fast tests run; compiled kernels are not seen.
coverage: $(INSTALLED)
	$(BIN)/pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered --cov-fail-under=92

# The figures of docs/calibration.md and the level of the direction test, again: hours on two cores.
SEEDS ?= 75000:75200
RECORD := OMP_NUM_THREADS=1 $(BIN)/python .ci/results.py --record
calibration: $(INSTALLED)
	$(RECORD) step_coverage python studies/interval_coverage.py --steps --seeds $(SEEDS) --jobs 2
	$(RECORD) few python studies/few.py --seeds $(SEEDS) --jobs 2
	$(RECORD) few_rest python studies/few.py --rest --seeds $(SEEDS) --jobs 2
	$(RECORD) sbc python studies/sbc.py --seeds $(SEEDS) --jobs 2 --counts docs/results/sbc_counts.json --figure docs/sbc.svg
	$(RECORD) level python studies/level.py --seeds $(SEEDS) --jobs 2
	$(BIN)/python .ci/results.py

mutants: $(INSTALLED)
	$(BIN)/python studies/mutants.py --minutes 20

test-minimum:
	$(PYTHON) -m venv $(OLD)
	$(PYTHON) .ci/minimum.py > $(OLD)/floors.txt
	$(OLD)/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint $(OLD)/floors.txt \
		--editable ".[formats,office]" polars pytest hypothesis array-api-strict
	$(OLD)/bin/pytest $(OLD_TESTS)

# The site, in docs/_build/html: every page with code and every example is run, a warning is an error, spelling is checked, links are followed.
SITE := docs/_build
docs: $(READY)
	$(INSTALL) ".[docs]"
	$(BIN)/codespell
	$(BIN)/sphinx-build -W --keep-going -q -b html -d $(SITE)/trees docs $(SITE)/html
	$(BIN)/python .ci/links.py $(SITE)/html
	@echo "Open $(SITE)/html/index.html"

# Runs the cheap commands behind figures of the README and the docs, and compares.
docs-numbers: $(INSTALLED)
	$(BIN)/python .ci/figures.py

# Wheel and sdist, each installed into a clean environment that knows nothing of this folder, and tried there.
release-check: $(READY)
	PYTHON=$(PYTHON) .ci/release-check

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file .ci/scripts.ini

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/asv machine --yes
	$(BIN)/asv run --python $(CURDIR)/$(BIN)/python --quick --show-stderr

# What users would pick instead, side by side; docs/performance.md.
peers: $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[peers]"
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/statespace.py --seeds 97000:97001

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(WARM): $(READY)
	$(BIN)/retrace warmup
	touch $@

$(INSTALLED): $(READY)
	$(INSTALL) ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(OLD) $(SITE) dist retrace-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
