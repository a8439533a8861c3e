# Every verb sets up .venv by itself on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check -c constraints.txt
DEMO   := $(VENV)/.demo-ready
READY  := $(VENV)/.ready
DOCS   := $(VENV)/.docs-ready
CARRIERS := $(VENV)/.carriers-ready
TRACKERS := $(VENV)/.trackers-ready
RUNS   ?= runs/reproduce
SCRIPTS := --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls --allow-any-generics --implicit-reexport --allow-untyped-decorators

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-silos demo-fit chaos test-carriers test-trackers test test-slow lint wheel docs keep-results results tables-results check-report bench bench-peers bench-regress bench-engine arena clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## ?/\t/' | expand -t 16

setup: $(READY)  ## create .venv with pinned versions

$(DEMO): pyproject.toml constraints.txt
	@echo "setting up $(VENV): torch, NumPy, Numba and what they need; this happens once"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	$(PIP) -e '.[fast]'
	@touch $@

$(READY): $(DEMO)
	$(PIP) -e '.[fast,figures,tables,optuna,sklearn,silos,privacy,test,lint,release]'
	@touch $@

demo: $(DEMO)    ## compare the five algorithms with FedAvg on heterogeneous sparse logistic regression
	$(BIN)/proxfed run demo --out runs/demo --force

demo-silos: $(CARRIERS)  ## three organisations on this machine, over mutual TLS; one of them is killed on the way
	$(BIN)/python examples/silos/demo.py

demo-fit: $(CARRIERS)  ## four hospitals on this machine fit one model of their tables; one of them is killed on the way
	$(BIN)/python examples/silos/demo_fit.py

$(CARRIERS): $(READY)
	$(PIP) -e '.[nvflare,flower]' ray
	@touch $@

test: $(READY)   ## the tests (a few minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-slow: $(READY)  ## a thousand examples of every property, and the tests that take long (about half an hour)
	$(BIN)/python -m pytest -n 2 --hypothesis-profile slow -m 'slow or hypothesis'

test-carriers: $(CARRIERS)  ## NVIDIA FLARE and Flower themselves: processes, sockets, certificates (about ten minutes)
	$(BIN)/python -m pytest tests/test_flower.py
	$(BIN)/python -m pytest -m slow tests/test_carriers.py tests/test_carrier_attacks.py tests/test_flower_processes.py tests/test_nvflare_processes.py

test-trackers: $(TRACKERS)  ## TensorBoard, MLflow and Weights & Biases themselves, offline
	$(BIN)/python -m pytest tests/test_trackers.py

$(TRACKERS): $(READY)
	$(PIP) -e '.[tensorboard,mlflow,wandb]'
	@touch $@

chaos: $(CARRIERS)  ## 200 kills, and 10 % of the messages lost, repeated or reordered, over each carrier (hours)
	$(BIN)/python benchmarks/chaos.py nvflare
	$(BIN)/python benchmarks/chaos.py nvflare --masked
	$(BIN)/python benchmarks/chaos.py flower

lint: $(READY)   ## style, types, and results that are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(SCRIPTS) benchmarks/*.py benchmarks/peers/*.py
	$(BIN)/mypy --strict --follow-imports=silent tests/typed
	$(BIN)/lint-imports
	$(BIN)/proxfed results check

wheel: $(READY)  ## build the wheel and run it from a fresh environment
	.ci/wheel

docs: $(DOCS)    ## the site: the pages that follow from code and results, and then all of it into site/
	$(BIN)/python -m proxfed.papers.cli.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

$(DOCS): $(READY)
	$(PIP) -e '.[docs]'
	@touch $@

keep-results: $(READY)  ## keep what `proxfed reproduce --out RUNS` found in results/
	$(BIN)/proxfed results keep $(RUNS)

results: $(READY)  ## write docs/results.md, which of the papers' claims hold, from results/
	$(BIN)/proxfed results page

tables-results: $(READY)  ## fit the public tables in PROXFED_DATA and write docs/tables-results.md (some minutes)
	$(BIN)/python benchmarks/tables_results.py

check-report:    ## look at a report, and the demo's if it is there, in a headless Chromium
	@test -e $(READY) || { echo "There is no $(VENV) here: run 'make setup' before 'make check-report'." >&2; exit 2; }
	$(BIN)/python tests/browser/check_report.py $(wildcard runs/demo/report.html) --screenshots runs/screenshots

bench: $(READY)  ## speed, in turns: ours, the obvious loop, a centralised model and the limit (quiet machine, half an hour)
	$(BIN)/python benchmarks/bench.py --markdown runs/bench.md

bench-peers: $(READY)  ## the same with other frameworks, each in an environment of its own under .peers
	$(BIN)/python benchmarks/bench.py --peers --markdown runs/bench-peers.md

bench-regress: $(READY)  ## ours against the limit and against benchmarks/kept.json; fails if more than a fifth is lost
	$(BIN)/python benchmarks/bench.py --regress

bench-engine: $(READY)  ## start-up, overhead of a round, growth with clients and d, and memory
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/memory.py

arena: $(READY)  ## tune every method with the same effort, compare them, and keep the results (some hours)
	$(BIN)/python benchmarks/arena.py tune
	$(BIN)/python benchmarks/arena.py run
	$(BIN)/python benchmarks/arena.py table

clean:           ## remove what was built
	rm -rf $(VENV) .peers build dist site src/*.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
