# Every target sets up .venv by itself if need be. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One process a core; two where that cannot be told.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench docs clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	@touch $@

install: $(READY) ## make .venv with gradxform, all four frameworks and the tools

demo: $(READY) ## train one network in three frameworks, with and without the chain; writes demo.png
	$(BIN)/gradxform demo

test: $(READY) ## the whole suite and the doctests, in all frameworks
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(READY) ## format, lint, types, and the built wheel in an empty folder
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider --no-header tests/release.py

bench: $(READY) ## time gradxform beside the frameworks' own functions
	$(BIN)/gradxform bench

docs: $(READY) ## build the site into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
