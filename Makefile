# What a developer types. `make` alone lists it.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
LOWEST = build/lowest
ROUNDS ?= 20
SEED ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv test quick matrix hours lint format types imports package check chaos bench demo clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

venv: $(READY)  ## the virtual environment, with the package and what tests need (VENV=.venv PYTHON=python3)

test: venv  ## all tests (ARGS="-k dst"; two at a time: ARGS="-n2 --dist=loadfile")
	$(BIN)/python -m pytest $(ARGS)

quick: venv  ## the tests that take no real time
	$(BIN)/python -m pytest -m "not slow and not chaos and not browser" $(ARGS)

matrix:  ## the quick tests with the oldest versions that setup.cfg allows (ARGS="tests/unit")
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --constraint tests/lowest.txt --editable '.[dev]'
	$(LOWEST)/bin/python -m pytest -m "not slow and not chaos and not browser" $(ARGS)

hours: venv  ## the quick tests at awkward hours, in far zones, on a slow machine: long (ARGS="evening busy")
	$(BIN)/python -m tests.hours $(ARGS)

lint: venv  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: venv  ## ruff: repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: venv  ## mypy --strict on the package
	$(BIN)/mypy

imports: venv  ## import-linter: the layers
	PYTHONPATH=. $(BIN)/lint-imports

package: venv  ## build the wheel and look whether everything is in it
	rm -rf build
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m tests.wheel build/wheel/*.whl

check: lint types imports package test  ## all of the above but format

chaos: venv  ## freeze and kill beats, brokers and databases for long (ROUNDS=20 SEED=1 ARGS="--kinds")
	$(BIN)/python -m tests.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: venv  ## the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

demo: venv  ## a beat and a worker on your screen (ARGS="--seconds 30")
	$(BIN)/python -m celery_qbeat.demo $(ARGS)

clean:  ## remove what the targets above made
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
