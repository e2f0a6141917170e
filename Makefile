# Everything runs inside .venv, which the first target that needs it creates.
# `make test` is what a change must pass; `make test-all` adds what takes long, and lit itself.

# The newest of these that is Python 3.11 or later; `make PYTHON=...` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
JOBS ?= 2

.DEFAULT_GOAL := test
.PHONY: venv demo test unit test-all check coverage lit docs bench format clean

venv: $(STAMP)

# Installed again whenever pyproject.toml changes.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or later is needed (make PYTHON=...)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
		echo "make: $(PYTHON) cannot create environments; install its venv package" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m elk_ir.tools.demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The types are checked beside the tests, which leave a core idle at times.
test: $(STAMP)
	@$(MAKE) -j2 check unit

unit: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations 15 -m "not slow" tests lit_tests

test-all: check
	$(BIN)/python -m pytest -q -n $(JOBS) tests lit_tests
	$(BIN)/lit -q -j $(JOBS) lit_tests

# Lines and branches that the tests of `make test` run, by package; coverage.json has every line.
coverage: $(STAMP)
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -q -n $(JOBS) -m "not slow" tests lit_tests
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q
	$(BIN)/python tests/coverage_table.py coverage.json

lit: $(STAMP)
	$(BIN)/lit -j $(JOBS) lit_tests

# Pages of dialects and passes, from the code; a test fails when they are not current.
docs: $(STAMP)
	$(BIN)/python -m elk_ir.tools.generate_docs

bench: $(STAMP)
	$(BIN)/python benchmarks/performance.py

# Random models on random chips; failing cases go to fuzz-failures/.
FUZZ_SECONDS ?= 600
SEED ?= 1
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(SEED)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .coverage* coverage.json build dist *.egg-info
	find lit_tests -name Output -type d -prune -exec rm -rf {} +
