# Everything works from a fresh clone with Python 3.11 or newer: each target sets up .venv first if it has to.

PYTHON ?= python3
VENV := .venv
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
TOOLS := build/tools/.installed
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input --quiet
# --no-emit-index-url and --no-config keep whatever index this machine uses out of the locks.
LOCK := $(VENV)/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url

.DEFAULT_GOAL := help
.PHONY: help setup run test test-full test-long newcomer lint mutants demo bench compare chaos soak simulate console screens docs lock sbom audit clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1|/' | column -t -s '|' 2>/dev/null \
		|| grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install what the development lock names
	@:

$(SERVING): requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name it with PYTHON=…" >&2; exit 1; }
	@echo "Installing what serving needs into $(VENV): once, about a minute …" >&2
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes --requirement requirements-build.lock --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(SERVING) requirements-dev.lock
	@echo "Installing what tests and tools need into $(VENV): once, a few minutes …" >&2
	@$(PIP) install --require-hashes --requirement requirements-dev.lock
	@touch $@

$(DEMO): $(SERVING) demo/requirements.lock
	@echo "Installing OpenAI's client for the demo into $(VENV): once, a few seconds …" >&2
	@$(PIP) install --require-hashes --requirement demo/requirements.lock
	@touch $@

run: $(SERVING)  ## serve; HOST=, PORT= and CONFIG= may be given
	@exec $(VENV)/bin/concertina serve $(if $(CONFIG),--config $(CONFIG)) $(if $(HOST),--host $(HOST)) \
		$(if $(PORT),--port $(PORT))

test: setup  ## run what guards behaviour, also on PostgreSQL and in a browser; before each commit; ARGS= goes to pytest
	@$(VENV)/bin/python -m tests.console.install_browser
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n auto $(ARGS)  # they start this program often: it is compiled once

test-full: setup  ## run all tests: besides, long scenarios, replicas, faults, real clients, snippets, more examples
	@CONCERTINA_TEST_FULL=1 CONCERTINA_TEST_EXAMPLES=full $(MAKE) --no-print-directory test

test-long: setup  ## run the property tests alone, with 500 random examples each; ARGS= goes to pytest
	@CONCERTINA_TEST_EXAMPLES=thorough $(VENV)/bin/python -m pytest -n auto -m hypothesis --timeout 900 $(ARGS)

newcomer: setup  ## follow the README in a fresh clone with an empty home, up to the console, as somebody new would
	@$(VENV)/bin/python -m tests.console.install_browser
	@CONCERTINA_TEST_NEWCOMER=1 $(VENV)/bin/python -m pytest -n 0 -s tests/newcomer $(ARGS)

lint: setup  ## check style and types
	@$(VENV)/bin/ruff check --no-cache --quiet .
	@$(VENV)/bin/ruff format --no-cache --quiet --check .
	@$(VENV)/bin/mypy --num-workers 2 --no-error-summary

mutants: setup  ## break one line at a time in copies of the project: the tests named for it must notice; ten minutes
	@$(VENV)/bin/python -m tests.mutants $(ARGS)

demo: $(DEMO)  ## watch a long conversation being compacted
	@$(VENV)/bin/python -m demo $(ARGS)

bench: setup  ## measure what the gateway costs
	@$(VENV)/bin/python -m tests.benchmarks $(ARGS)

compare: setup  ## measure other gateways beside this one, and write docs/comparison.md; installs them first, an hour in all
	@$(VENV)/bin/python -m tests.benchmarks.compare $(ARGS)

chaos: setup  ## break gateways, database and model under load for half an hour, then check the books
	@CONCERTINA_TEST_CHAOS=1 $(VENV)/bin/python -m pytest -n 2 tests/faults/test_kills.py -k "turn-sqlite or compaction-sqlite"
	@$(VENV)/bin/python -m tests.chaos chaos $(ARGS)

soak: setup  ## load three gateways for an hour, watch their memory, then check the books
	@$(VENV)/bin/python -m tests.chaos soak $(ARGS)

simulate: setup  ## run simulated clients against the gateway in virtual time; SEED= and SECONDS= may be given, ARGS= more
	@PYTHONHASHSEED=0 $(VENV)/bin/python -m tests.simulation $(if $(SEED),--seed $(SEED)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

console:  ## write the console's bundle anew from its sources; after each change of app/console
	@$(PYTHON) tools/bundle_console.py

screens: setup  ## take the pictures of the console in docs/pictures anew, in a browser
	@$(VENV)/bin/python -m tests.console.install_browser
	@$(VENV)/bin/python -m tests.console.screens $(ARGS)

docs: setup  ## write the configuration reference and its JSON schema anew, and build the site of the documentation in build/site
	@$(VENV)/bin/python tools/configuration_reference.py
	@$(VENV)/bin/python tools/configuration_schema.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet

lock: setup  ## resolve the dependencies anew and write the locks
	@$(LOCK) --extra fast --extra otel --upgrade --output-file requirements.lock pyproject.toml
	@$(LOCK) --extra fast --extra otel --extra semantic --group dev --upgrade --constraint requirements.lock \
		--output-file requirements-dev.lock pyproject.toml
	@printf 'openai\n' | $(LOCK) --upgrade --constraint requirements-dev.lock --output-file demo/requirements.lock -
	@$(LOCK) --upgrade --output-file tests/integrations/requirements.lock tests/integrations/requirements.in
	@printf 'editables\nhatchling\n' | $(LOCK) --upgrade --constraint requirements-dev.lock \
		--output-file requirements-build.lock -

$(TOOLS): tools/requirements.txt
	@test -x build/tools/bin/python || $(PYTHON) -m venv build/tools
	@build/tools/bin/python -m pip --disable-pip-version-check --no-input --quiet install --requirement $<
	@touch $@

sbom: $(SERVING) $(TOOLS)  ## write what a gateway is made of, with licences, to build/sbom.json (CycloneDX)
	@$(VENV)/bin/python tools/sbom.py build/tools/bin/cyclonedx-py

audit: $(TOOLS)  ## ask the advisory service of PyPI for known faults of what requirements.lock names
	@build/tools/bin/pip-audit --requirement requirements.lock --disable-pip --require-hashes --strict \
		|| { echo "make audit: a fault was found, or the advisory service could not be asked (see above)." >&2; exit 1; }

clean:  ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find app concertina_gateway migrations tests -name __pycache__ -type d -prune -exec rm -rf {} +
