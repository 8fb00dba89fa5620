# Anabranch: `make help` lists the targets. Needs make and Python 3.11 or newer; `make setup` brings the rest, Java included.

SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# The classes that Spark loads: with them, the tests start Java in half the time.
CLASSES := $(VENV)/spark-classes.jsa

# A Python of your own choice: make setup PYTHON=/path/to/python3.12
PYTHON ?=

# The zone of the session in which the tests of queries run a second time: make test-zone ZONE=Europe/Berlin
ZONE ?= America/New_York
QUERY_TESTS := $(patsubst %,tests/spark/%.py,spark/test_columns keys/test_hashing plan/test_strategies plan/test_streaming \
  plan/test_partitioned runtime/test_transcripts runtime/test_start runtime/test_count_windows runtime/test_partition \
  runtime/test_join runtime/test_restart runtime/test_shedding api/test_partition api/test_join api/test_errors \
  io/test_replay shedding/test_lookup)
# What the fuzzer draws, and for how long: make fuzz SEED=7 MINUTES=60
SEED ?= 0
MINUTES ?= 10

# Test processes at once, each with a Spark of its own (some GB of memory each): make test PROCESSES=4
PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-windows rate test test-slow test-zone lint format chaos fuzz bench-windows bench-first bench-split bench-epochs bench-join bench-partitioners bench-shedding evidence soak clean

help: ## Show this help
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Create .venv with everything needed (quick when there is nothing to do)

# The stamp is newer than pyproject.toml exactly when the environment fits it. A working .venv is kept and brought up
# to date; otherwise a new one is made. Pythons with wheels of every dependency come first: on a newer one pip has to
# compile, so that is taken only when there is no other.
$(STAMP): pyproject.toml
	@fits() { "$$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $$2))" >/dev/null 2>&1; }; \
	if [ -z "$(PYTHON)" ] && fits $(BIN)/python 99 && $(BIN)/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	found=; \
	for limit in 14 99; do \
	  for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14 python); do \
	    if [ -z "$$found" ] && fits "$$python" "$$limit"; then found=$$python; fi; \
	  done; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Anabranch needs Python 3.11 or newer. Found: $$($(or $(PYTHON),python3) --version 2>&1)" >&2; \
	  echo "  hint: install one (apt install python3.11 python3.11-venv, brew install python@3.13)," >&2; \
	  echo "        or name one: make setup PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear $(VENV) || { \
	  echo "  hint: on Debian and Ubuntu the module venv is a package of its own: apt install python3-venv" >&2; \
	  exit 1; \
	}
	@echo "Installing Anabranch and its dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(CLASSES): $(STAMP)
	@$(BIN)/python -m tests.quick_java || echo "No archive of Spark's classes; the tests run without it"

demo: setup ## See it work: Linear Road, live and checked, and a page in out/
	@$(BIN)/anabranch demo

demo-windows: setup ## Three sliding windows over traffic, raced against Spark's window(), and a page in out/
	@$(BIN)/python -m demos.windows

rate: setup ## How many expressways of Linear Road does this machine hold? (half an hour, some ten GB)
	@$(BIN)/anabranch linearroad rate

test: setup $(CLASSES) ## Run all tests except the slow ones (about eight minutes on two cores)
	@$(BIN)/python -m pytest -m "not slow" -n $(PROCESSES) --dist loadfile

test-slow: setup $(CLASSES) ## Run the slow tests: those that start processes of their own, or take long
	@$(BIN)/python -m pytest -m slow -n $(PROCESSES) --dist loadfile

test-zone: setup $(CLASSES) ## Run the tests of queries once more, compiled by Spark, in a session whose time zone is not UTC
	@$(BIN)/python -m pytest -m "not slow" -n $(PROCESSES) --dist loadfile --session-zone $(ZONE) --compiled $(QUERY_TESTS)

lint: setup ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## Repair what ruff can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

chaos: setup $(CLASSES) ## Kill things at random, and compare what comes out
	@$(BIN)/python -m tests.chaos.harness

fuzz: setup $(CLASSES) ## Random queries against an independent oracle (SEED=0 MINUTES=10)
	@$(BIN)/python -m tests.fuzz --seed $(SEED) --minutes $(MINUTES)

bench-windows: setup ## Compare sliding windows with Spark's window()
	@$(BIN)/python -m benchmarks windows

bench-first: setup ## Time a new process to its first result, against plain Spark
	@$(BIN)/python -m benchmarks first

bench-split: setup ## Compare splitting over blocks with splitting over rows and with a bare exchange
	@$(BIN)/python -m benchmarks split

bench-epochs: setup ## Compare epochs with bare micro-batches, and streaming aggregates with Spark's
	@$(BIN)/python -m benchmarks epochs

bench-join: setup ## Compare joins of streams with Spark's, and what each mechanism gains (about an hour)
	@$(BIN)/python -m benchmarks join

bench-partitioners: setup ## Compare policies that choose which worker gets which key
	@$(BIN)/python -m benchmarks partitioners

bench-shedding: setup ## Overload a query: latency and delivered windows at 1.25 to 3 times its capacity (40 minutes)
	@$(BIN)/python -m benchmarks shedding

evidence: setup ## Measure the figures and tables of the papers again (docs/papers.md); takes hours
	@for script in evidence/paper*.py; do \
	  echo "== $$script"; \
	  $(BIN)/python "$$script" || exit 1; \
	done

soak: setup ## Run ten minutes at full rate and check that memory and files do not grow
	@$(BIN)/python evidence/soak.py

clean: ## Remove .venv, results and caches
	@rm -rf $(VENV) out build dist spark-warehouse metastore_db derby.log .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
