# make train   set everything up and train a small GPT-2 under a cap that does not hold it
# make test    set everything up, check the sources and run the tests
# make laws    the cases that make test leaves out: every combination of what it runs a few of
# make lint    ruff and mypy alone
# make strict  the tests of the public face under python -X dev, on asyncio and uvloop, where nothing may block a loop
# make docs      the documentation site, in docs/_build/html; any warning fails it
# make reference   the comparisons with torch and transformers, and the types that clients see by pyright
# The first call makes .venv; a later one only repeats what pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/first
# Images of containers often set this. Then each of hundreds of processes compiles NumPy, SciPy, Numba and asynctile anew.
unexport PYTHONDONTWRITEBYTECODE
# Of what is installed little is ever imported: that is compiled to bytecode when it is, the rest never.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

# A process for each core: what none has begun goes to whichever is done first.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: train test laws lint docs reference strict

# The cap is below half of the states. A run that was stopped goes on; RUN=runs/second starts another.
train: $(VENV)/.has-plot
	$(BIN)/asynctile train --device emulated --device-memory 4MiB --lr 2e-3 --steps 2500 --out $(RUN) \
		$(if $(wildcard $(RUN)/run.json),--resume)

test: lint
	$(PYTEST) -m "not reference and not gpu and not laws"

laws: $(VENV)/.has-test
	$(PYTEST) -m "laws and not reference and not gpu"

lint: $(VENV)/.has-test
	$(BIN)/ruff check .
	$(BIN)/mypy -p asynctile

# The tests of the public face on both loops, in debug mode; see tests/strict.py.
strict: $(VENV)/.has-test
	PYTHONASYNCIODEBUG=1 $(BIN)/python -X dev -m pytest -p tests.strict tests/client tests/test_engine.py tests/test_share.py \
		tests/layers/test_gpt2.py tests/layers/test_trainer.py tests/layers/test_saving.py tests/layers/test_server.py

# -E: pages that are written from the code change when it does, which Sphinx does not see.
docs: $(VENV)/.has-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -n -E -q -d docs/_build/doctrees docs docs/_build/html

reference: $(VENV)/.has-reference
	$(BIN)/python -m pytest -m reference

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
