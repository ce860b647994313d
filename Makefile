# make install   .venv with everything that demo and test need; .venv/bin/tiermesh is the command
# make demo      a 3-tier cluster on this machine trains a small GPT
# make test      lint, then all tests but the slow ones (make test-slow), three files side by side (PROCESSES=0: one by one)
# make lint      style, types, who imports whom
# make bench     figures against their bounds (ONLY=name: one)     make lock    renew constraints.txt (needs uv)
# make test-hardware    training steps on a real mesh, or a simulator (TT_METAL_SIMULATOR), against the emulator
# make simulate  whole clusters of the cores, through faults (SEEDS=10000: so many)
# make fuzz      what parses bytes from outside, guided by the code that it reaches (SECONDS=60 each)
# make protos    renew the modules generated from .proto files      make clean   remove what make made
SHELL := /bin/sh
PYTHON ?=
SEEDS ?= 500
SECONDS ?= 60
# One more than the cores of the smallest machine: tests of daemons wait a good deal.
PROCESSES ?= 3
# Draws the same examples each time; `default` draws anew.
HYPOTHESIS ?= same
UV ?= uv
BIN := .venv/bin

# Each stamp's name says what it was made from: other constraints give a new .venv, another pyproject.toml a new install
# of Tiermesh itself, and going back to an earlier commit works too.
packages := .venv/.packages-$(shell cksum < constraints.txt | tr ' ' -)
installed := .venv/.installed-$(shell cat constraints.txt pyproject.toml | cksum | tr ' ' -)

.PHONY: install demo test test-slow test-hardware simulate fuzz lint bench lock protos clean

install: $(installed)

$(installed): $(packages)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-*
	@touch $@

$(packages):
	@set -e; python="$(PYTHON)"; \
	if [ -z "$$python" ]; then python=$$(sh scripts/choose_python.sh); fi; \
	echo "Making .venv and installing the pinned packages (a minute or two; longer without pip's cache)"; \
	rm -rf .venv; \
	"$$python" -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r constraints.txt
	@touch $@

demo: install
	@rm -rf build/demo
	@mkdir -p build
	@$(BIN)/tiermesh local configs/training_configs/demo.yaml --tiers 3 --workers 2 --state-dir build/demo

test: lint
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --hypothesis-profile $(HYPOTHESIS)

test-slow: install
	$(BIN)/python -m pytest -m slow

test-hardware: install
	$(BIN)/python -m pytest -m hardware -rs tests/hardware

simulate: install
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

fuzz: install
	@test -d build/fuzz/site || $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps \
	    --only-binary :all: --target build/fuzz/site atheris==3.1.0
	@PYTHONPATH=build/fuzz/site:. $(BIN)/python -m tests.fuzz --seconds $(SECONDS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	@$(BIN)/python -m benchmarks $(ONLY)

lock:
	$(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-annotate --custom-compile-command "make lock" --extra dev \
	    pyproject.toml -o constraints.txt

protos: install
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto
	@rm -f protos/tensors_pb2_grpc.py  # it has no service
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. mesh/descriptors/mesh_graph.proto

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
