#!/bin/sh
# layers_test.sh <CheckLayers.cmake>: on trees that are made up it finds what it must, and does not pass where there is nothing.
set -eu
check=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

expect() {  # expect <passes or fails> <what it must say>
  result=passes
  cmake -DROOT="$work/tree" -P "$check" >"$work/output" 2>&1 || result=fails
  if [ "$result" != "$1" ] || ! grep -qF "$2" "$work/output"; then
    echo "expected that it $1 with '$2'; it $result with"
    cat "$work/output"
    exit 1
  fi
}

mkdir -p "$work/tree/csrc/base" "$work/tree/csrc/ps" "$work/tree/csrc/extra"
expect fails 'nothing was checked'
echo '#include "csrc/base/bytes.h"' >"$work/tree/csrc/ps/shard.h"
expect passes '1 includes checked'
echo '#include "csrc/ps/shard.h"' >"$work/tree/csrc/base/bytes.h"
expect fails 'csrc/base/bytes.h: includes csrc/ps/shard.h, but csrc/base may include csrc/base'
echo '#include <torch/torch.h>' >"$work/tree/csrc/base/bytes.h"
expect fails 'csrc/base/bytes.h: includes torch/torch.h'
echo '#include "bytes.h"' >"$work/tree/csrc/base/bytes.h"
expect fails 'write the path from the repository root'
echo '#include "csrc/base/clock.h"' >"$work/tree/csrc/base/bytes.h"
expect passes '2 includes checked'
echo '#include <vector>' >"$work/tree/csrc/extra/extra.cpp"
expect fails 'folder csrc/extra is no layer'
