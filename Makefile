# The front door: names for what scripts/setup, the CMake presets and the tool do.
# `make demo` and `make test` need nothing but Debian 12, root and the network: they install what is missing.

PRESET ?= dev
JOBS ?= $(shell nproc)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CTEST_PARALLEL_LEVEL := $(JOBS)

build_preset = cmake --preset $(1) >/dev/null && cmake --build build/$(1) --parallel $(JOBS)
test_preset = ctest --test-dir build/$(1) --output-on-failure --no-tests=error

.PHONY: help setup build demo test asan bench nightly format clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Install what building and testing need and this machine lacks
	@scripts/setup core

build: setup ## Build the library, the tool and the tests into build/dev
	@$(call build_preset,$(PRESET))

demo: build ## Set up, build, and run WTConv on real images: unfused against the fastest backend here
	@build/$(PRESET)/wtconv compare --fashion-mnist --out out/compare.png

test: build ## Set up, build, and run every test
	@$(call test_preset,$(PRESET)) -LE nightly

asan: setup ## The tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call build_preset,asan)
	@$(call test_preset,asan) -LE nightly

bench: setup ## Time every backend on the cases of cases/perf, beside oneDNN
	@scripts/setup bench
	@$(call build_preset,bench)

nightly: build ## The exhaustive tests, and a minute of fuzzing
	@$(call test_preset,$(PRESET))
	@scripts/setup fuzz
	@$(call build_preset,fuzz)

format: setup ## Format the C++ sources
	@git ls-files -z '*.hpp' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format -i

clean: ## Remove what was built; .venv stays
	@rm -rf build out
