# Every target sets up .venv by itself if need be. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One process a core; two where that cannot be told.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

# What runs the examples of the pages.
EXAMPLES := tests/test_docs.py tests/test_examples.py tests/test_examples_training.py tests/test_migration.py \
  tests/test_migrating.py tests/test_mlx_backend.py

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

check: $(READY) ## format, lint, types, the built wheel in an empty folder, and the site, strictly
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider --no-header tests/release.py tests/built_site.py

bench: $(READY) ## time gradxform beside the frameworks' own functions
	$(BIN)/gradxform bench

docs: $(READY) ## run every example, and build the site into docs/_build/html; a warning is an error
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(EXAMPLES)
	$(BIN)/python -m pytest -q -p no:cacheprovider --no-header tests/built_site.py
	@echo "the site is docs/_build/html/index.html"

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
