# Every target does its own set-up; `make` alone lists them. What can be set, with its default:
#   PYTHON=python3   the interpreter of a new environment, 3.11 or later
#   VENV=.venv       where the environment stands; one that is there already is used as it is
#   CUDA=            cuda12, cuda13 or none; chosen by the NVIDIA driver and card where not given
#   ARGS=            handed on to the command: make demo ARGS="--device host", make test ARGS="-k halo"

PYTHON ?= python3
VENV   ?= .venv
NVCC   ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
BIN    := $(VENV)/bin
# Python compiles a module when it is imported first. To compile all of them takes longer than to install them.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile

# Without what Python compiled before, each process of the tests compiles PyTorch anew: 3 s.
export PYTHONDONTWRITEBYTECODE :=

# cuda13 serves drivers of CUDA 13 and later with cards of Turing (7.5) and later, cuda12 older ones.
CUDA ?= $(shell { nvidia-smi && nvidia-smi --query-gpu=compute_cap --format=csv,noheader; } 2>/dev/null \
	| sed -nE 's/.*CUDA[A-Z ]* Version: *([0-9]+).*/driver \1/p; s/^([0-9]+\.[0-9]+)$$/card \1/p' \
	| awk '$$1 == "driver" {driver = $$2} $$1 == "card" {card++; old += $$2 < 7.5} \
	       END {if (card) print (driver >= 13 && !old) ? "cuda13" : "cuda12"}')

# The wheels of this version are local to find-links or to PyTorch's CPU index: PyPI's, with gigabytes
# of CUDA, never match it.
TORCH       := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# Models to test with. Never with their dependencies: torchvision's torch is that of gigabytes.
MODELS      := torchvision==0.28.0 monai==1.6.1
# Doors to other packages are tested with these: each, and what its import needs. pip takes them in one go, in seconds.
DOORS       := einops==0.8.2 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 \
	accelerate==1.15.0 psutil==7.2.2 diffusers==0.42.1 huggingface-hub==2.4.0 safetensors==0.8.0 \
	httpx2==2.16.2 httpcore2==2.16.2 h11==0.16.0 truststore regex requests urllib3 idna certifi filelock
# nnU-Net and what it imports are half a gigabyte: for `make test-all` alone.
NNUNET      := nnunetv2==2.8.1 acvl-utils==0.2.6 batchgenerators==0.25.5 batchgeneratorsv2==0.3.6 \
	dynamic-network-architectures==0.4.4 timm==1.0.31 simpleitk==2.5.7 connected-components-3d==4.1.1 blosc2==4.14.1 \
	numexpr==2.14.2 ndindex==1.10.1 scikit-image==0.26.0 scikit-learn==1.9.1 joblib==1.6.0 pandas==3.1.1 seaborn==0.13.2 \
	imagecodecs==2026.3.6 imageio==2.38.1 lazy-loader==0.6 narwhals==2.29.0 threadpoolctl==3.8.0 six nibabel msgpack cloudpickle \
	httpx==0.28.1 httpcore==1.0.9 anyio==4.16.0

.PHONY: help demo test drawn test-all faults nightly gpu-test fuzz notebooks check format layout lint types docs figures kernels wheels clean distclean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

demo: $(VENV)/ready-plot ## convolution + bias + ReLU on an image larger than the memory limit
	@$(BIN)/ooc-cudnn demo $(ARGS)

test: $(VENV)/ready-dev $(VENV)/ready-torch $(VENV)/ready-dask ## all tests that this machine can run
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

drawn: $(VENV)/ready-dev $(VENV)/ready-torch ## 300 drawn modules of PyTorch against eager, which CI runs, too
	@$(BIN)/python -m pytest -m drawn -n auto --dist worksteal tests/fuzz $(ARGS)

test-all: export OOC_TESTS_EVERY_CASE = 1
test-all: $(VENV)/ready-nnunet test ## the same with every case of what `make test` takes a sample of: an hour

faults: $(VENV)/ready-dev ## Ctrl-C at every point of a repeated call, and all other faults: half an hour
	@FAULTS=all $(BIN)/python -m pytest --timeout 7200 tests/faults $(ARGS)

nightly: $(VENV)/ready-dev $(VENV)/ready-torch ## captures of 50 models of torchvision, timm and MONAI where they are installed: minutes
	@$(BIN)/python -m pytest -m nightly -n auto $(ARGS)

gpu-test: $(VENV)/ready-dev $(VENV)/ready-torch ## the tests that need a card, and only they
	@$(BIN)/python -m pytest -m gpu $(ARGS)

fuzz: $(VENV)/ready-dev $(VENV)/ready-torch ## drawn calls against float64: ARGS="--device cuda --seconds 300 --jobs 12"; ARGS="--modules" draws models
	@$(BIN)/python -m tests.fuzz $(ARGS)

notebooks: $(VENV)/ready-dev ## run the notebooks, and store them with their outputs; on a card they measure anew
	@$(BIN)/python -m notebooks.execute $(ARGS)

# Two at a time, but not what is set up: pip works in one environment.
check: $(VENV)/ready-dev $(VENV)/ready-docs $(VENV)/ready-torch $(VENV)/ready-dask ## format, lint, types, the site, and the kernels where nvcc is present
	@$(MAKE) --no-print-directory --keep-going --jobs 2 --output-sync layout lint types docs kernels

format: $(VENV)/ready-dev ## put the code in shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

layout: $(VENV)/ready-dev
	@$(BIN)/ruff format --check .

