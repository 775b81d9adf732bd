# `make demo` and `make test` are each enough on a machine with Python 3.11 to 3.13, make and the package
# registries. What they fetch lands in .venv and in the user cache; later runs need no network.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
DEMO_OUT ?= build/demo
PYTEST_ARGS ?=
TEST_WORKERS ?= 2
PYTHONS ?= python3.11 python3.12 python3.13

.PHONY: help install demo pack test test-slow test-cluster test-containers bench reference lint format wheels-check clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       install, then run the example from a table to a private aggregate to a model"
	@echo "make test       install, then run the tests (without the slow ones)"
	@echo "make test-slow  the statistical audits and the long end-to-end runs"
	@echo "make test-cluster  faults and leaks on a real standalone cluster on this machine"
	@echo "make test-containers  build the image, start the compose file's cluster, run the demo on it (docker/README.md)"
	@echo "make pack       what a cluster needs: build/environment.tar.gz for executors, build/dpagg.zip"
	@echo "make bench      time the engines against Spark SQL, MLlib and numpy; table and figure in README.md"
	@echo "make reference  write dpagg/REFERENCE.md from docstrings"
	@echo "make lint       ruff and mypy"
	@echo "make wheels-check  install the wheel in a clean environment of each Python found, and use it"
	@echo "make install    the virtual environment, Java and the Delta jars"

install: $(VENV)/.installed

# The first interpreter that runs, has the right version and can make an environment.
$(VENV)/.installed: pyproject.toml conf/constraints.txt
	@test -x $(BIN)/python || { \
	  for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	    then echo "$$candidate -m venv $(VENV)"; exec $$candidate -m venv $(VENV); fi; \
	  done; \
	  echo "No Python 3.11, 3.12 or 3.13 with the venv module on PATH. Install one, or: make PYTHON=/path/to/python" >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c conf/constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/python -m dpagg.spark.java --prepare
	@touch $@

demo: install
	$(BIN)/dpagg demo --out $(DEMO_OUT)

pack: build/environment.tar.gz build/dpagg.zip

build/environment.tar.gz: $(VENV)/.installed conf/executors.txt
	rm -rf build/environment
	$(BIN)/python -m venv --without-pip build/environment
	$(BIN)/python -m pip --python build/environment/bin/python install --quiet --disable-pip-version-check --no-deps \
	  -c conf/constraints.txt -r conf/executors.txt
	tar -czf $@ -C build/environment .

build/dpagg.zip: $(shell find dpagg -name '*.py')
	rm -rf build/package && mkdir -p build/package
	tar -cf - --exclude=__pycache__ dpagg | tar -xf - -C build/package
	cd build/package && $(abspath $(BIN))/python -m zipfile -c ../dpagg.zip dpagg

# A file stays with one worker: its set-ups are shared, and a Spark session a worker is as much as two cores bear.
test: install
	$(BIN)/python -m pytest -m "not slow and not cluster" -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

test-slow: install
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-cluster: install build/environment.tar.gz
	$(BIN)/python -m pytest tests/cluster $(PYTEST_ARGS)

test-containers: install
	$(BIN)/python -m pytest tests/containers $(PYTEST_ARGS)

bench: install
	$(BIN)/dpagg bench --readme README.md

reference: install
	$(BIN)/python -m tests.reference

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A Python that isn't there is named and left out: PYTHONS="/path/to/python3.12 ..." gives others.
wheels-check: install
	rm -rf build/wheels && mkdir -p build/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheels .
	@tried=0; for python in $(PYTHONS); do \
	  $$python -c 'import ensurepip, venv' 2>/dev/null || { echo "$$python: not here, left out"; continue; }; \
	  clean=build/wheels/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  $$python -m venv $$clean && wheel=$$(ls build/wheels/*.whl) || exit 1; \
	  $$clean/bin/python -m pip install --quiet --disable-pip-version-check -c conf/constraints.txt "$$wheel[sklearn]" || exit 1; \
	  cp tests/installed/check.py $$clean/check.py && (cd $$clean && bin/python check.py) || exit 1; \
	  rm -rf $$clean; tried=$$((tried + 1)); \
	done; test $$tried -gt 0 || { echo "none of $(PYTHONS) is here" >&2; exit 1; }

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
