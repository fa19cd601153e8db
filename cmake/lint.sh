#!/bin/sh
# Format, include directions and clang-tidy (on the core; LibTorch's headers take minutes a file).
set -u
cd "$(dirname "$0")/.."
failed=

echo "== clang-format"
cmake/sources.sh | xargs clang-format --dry-run --Werror || failed="$failed clang-format"

echo "== include directions"
cmake -P cmake/CheckLayers.cmake || failed="$failed layers"

echo "== clang-tidy"
cmake -S . -B build-lint -G Ninja -DDOWNPOUR_WITH_TORCH=OFF -DCMAKE_CXX_COMPILER=clang++ -DDOWNPOUR_CCACHE=OFF >/dev/null || failed="$failed configure"
core=$(find csrc/base csrc/transport csrc/ps csrc/collective csrc/launch -name '*.cpp' | sort)
printf '%s\n' $core | xargs -P "${JOBS:-$(nproc)}" -n 1 clang-tidy -p build-lint --quiet --warnings-as-errors='*' 2>/dev/null || failed="$failed clang-tidy"

if [ -n "$failed" ]; then
  echo "make lint: FAILED:$failed"
  exit 1
fi
echo "make lint: clean"
