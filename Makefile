# `make demo` and `make test` do everything on a fresh clone; all they need is Python 3.11 or later.
PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := autosync cli simulators datasets configs
LINTED := $(SOURCES) tests $(wildcard benchmarks examples tools)
TYPING := build/typing/autosync

# Run in a folder of its own, so that everything it leaves behind lies there.
DEMO_DIR := build/demo

# Without it a process started here finds ./autosync before the installed package, and with it no autosync.cli.
export PYTHONSAFEPATH := 1
# Tests start hundreds of processes. Each would compile our sources anew where an environment forbids to keep the result.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --progress-bar off --retries 5 --constraint constraints.txt

.DELETE_ON_ERROR:
.PHONY: help setup demo test lint typing kernels pytest fulltest postgresql dashboard duckdb object-store browser test-launchers models-suite test-versions wheel-test mutations ddp-suite scripts-suite format gallery docs clean

help:
	@echo 'make demo        tune a shipped model on an emulated cluster, and write a report about it'
	@echo 'make test        lint, type-check and test: what CI runs'
	@echo 'make fulltest    the same with the slow tests; it installs PostgreSQL and Chromium for them'
	@echo 'make test-launchers  install what the launchers need (sshd, Slurm, Ray) and test each with the real thing'
	@echo 'make models-suite    install real models and train them under stock DDP and under strategies (half an hour)'
	@echo 'make test-versions  run the tests with the oldest and newest torch and Python that are promised (an hour and more)'
	@echo 'make gallery     draw docs/gallery anew: every preset, with a timeline measured on the testbed'
	@echo 'make docs        build the site of the documentation in build/site'
	@echo 'make ddp-suite   what DDP, ZeRO and Horovod are tested for, under four strategies, on two and three ranks (25 minutes)'
	@echo 'make scripts-suite   unchanged scripts of torch, transformers, accelerate and Lightning under autosync (an hour)'
	@echo 'make mutations   break what users of DDP expect, one thing after the other: a test must notice (tens of minutes)'
	@echo 'make lint | typing | pytest | wheel-test | format | setup | clean'

# An environment that works is kept; one that does not (an interrupted install, another Python gone) is made anew.
# torch comes first and by its pin: a range would bring several GB of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("autosync needs Python 3.11 or later: make PYTHON=...") if sys.version_info < (3, 11) else None'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo 'Creating $(VENV) ...'; $(PYTHON) -m venv --clear $(VENV); }
	@echo 'Installing torch and then the rest into $(VENV) (minutes the first time) ...'
	@$(PIP_INSTALL) setuptools torch
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

setup: $(STAMP)

demo: $(STAMP)
	@rm -rf $(DEMO_DIR) && mkdir -p $(DEMO_DIR)
	@cd $(DEMO_DIR) && ../../$(BIN)/python ../../tools/demo.py

test: lint typing pytest

fulltest: lint typing postgresql dashboard duckdb object-store browser kernels
	$(BIN)/python -m pytest -m '' --hypothesis-profile=thorough -n $(JOBS) --quiet

# For the test in which two tuners share a study there; it starts a server of its own.
postgresql: $(STAMP)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { apt-get update -qq \
		&& RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; } \
		|| echo 'PostgreSQL cannot be installed here: its test will be skipped'
	@$(BIN)/python -c 'import psycopg' 2>/dev/null || $(PIP_INSTALL) --no-build-isolation --editable '.[postgresql]' \
		|| echo 'The driver of PostgreSQL cannot be installed here: its test will be skipped'

# For the test in which the real dashboard shows a study.
dashboard: $(STAMP)
	@$(BIN)/python -c 'import optuna_dashboard' 2>/dev/null || $(PIP_INSTALL) --no-build-isolation --editable '.[dashboard]' \
		|| echo 'optuna-dashboard cannot be installed here: its test will be skipped'

