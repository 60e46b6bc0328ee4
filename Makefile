# Every target sets up what it needs: Python >= 3.11, gcc or clang, and make are enough; `wheel` and `asan` need Linux.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(foreach kind,pyx pxd h,$(wildcard $(foreach folder,* */* */*/*,cython_ext/$(folder).$(kind)))) setup.py

# Else the first thing to be said is a resolver's error, from a .venv that the next try would keep.
CHECK_PYTHON := import sys; sys.version_info < (3, 11) and sys.exit("pslib needs Python 3.11 or newer, \
    $(PYTHON) is %d.%d: try make PYTHON=python3.12" % sys.version_info[:2])

# Two workers, one of which has all tests that start processes (tests/support/queues.py).
WORKERS := -n 2 --dist loadgroup --no-loadscope-reorder

# Two builds at once would write the same files; macOS has no such command.
LOCKED := $(if $(shell which flock 2>/dev/null),flock $(VENV)/.lock)

.PHONY: build test test-cluster test-all lint demo bench papers soak asan wheel wheel_check clean

$(VENV)/.made: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { $(PYTHON) -c '$(CHECK_PYTHON)' && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    setuptools cython numpy
	PSLIB_KERNELS=later SETUPTOOLS_ENABLE_FEATURES= $(BIN)/python -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -c constraints.txt -e '.[plot,test,lint]'
	touch $@

$(VENV)/.built: $(VENV)/.made $(SOURCES)
	@echo "compiling kernels, of $(words $(filter %.pyx,$(SOURCES))) those that have changed: three to five minutes for all on two idle cores"
	$(LOCKED) $(BIN)/python setup.py -q build_ext --inplace
	touch $@

build: $(VENV)/.built

# Units, properties, the simulator, golden values, one short cluster of real processes (mark smoke).
test: build
	$(BIN)/python -m pytest $(WORKERS) -m "not soak and not wheel and not cluster"

# All other tests with real processes.
test-cluster: build
	$(BIN)/python -m pytest -m "cluster and not soak and not wheel"

# Both at once: the tests that start processes in one worker, all others in the other one.
test-all: build
	$(BIN)/python -m pytest $(WORKERS) -m "not soak and not wheel"

soak: build
	PSLIB_HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m soak --timeout 3600

# A wheel for this Python and machine, in dist/, checked as a release is; `cibuildwheel` builds those of a release.
wheel: build
	PSLIB_KERNELS=later SETUPTOOLS_ENABLE_FEATURES= $(BIN)/python -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -c constraints.txt -e '.[wheel]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist/plain
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair --strip -w dist dist/plain/*.whl
	mv dist/plain/*.tar.gz dist/
	rm -r dist/plain
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/twine check --strict dist/*

# That wheel in empty environments: from any folder, and the first hour of a user (tests/first_hour).
wheel_check: wheel
	PSLIB_TEST_WHEEL=$$(ls $(abspath dist)/*.whl) $(BIN)/python -m pytest -m wheel

demo: build
	$(BIN)/pslib demo

bench: build
	$(BIN)/python benchmarks/table.py --quick
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/train.py --quick

# Hours; the data is not here: PSLIB_TEST_DATA names a folder that has it.
papers: build
	$(BIN)/python benchmarks/papers.py --two --keep runs/papers --json runs/papers.json

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cython_ext --concise --allowlist .ci/stubtest_allowed.txt
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/cython-lint cython_ext
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py

# The kernels and their tests once more under AddressSanitizer, in a copy, so that the normal build stays as it
# is. Python itself is not instrumented: libasan is preloaded, with libstdc++, without which it ends a process in which
# Arrow throws; leaks (the interpreter's) are not looked for. Its reports are written past pytest (capture=sys).
ASAN := build/asan
KERNEL_TESTS := tests/table tests/wire tests/shard \
    $(patsubst %,tests/values/test_%.py,hashing levels same_bits cores) \
    $(patsubst %,tests/data/kernels/test_%.py,batch_keys distinct examples finite shuffle) \
    $(patsubst %,tests/data/test_%.py,columns features) tests/data/reading/test_list_buffer.py \
    tests/rec_models/kernels $(patsubst %,tests/rec_models/test_%.py,products_of_steps stepper) \
    $(patsubst %,tests/transport/test_%.py,transport zmq_link) tests/server/test_shard_thread.py \
    tests/checkpoint/test_increments.py

# Files that were deleted or moved since the last time must not be compiled or run once more.
asan: $(VENV)/.made
	mkdir -p $(ASAN)
	rm -rf $(addprefix $(ASAN)/,pslib rec_models tests cython_ext)
	cp -ru setup.py pyproject.toml README.md pslib rec_models tests $(ASAN)/
	cp -u --parents $(foreach kind,py pyx pxd h,$(wildcard $(foreach folder,* */* */*/*,cython_ext/$(folder).$(kind)))) $(ASAN)/
	cd $(ASAN) && PSLIB_SANITIZE=address $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(ASAN) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	    ASAN_OPTIONS=detect_leaks=0 $(abspath $(BIN))/python -m pytest -p no:cacheprovider --capture=sys \
	    -m "not soak" $(wildcard $(KERNEL_TESTS))

clean:
	rm -rf build dist *.egg-info .venv $(foreach kind,so c,cython_ext/*.$(kind) cython_ext/*/*.$(kind))
