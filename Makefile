# Thin over CMake presets: `make demo | test | bench | lint | clean`. Everything runs `setup` first, which does nothing
# when nothing is missing. JOBS=n sets the number of parallel jobs.
JOBS ?= $(shell nproc)

.PHONY: build demo test bench lint format setup clean
build: setup build/build.ninja
	@cmake --build build --parallel $(JOBS)

demo: setup build/build.ninja
	@cmake --build build --parallel $(JOBS) --target downpour_launcher downpour_examples
	@examples/fashion_mnist/demo.sh

test: setup
	@JOBS=$(JOBS) cmake/test.sh

bench: build
	@cmake/bench.sh

lint: setup
	@JOBS=$(JOBS) cmake/lint.sh

format: setup
	@cmake/sources.sh | xargs clang-format -i

setup:
	@cmake/setup.sh

# Ninja configures again by itself, but does not watch the presets. CMake itself may come from the setup, also under -j.
build/build.ninja: CMakePresets.json | setup
	@cmake --preset default --log-level=NOTICE
	@touch $@

clean:
	rm -rf build build-asan build-tsan build-fuzz build-cuda build-torch-2.11 build-lint build-subdirectory build-fetch_content*
