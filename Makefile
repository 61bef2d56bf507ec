# Two targets set up and run everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
PARITY ?= .venv-parity
BIN := $(VENV)/bin
RUNS ?= runs
TORCH ?= 2.13.0
GPU_WHEELS := 'gymnasium>=1.1,<2' farama-notifications cloudpickle 'msgspec>=0.20' 'tantivy>=0.24' 'httpx>=0.27' \
	httpcore h11 idna certifi 'anyio>=4.3' typing-extensions 'rich>=13.7' markdown-it-py mdurl pygments

export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test lint speed gpu-check parity format clean

demo: $(VENV)/.core  ## compare the agents on the synthetic Wikipedia; no torch, a minute
	$(BIN)/mempo demo --out $(RUNS)/demo

test: $(VENV)/.dev lint  ## lint, types, the import rule and all tests
	$(BIN)/python -m pytest -n 2 --dist loadscope

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

speed: $(VENV)/.dev  ## side by side with skyrl-gym, gem-llm, verl and TRL, each in its own environment
	$(BIN)/python -m mempo_benchmarks.speed --out $(RUNS)/speed
	$(BIN)/python -m mempo_benchmarks.speed.scoring --rollouts 4
	$(BIN)/python -m mempo_benchmarks.speed.trainer --out $(RUNS)/speed

gpu-check: $(RUNS)/gpu-check/wheels  ## scoring, sampling, training on a CUDA GPU; brings what Python 3.12 lacks there
	$(PYTHON) benchmarks/mempo_benchmarks/gpu_check --wheels $< --out $(RUNS)/gpu-check/gpu-check.json

$(RUNS)/gpu-check/wheels:  # without a network the script says what it lacks
	-$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest $@.part $(GPU_WHEELS) \
		&& mv $@.part $@

parity:  ## losses and advantages beside verl's and TRL's own functions, in an environment of their own
	$(PYTHON) tests/parity $(PARITY)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PARITY) $(RUNS) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.core
