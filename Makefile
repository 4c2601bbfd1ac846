# Two commands do all set-up: `make run` (the main job, emulated devices) and `make test` (what CI runs).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: run test test-slow lint types pytest clean

run: $(VENV)/.installed
	$(BIN)/equiv run --suite smoke --device emulated:sm_100a --device emulated:sm_90a

test: lint types pytest

test-slow: $(VENV)/.installed
	$(BIN)/pytest -n $(JOBS) -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

pytest: $(VENV)/.installed
	$(BIN)/pytest -n $(JOBS) -m "not slow"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[kernels,test,dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
