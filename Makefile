# KVScope. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PORT ?= 8501

.DEFAULT_GOAL := help
.PHONY: help app test lint types contracts unit browser bench format chromium clean

help: ## list every target
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

app: $(VENV)/.installed ## start KVScope in the browser (installs it the first time)
	@echo "KVScope: http://127.0.0.1:$(PORT)"
	@$(BIN)/python -m streamlit run app.py --server.address 127.0.0.1 --server.port $(PORT)

test: lint contracts types unit ## everything that must hold: lint, contracts, types, tests

lint: $(VENV)/.installed-dev ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

contracts: $(VENV)/.installed-dev ## the rooms import one way only
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev ## mypy
	$(BIN)/mypy

unit: $(VENV)/.installed-dev chromium ## all tests, in a real browser too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

browser: $(VENV)/.installed-dev chromium ## only the tests that drive a browser
	$(BIN)/python -m pytest -m browser

bench: $(VENV)/.installed-dev ## measure what the README claims
	$(BIN)/python -m bench

format: $(VENV)/.installed-dev ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove the environment and the caches, keep the runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "KVScope needs Python 3.11 or newer; $(PYTHON) is older. Name another with: make app PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(BIN)/python
	@echo "Installing what KVScope needs (once, some minutes) ..."
	@$(PIP) -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: requirements.txt requirements-dev.txt | $(BIN)/python
	@echo "Installing what the tests need (once, some minutes) ..."
	@$(PIP) -r requirements-dev.txt
	@touch $@ $(VENV)/.installed

chromium: ## find Chromium for the browser tests, or install it where that is possible
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the browser tests ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	else \
	  echo "The browser tests need Chromium: install it (Debian: apt install chromium) and run make test again."; exit 1; \
	fi
