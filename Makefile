# make install        make .venv with everything that demo and test need; .venv/bin/tiermesh is the command
# make demo           train a small GPT on a 3-tier cluster of processes on this machine, and serve its page meanwhile
# make test           run lint, then the tests (about 8 minutes on 2 cores); PROCESSES=0 runs them one by one
# make test-all       run the `long` tests that make test leaves out; CI runs both
# make test-slow      run the tests that take minutes each
# make test-hardware  run training steps on a real mesh or a simulator (TT_METAL_SIMULATOR) and compare the emulator
# make lint           check style, types and the direction of imports
# make docs           build the documentation's site, with all references, and check its links
# make bench          measure every figure against its bound; ONLY=name measures one
# make browser        unpack this distribution's Chromium into build/, for the tests of the page
# make pictures       take the documentation's pictures of the page, in docs/pictures (two minutes)
# make torch          make an environment with PyTorch for the tests and figures that compare with it, where Python 3.11 is
# make simulate       run simulated clusters of the roles' cores through faults; SEEDS=10000 runs that many
# make fuzz           fuzz what parses bytes from outside, guided by coverage; SECONDS=60 each, 5 times that for strangers'
# make lock           renew constraints.txt (needs uv)
# make protos         renew the modules generated from .proto files
# make help           print this list
# make clean          remove everything that make has made
SHELL := /bin/sh
PYTHON ?=
SEEDS ?= 500
SECONDS ?= 60
# Twice the cores of the smallest machine, because tests of daemons spend much of their time waiting.
PROCESSES ?= 4
# `same` draws the same examples in each run; `default` draws others.
HYPOTHESIS ?= same
UV ?= uv
BIN := .venv/bin
# Tests start hundreds of processes: each would compile all of Tiermesh where the environment forbids bytecode files.
unexport PYTHONDONTWRITEBYTECODE
pytest := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --hypothesis-profile $(HYPOTHESIS)

# A stamp's name contains the checksum of its inputs. Changed constraints give a new .venv, a changed pyproject.toml or
# C file reinstalls Tiermesh, and both also work when an earlier commit is checked out. So does a lost C library. The sdk
# goes first: until version 0.1 its distribution's name was the application's, so pip removes what is left of that, the
# command included.
packages := .venv/.packages-$(shell cksum < constraints.txt | tr ' ' -)
inputs := constraints.txt pyproject.toml sdk/pyproject.toml setup.py native/build.py $(sort $(wildcard native/*.[ch]))
installed := .venv/.installed-$(shell cat $(inputs) | cksum | tr ' ' -)
$(if $(wildcard native/libtiermesh.so),,$(shell rm -f .venv/.installed-*))

.PHONY: help install demo docs test test-all test-slow test-hardware browser pictures torch simulate fuzz lint bench lock protos clean

help:
	@sed -n "s/^# \(make [a-z-]* .*\)/\1/p" Makefile

install: $(installed)

$(installed): $(packages)
	@for folder in sdk .; do \
	    $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e $$folder || exit; \
	done
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
	@$(BIN)/tiermesh local configs/training_configs/demo.yaml --tiers 3 --workers 2 --state-dir build/demo \
	    --web --web-listen 127.0.0.1:0

test: lint
	$(pytest)

test-all: install
	$(pytest) -m 'long and not slow and not hardware'

test-slow: install
	$(BIN)/python -m pytest -m slow

test-hardware: install
	$(BIN)/python -m pytest -m hardware -rs tests/hardware

browser:
	@sh scripts/unpack_chromium.sh

pictures: install browser
	$(BIN)/python -m tests.web.browser.pictures

torch: install
	@$(BIN)/python -m benchmarks.harness.peer

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
	$(BIN)/python scripts/check_page.py

docs: install
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -c docs/site . build/docs
	@echo build/docs/docs/index.html

bench: install
	@$(BIN)/python -m benchmarks $(ONLY)

lock:
	$(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-annotate --custom-compile-command "make lock" --extra dev \
	    pyproject.toml sdk/pyproject.toml -o constraints.txt

protos: install
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto
	@rm -f protos/checks_pb2_grpc.py protos/compute_pb2_grpc.py protos/tensors_pb2_grpc.py  # they have no service
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. mesh/descriptors/mesh_graph.proto

clean:
	rm -rf .venv build native/libtiermesh.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