lint: $(VENV)/ready-dev
	@$(BIN)/ruff check .

types: $(VENV)/ready-dev
	@$(BIN)/mypy

# Warnings are errors: a link that leads nowhere, a page that nothing leads to, a docstring that does not parse.
docs: $(VENV)/ready-docs $(VENV)/ready-torch $(VENV)/ready-dask ## build the site: docs/_build/html/index.html
	@$(BIN)/python docs/settings_page.py --check
	@$(BIN)/python -m sphinx -b html -q -W --keep-going -j auto docs docs/_build/html

figures: $(VENV)/ready-dev ## every table and picture of README and docs, from benchmarks/results
	@$(BIN)/python -m benchmarks.regenerate $(ARGS)

# Instances of every kernel, for the oldest and the newest card that this nvcc knows, and for Hopper:
# sources take turns, and OOC_TESTS_EVERY_CASE=1 compiles each for all three.
# (Of a template by itself nvcc compiles nothing.)
kernels: export OOC_TESTS_ARCHITECTURES = sm_90 $(if $(NVCC),$(shell $(NVCC) --list-gpu-code | sort -t_ -k2n | sed -n '1p;$$p'))
kernels: export NVCC := $(NVCC)
kernels: $(VENV)/ready-dev
ifeq ($(NVCC),)
	@echo "kernels: no nvcc here, so kernels/*.cu are not compiled"
else
	@echo "kernels: compiling for $$OOC_TESTS_ARCHITECTURES"
	@$(BIN)/python -m pytest -q -n auto tests/devices/kernels/test_sources.py -k compiles_without_warnings
endif

# What is released, tried by each of some versions of Python where nothing else is installed.
PYTHONS ?= $(PYTHON)
wheels: $(VENV)/ready-dev ## wheel and sdist, checked and tried in clean environments: PYTHONS="python3.11 python3.12"
	@rm -rf dist && $(PIP) build twine
	@$(BIN)/python -m build --quiet --outdir dist . && $(BIN)/twine check --strict dist/*
	@set -e; for python in $(PYTHONS); do \
		at=$$(mktemp -d); $$python -m venv $$at; \
		$$at/bin/python -m pip install --disable-pip-version-check --quiet dist/*.whl; \
		(cd $$at && bin/python $(CURDIR)/tests/try_wheel.py); rm -rf $$at; \
	done

clean: ## remove what was built
	@rm -rf build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	@rm -rf $(VENV)

# --- set-up -------------------------------------------------------------------------------------------

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or later is needed, and $(PYTHON) is not: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		$(PYTHON) -c 'import sys; print("%s cannot make environments. On Debian and Ubuntu: sudo apt install python%d.%d-venv" \
			% (sys.executable, *sys.version_info[:2]))'; exit 1; }
	@echo "set-up: $(VENV), with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# ready-plot: what the demo needs; ready-dev: all that the checks and tests need.
$(VENV)/ready-%: pyproject.toml $(VENV)/pyvenv.cfg
	@extras="$(strip $* $(filter-out none,$(CUDA)))"; extras=$$(echo $$extras | tr ' ' ,); \
	echo "set-up: installing ooc_cudnn[$$extras] into $(VENV); this can take minutes"; \
	$(PIP) --editable ".[$$extras]"
	@touch $@

# The first attempt serves machines whose pip has the wheel at hand, the second all others.
$(VENV)/ready-torch: | $(VENV)/ready-dev
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
		echo "set-up: installing $(TORCH), which the tests compare with"; \
		$(PIP) $(TORCH) 2>/dev/null || $(PIP) --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH) 2>/dev/null; \
	} || echo "set-up: no $(TORCH) here, so the tests that compare with PyTorch are skipped. To see why:" \
		"$(BIN)/pip install --extra-index-url $(TORCH_INDEX) $(TORCH)"
	@for package in $(MODELS); do \
		$(BIN)/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$${package%%=*}'))" || \
			$(PIP) --retries 1 --no-deps $$package 2>/dev/null || \
			echo "set-up: no $$package here, so the tests with its models are skipped. To see why:" \
				"$(BIN)/pip install --no-deps $$package"; \
	done
	@$(BIN)/python -c "import importlib.util as u, sys; \
		sys.exit(not all(map(u.find_spec, ('einops', 'lightning', 'accelerate', 'diffusers'))))" || \
		$(PIP) --retries 1 --no-deps $(DOORS) 2>/dev/null || \
		echo "set-up: packages are missing here, so tests of doors to them are skipped. To see why:" \
			"$(BIN)/pip install --no-deps $(DOORS)"
	@touch $@

$(VENV)/ready-nnunet: | $(VENV)/ready-torch
	@$(BIN)/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('nnunetv2'))" || \
		$(PIP) --retries 1 --no-deps $(NNUNET) 2>/dev/null || \
		echo "set-up: no nnU-Net here, so its tests are skipped. To see why:" \
			"$(BIN)/pip install --no-deps $(NNUNET)"
	@touch $@

# The extra dask, for its tests; without it they are skipped.
$(VENV)/ready-dask: | $(VENV)/ready-dev
	@$(BIN)/python -c 'import dask.array, distributed, zarr' 2>/dev/null || { \
		echo "set-up: installing the extra dask"; \
		$(PIP) --retries 1 --editable ".[dask]" 2>/dev/null; \
	} || echo "set-up: no dask here, so its tests are skipped. To see why: $(BIN)/pip install -e '.[dask]'"
	@touch $@
