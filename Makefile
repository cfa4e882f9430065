# Two commands do everything on a fresh machine: `make audit` and `make test`. `make test-all` adds the slow tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AUDIT ?= --defense batch_shuffle
# A file stays on one worker, so that what its tests share is made once.
WORKERS := --numprocesses 2 --dist loadfile

# Compiled tests are kept: each of the workers, and each process that a test starts, would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: audit test test-all lint docs dist try-dist image clean

audit: $(VENV)/installed
	$(BIN)/privkit audit $(AUDIT)

test: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not slow"

test-all: test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m slow

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy privkit tests

docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The wheel and the source distribution, checked; and the wheel in an empty environment, as a user installs it.
dist:
	rm -rf dist build/tools
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet build twine check-wheel-contents
	build/tools/bin/python -m build --outdir dist
	build/tools/bin/twine check --strict dist/*
	build/tools/bin/check-wheel-contents dist/*.whl

try-dist: dist
	rm -rf build/empty build/run
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet dist/*.whl
	cd build && empty/bin/privkit audit --defense patch_shuffle --attack mean_image --dataset tiny_digits --budget smoke --out run

# The image, built, and what it audits in a mounted folder as the user who called.
image:
	docker build --tag privkit .
	mkdir -p build/image
	docker run --rm --user "$$(id -u):$$(id -g)" --volume "$$PWD/build/image:/work" privkit audit --defense patch_shuffle --attack mean_image --dataset tiny_digits --budget smoke --out run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "privkit needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
