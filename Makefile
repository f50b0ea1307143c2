# make train      set everything up and train a small GPT-2 under a cap that does not hold it
# make test       set everything up, check the sources and run the tests
# make laws       run the cases that make test leaves out: every combination of budgets and modes, planted bugs, and the manual;
#                 and try more examples of properties
# make lint       run ruff and mypy alone
# make strict     run the tests of the public API under python -X dev on asyncio and uvloop, where nothing may block a loop
# make docs       build the manual into docs/_build/html; any warning fails it
# make map        print the map of the code: every module with its first sentence
# make reference  compare with torch and transformers, and check with pyright the types that users see
# make ray        run on clusters of Ray on this machine, whose workers are killed; in an environment of its own, .venv-ray
# The first call makes .venv. Later calls install again only after pyproject.toml has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/first
# Container images often set this variable. Then hundreds of processes would compile NumPy, SciPy, Numba and asynctile anew.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles a module to bytecode when it first imports it. Most installed modules are never imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

# Three processes a core, because half of a test's time is waiting; at most 8. A process that has finished takes tests from another.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(8, 3 * len(os.sched_getaffinity(0))))')
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Where torch is installed, every process would spend seconds importing it for tests that it does not run.
NO_TORCH := --ignore=tests/reference --ignore=tests/gpu/test_torch.py

.PHONY: train test laws lint kernels docs map reference ray strict

# The cap is below half of the states. A stopped run continues; RUN=runs/second starts another.
train: $(VENV)/.has-plot
	$(BIN)/asynctile train --device emulated --device-memory 4MiB --lr 2e-3 --steps 2500 --out $(RUN) \
		$(if $(wildcard $(RUN)/run.json),--resume)

test: $(VENV)/.has-test
	@$(MAKE) --no-print-directory --jobs 2 lint kernels
	$(PYTEST) $(NO_TORCH) -m "not reference and not gpu and not ray and not laws"

laws: $(VENV)/.has-test
	$(PYTEST) $(NO_TORCH) -m "(laws or hypothesis) and not reference and not gpu and not ray" --hypothesis-profile laws

lint: $(VENV)/.has-test
	$(BIN)/ruff check .
	$(BIN)/mypy -p asynctile

kernels: $(VENV)/.has-test
	@XDG_CACHE_HOME=$(CURDIR)/.pytest_cache $(BIN)/python -m tests.compiled

# These run on both event loops in debug mode; see tests/strict.py.
strict: $(VENV)/.has-test
	PYTHONASYNCIODEBUG=1 $(BIN)/python -X dev -m pytest -p tests.strict tests/client tests/test_engine.py tests/test_share.py \
		tests/layers/test_gpt2.py tests/layers/test_trainer.py tests/layers/test_runs.py tests/layers/test_step_failures.py \
		tests/layers/test_step_cancellations.py tests/layers/test_saving.py tests/layers/test_server.py

# -E: Sphinx does not notice that the code behind a generated page has changed.
docs: $(VENV)/.has-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -n -E -q -d docs/_build/doctrees docs docs/_build/html

map: $(VENV)/.has-docs
	@PYTHONPATH=docs/_ext $(BIN)/python -c "from asynctile_docs.code_map import code_map; print(code_map())"

reference: $(VENV)/.has-reference
	$(BIN)/python -m pytest -m reference

# Ray brings 70 packages, some with versions of its own, so it has an environment of its own.
ray:
	@$(MAKE) --no-print-directory VENV=.venv-ray .venv-ray/.has-ray
	.venv-ray/bin/python -m pytest -m ray tests/ray

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "asynctile needs Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.has-plot: pyproject.toml | $(BIN)/python
	@echo "installing asynctile into $(VENV) (once)"
	$(PIP) --editable ".[plot]"
	@touch $@

$(VENV)/.has-docs: pyproject.toml | $(BIN)/python
	@echo "installing asynctile and what builds its documentation into $(VENV) (once)"
	$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/.has-test: pyproject.toml | $(BIN)/python
	@echo "installing asynctile and its tests' tools into $(VENV) (once)"
	$(PIP) --editable ".[plot,test]"
	@touch $@ $(VENV)/.has-plot $(VENV)/.has-docs

# torch is pinned: any other version, or none, would be another yardstick, and the newest may bring gigabytes of CUDA.
$(VENV)/.has-reference: pyproject.toml | $(VENV)/.has-test
	$(PIP) --editable ".[plot,test,reference]"
	@touch $@ $(VENV)/.has-test $(VENV)/.has-plot $(VENV)/.has-docs

$(VENV)/.has-ray: pyproject.toml | $(BIN)/python
	$(PIP) --editable ".[ray,test]"
	@touch $@