# For the test in which the dataset's page asks the records with SQL.
duckdb: $(STAMP)
	@$(BIN)/python -c 'import duckdb' 2>/dev/null || $(PIP_INSTALL) --no-build-isolation --editable '.[duckdb]' \
		|| echo 'DuckDB cannot be installed here: its test will be skipped'

# For the tests that open reports in a real browser.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update -qq \
		&& RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
		|| echo 'Chromium cannot be installed here: the tests of reports in a browser will be skipped'

# For the tests that read shards from a real server of S3's protocol.
object-store: $(STAMP)
	@$(BIN)/python -c 'import boto3, moto, s3fs' 2>/dev/null || $(PIP_INSTALL) --no-build-isolation --editable '.[object-store]' \
		|| echo 'The server of an object store cannot be installed here: its tests will be skipped'

lint: $(STAMP)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

format: $(STAMP)
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

# mypy sees only what lies where it is imported from: a tree of links gives it the package as it is installed.
# Made anew each time, so that a renamed module leaves no dead link behind.
typing: $(STAMP)
	@rm -rf $(TYPING) && mkdir -p $(TYPING)
	@cd $(TYPING) && ln -s ../../../autosync/* $(addprefix ../../../,$(filter-out autosync,$(SOURCES))) .
	$(BIN)/mypy

# numba compiles the simulators once, for minutes: here, so that it counts towards no test's time limit.
kernels: $(STAMP)
	@$(BIN)/python -m autosync.simulators.kernel_compiler

pytest: kernels
	$(BIN)/python -m pytest -n $(JOBS) --quiet

# Services are installed and not started: the tests start their own, in hosts of the testbed.
test-launchers: $(STAMP)
	@{ test -x /usr/sbin/sshd && test -x /usr/sbin/slurmctld && test -x /usr/sbin/munged; } || { apt-get update -qq \
		&& RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		openssh-server openssh-client slurm-wlm munge; } \
		|| echo 'sshd and Slurm cannot be installed here: their tests will be skipped'
	@$(BIN)/python -c 'import ray, kubernetes, kubeflow_trainer_api' 2>/dev/null \
		|| $(PIP_INSTALL) --no-build-isolation --editable '.[ray,kubernetes]' kubeflow-trainer-api \
		|| echo 'Ray or the Kubernetes client cannot be installed here (see above): their tests will be skipped'
	$(BIN)/python -m pytest -m 'slow or services' -n 1 --quiet tests/launchers

# The releases that constraints.txt names: they leave torch as it is.
models-suite: $(STAMP)
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
		peft timm torchvision transformers || $(PIP_INSTALL) --no-build-isolation --editable '.[models]'
	$(BIN)/python -m pytest -m '' -n 1 --quiet tests/models

# Makes an environment for each pair; torch without the pin brings several GB of CUDA packages.
test-versions: $(STAMP)
	$(BIN)/python tools/versions.py

wheel-test: $(STAMP)
	$(BIN)/python -m pytest --quiet tests/repository/test_wheel.py

# Measures: on a machine that has nothing else to do.
gallery: $(STAMP)
	$(BIN)/python tools/make_gallery.py

docs: $(STAMP)
	@$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || $(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	$(BIN)/python tools/gather_site.py build/site-source
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Behaviours of tests/ddp_suite beside stock DDP; build/ddp-suite.json has each result.
ddp-suite: $(STAMP)
	$(BIN)/python tests/ddp_suite/run.py

# Tests that need the frameworks, and unchanged scripts beside stock DDP; build/script-suite.json has each result.
scripts-suite: kernels
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
		accelerate lightning peft timm torchvision transformers \
		|| $(PIP_INSTALL) --no-build-isolation --editable '.[frameworks,models]'
	$(BIN)/python -m pytest -m '' -n 1 --quiet \
		tests/script/test_frameworks.py tests/cli/test_start_here.py tests/examples/test_scripts.py
	$(BIN)/python tests/script_suite/run.py

mutations: $(STAMP)
	$(BIN)/python tools/mutations.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
