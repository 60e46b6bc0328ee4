# Every target sets up what it needs: Python >= 3.11, gcc and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard cython_ext/*.pyx cython_ext/*.pxd cython_ext/*.h) setup.py

.PHONY: build test lint demo bench soak asan wheel clean

$(VENV)/.made: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    setuptools cython numpy
	SETUPTOOLS_ENABLE_FEATURES= $(BIN)/python -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -c constraints.txt -e '.[plot,test,lint]'
	touch $@

$(VENV)/.built: $(VENV)/.made $(SOURCES)
	flock $(VENV)/.lock $(BIN)/python setup.py -q build_ext --inplace
	touch $@

build: $(VENV)/.built

test: build
	$(BIN)/python -m pytest -m "not soak"

soak: build
	$(BIN)/python -m pytest -m soak --timeout 3600

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/cython-lint cython_ext
	$(BIN)/lint-imports

clean:
	rm -rf build dist *.egg-info .venv cython_ext/*.so cython_ext/*.c
