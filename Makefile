PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
JOBS ?= 2

BIN := .venv/bin
READY := .venv/.ready
SCRATCH := build/sanitize
# The profile "ci" makes hypothesis draw the same examples in every run.
PYTEST := $(BIN)/pytest --hypothesis-profile=ci

.PHONY: help setup demo test faults check sanitize bench clean

help:    ## show this list
	@sed -n 's/^\([a-z]*\): .*## /\1\t/p' Makefile | expand -t 10

setup: $(READY)    ## make .venv and install shardex into it, editable, with all extras and tools

$(READY): pyproject.toml setup.py $(wildcard src/shardex/kernel/_gather.c)
	@# The kernel is optional, so a missing compiler is worth one try and no error.
	@command -v cc >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y gcc libc6-dev python3-dev; } || true
	@# The fault tests cut programs off, mount small disks and move clocks; where a tool is missing they are skipped.
	@{ command -v strace && command -v mkfs.ext4 && command -v mount && ls /usr/lib/*/faketime/libfaketime.so.1; } \
		>/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y --no-install-recommends strace e2fsprogs mount libfaketime; } || true
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -f src/shardex/kernel/_gather*.so
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@ls src/shardex/kernel/_gather*.so >/dev/null 2>&1 || echo "setup: no C kernel was built, shardex will use its numpy twin"
	@touch $@

demo: setup    ## a short tour on generated data
	$(BIN)/shardex demo

test: setup    ## all tests and doctests, then the tests again on the numpy kernel
	$(PYTEST) -n $(JOBS)
	SHARDEX_KERNEL=numpy $(PYTEST) -n $(JOBS) -m 'not slow' tests

faults: setup    ## crashes, power cuts, full disks, races: longer than in `test`, some ten minutes, best as root
	SHARDEX_FAULTS=full $(PYTEST) -n $(JOBS) tests/faults

check: setup    ## lint, format, types, layers, sanitizers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) -q tests/whole/test_layers.py
	@$(MAKE) --no-print-directory sanitize

# A copy of the package with a kernel of its own, found before the installed one. The sanitizers' runtime must be the
# first library loaded, libstdc++ next to it so that it sees C++ exceptions; PYTHONMALLOC=malloc lets it guard
# every Python object; --capture=sys leaves its report on the terminal.
sanitize: setup    ## the kernel's tests under the address and undefined behaviour sanitizers
	rm -rf $(SCRATCH)
	mkdir -p $(SCRATCH)
	cp -r src/shardex $(SCRATCH)
	rm -f $(SCRATCH)/shardex/kernel/_gather*.so
	SHARDEX_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --force --build-lib $(SCRATCH) --build-temp $(SCRATCH)/temp
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH=$(SCRATCH) \
	$(PYTEST) -q --capture=sys tests/kernel/test_gather.py

bench: setup    ## measure shardex and its peers on the same data
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/run.py

clean:    ## remove all that was built, .venv too
	rm -rf .venv build dist src/*.egg-info src/shardex/kernel/_gather*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
