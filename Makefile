# The front door: names for what scripts/setup, the CMake presets, pip and the tool do.
# `make demo` and `make test` need nothing but Debian 12, root and the network: they install what is missing.

PRESET ?= dev
JOBS ?= $(shell nproc)
# `make test PYTHON=off` leaves PyTorch out, and needs no download of gigabytes.
PYTHON ?= on
# The CUDA kernels take minutes to compile: by default only where there is a GPU to run them, and for the C++ tests
# wherever there is a CUDA compiler. CUDA=ON builds them anyway, CUDA=OFF never.
CUDA ?= $(if $(wildcard /dev/nvidia0),AUTO,OFF)
ifneq ($(filter test test-cpp,$(MAKECMDGOALS)),)
CPP_CUDA := $(if $(filter file,$(origin CUDA)),AUTO,$(CUDA))
else
CPP_CUDA := $(CUDA)
endif
export CMAKE_ARGS := -DWTCONV_CUDA=$(CUDA)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CTEST_PARALLEL_LEVEL := $(JOBS)

build_preset = cmake --preset $(1) $(2) >/dev/null && cmake --build build/$(1) --parallel $(JOBS)
test_preset = ctest --test-dir build/$(1) --output-on-failure --no-tests=error

.PHONY: help build demo test asan bench nightly format clean python demo-cpp demo-python test-cpp test-python

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

build: ## Build the library, the tool and the tests into build/dev
	@scripts/setup core
	@$(call build_preset,$(PRESET),-D WTCONV_CUDA=$(CPP_CUDA))

python: ## Build the PyTorch package and install it into .venv
	@scripts/setup core python
	@pip install -q --no-build-isolation --no-deps --config-settings=build-dir=build/python .

demo: demo-cpp $(if $(filter on,$(PYTHON)),demo-python) ## Set up, build, run WTConv on real images, train a small network
demo-cpp: build
	@build/$(PRESET)/wtconv compare --fashion-mnist --out out/compare.png
demo-python: python
	@python -u examples/demo.py

test: test-cpp $(if $(filter on,$(PYTHON)),test-python) ## Set up, build, and run every test
test-cpp: build
	@$(call test_preset,$(PRESET)) -LE nightly
test-python: python
	@python -m pytest -q tests/python

asan: ## The C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup core
	@$(call build_preset,asan)
	@$(call test_preset,asan) -LE nightly --exclude-regex '^promises'

bench: ## Time the fastest backend on the cases of cases/perf.txt, beside unfused and oneDNN
	@scripts/setup core bench
	@$(call build_preset,bench,-D WTCONV_CUDA=$(CUDA))
	@build/bench/wtconv bench --cases cases/perf.txt --against unfused --against onednn

nightly: build $(if $(filter on,$(PYTHON)),python) ## The exhaustive tests, and a minute of fuzzing
	@$(call test_preset,$(PRESET))
	@scripts/setup fuzz
	@$(call build_preset,fuzz)
	@$(call test_preset,fuzz)
	@$(if $(filter on,$(PYTHON)),python -m pytest -q -m nightly tests/python)

format: ## Format the sources
	@scripts/setup core
	@git ls-files -z '*.hpp' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format -i
	@ruff format --quiet . && ruff check --quiet --fix .

clean: ## Remove what was built; .venv stays
	@rm -rf build out
