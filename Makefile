# Every target sets up what it needs: Python >= 3.11, gcc and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(foreach kind,pyx pxd h,$(wildcard cython_ext/*.$(kind) cython_ext/*/*.$(kind))) setup.py

# Else the first thing to be said is a resolver's error, from a .venv that the next try would keep.
CHECK_PYTHON := import sys; sys.version_info < (3, 11) and sys.exit("pslib needs Python 3.11 or newer, \
    $(PYTHON) is %d.%d: try make PYTHON=python3.12" % sys.version_info[:2])

# Two workers, one of which has all tests that start processes (tests/queues.py).
WORKERS := -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: build test lint demo bench papers soak asan wheel clean

$(VENV)/.made: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { $(PYTHON) -c '$(CHECK_PYTHON)' && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    setuptools cython numpy
	PSLIB_KERNELS=later SETUPTOOLS_ENABLE_FEATURES= $(BIN)/python -m pip install -q --disable-pip-version-check \
	    --no-build-isolation -c constraints.txt -e '.[plot,test,lint]'
	touch $@

$(VENV)/.built: $(VENV)/.made $(SOURCES)
	@echo "compiling kernels, of $(words $(filter %.pyx,$(SOURCES))) those that have changed: three to five minutes for all on two idle cores"
	flock $(VENV)/.lock $(BIN)/python setup.py -q build_ext --inplace
	touch $@

build: $(VENV)/.built

test: build
	$(BIN)/python -m pytest $(WORKERS) -m "not soak"

soak: build
	PSLIB_HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m soak --timeout 3600

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
# Arrow throws; leaks (the interpreter's) are not looked for. What it says is written past pytest (capture=sys).
ASAN := build/asan
KERNEL_TESTS := $(patsubst cython_ext/%.pyx,tests/test_%.py,$(wildcard cython_ext/*.pyx)) \
    $(wildcard tests/test_store_*.py) tests/test_optimizers.py tests/test_optimizer_modifiers.py tests/test_optimizer_values.py \
    tests/test_initializers.py tests/test_storage.py tests/test_rounding.py tests/test_products_bfloat16.py tests/test_marks.py tests/test_transport.py \
    tests/test_zmq_link.py \
    tests/test_codec.py tests/test_codec_refusals.py tests/test_fuzz_decoder.py tests/test_finite.py tests/test_columns.py tests/test_features.py \
    tests/test_list_room.py tests/test_packed_weights.py tests/test_products_of_steps.py tests/test_rates.py tests/test_shard_thread.py \
    tests/test_stepper.py

asan: $(VENV)/.made
	mkdir -p $(ASAN)/tests $(ASAN)/cython_ext
	cp -u setup.py pyproject.toml README.md $(ASAN)/
	cp -ru pslib $(ASAN)/
	cp -u $(wildcard cython_ext/*.py cython_ext/*.pyx cython_ext/*.pxd cython_ext/*.h) $(ASAN)/cython_ext/
	cp -u tests/*.py tests/rounding.c $(ASAN)/tests/
	cp -ru tests/golden $(ASAN)/tests/
	cd $(ASAN) && PSLIB_SANITIZE=address $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(ASAN) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	    ASAN_OPTIONS=detect_leaks=0 $(abspath $(BIN))/python -m pytest -p no:cacheprovider --capture=sys \
	    -m "not soak" $(wildcard $(KERNEL_TESTS))

clean:
	rm -rf build dist *.egg-info .venv $(foreach kind,so c,cython_ext/*.$(kind) cython_ext/*/*.$(kind))
