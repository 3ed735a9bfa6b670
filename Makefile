# Every target sets up .venv by itself if need be. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUICK := .cache/quick
# One process a core; two where that cannot be told.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help install demo quick test test-slow test-platform test-oldest test-newest soak mutants lint check size bench docs release clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY) $(QUICK)/.ready: pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[$(if $(filter $(QUICK)/%,$@),quick,dev)]'
	@touch $@

install: $(READY) ## make .venv with gradxform, all four frameworks and the tools

demo: $(READY) ## train one network in three frameworks, with and without the chain; writes demo.png
	$(BIN)/gradxform demo

# JAX is the smallest to install; PyTorch's compiler would take the two minutes by itself.
quick: $(QUICK)/.ready ## two minutes: NumPy and JAX alone, in an environment of their own
	$(QUICK)/bin/python -m pytest -q -m "not slow" -n $(JOBS) --dist worksteal tests/core tests/stability \
	    $(addprefix tests/transforms/test_,table.py properties.py hard.py states.py) tests/backends/test_numpy.py tests/proof/test_extended.py \
	    tests/recording/test_record.py

test: $(READY) ## the suite in all frameworks: every transform, eager and compiled
	$(BIN)/python -m pytest -q -m "not slow" -n $(JOBS) --dist worksteal --durations=10

test-slow: $(READY) ## what is left out of it: the remaining dtypes under compilers, Keras on three backends, trainings
	$(BIN)/python -m pytest -q -m slow -n $(JOBS) --dist worksteal --durations=10

# Kernels that read numbers in host memory, and whatever reads and writes files. Doctests and slow tests run as usual.
test-platform: $(READY) ## the same where longdouble is float64, on one core, without fork: Windows and Apple, simulated
	PYTHONPATH=tests $(BIN)/python -m pytest -q -p other_platform -m "not slow" -n $(JOBS) --dist worksteal tests/numerics tests/core \
	    tests/functions tests/recording tests/comparing tests/stability tests/backends/test_numpy.py tests/proof/test_extended.py tests/proof/test_testing.py

soak: $(READY) ## train for an hour, shared by the frameworks: memory stays flat, nothing is traced again, steps stay as fast
	$(BIN)/python tests/benchmarks/soak.py --minutes 60

test-oldest: ## the table, adapters and programs with the oldest versions that pyproject allows; FRAMEWORKS="jax mlx" for some
	$(PYTHON) tests/environments.py oldest $(FRAMEWORKS)

test-newest: ## the same with the newest versions that $(PYTHON) can have: make test-newest PYTHON=python3.13
	$(PYTHON) tests/environments.py newest $(FRAMEWORKS)

mutants: $(READY) ## break the library in every place, and see that the tests notice; writes docs/numbers/tables/mutation.md
	$(BIN)/python tests/proof/mutants.py --out docs/numbers/tables/mutation.md

lint: $(READY) ## format, lint, types, layers: what pre-commit runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

size: ## code lines, tokens and files by folder, beside an older commit; BASE=v1.0 for another
	@$(PYTHON) tests/size.py $(BASE)

check: lint size ## lint, size, the built wheel in an empty folder, and the site, strictly
	$(BIN)/python -m pytest -q -p no:cacheprovider --no-header tests/release.py tests/pages/built_site.py

bench: $(READY) ## time gradxform beside the frameworks' own functions
	$(BIN)/gradxform bench

docs: $(READY) ## run every example, and build the site into docs/_build/html; a warning is an error
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/pages
	$(BIN)/python -m pytest -q -p no:cacheprovider --no-header tests/pages/built_site.py
	@echo "the site is docs/_build/html/index.html"

release: $(READY) ## build sdist and wheel twice, check them, try each extra in an empty environment; writes dist, uploads nothing
	$(BIN)/python tests/make_release.py

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
