#!/bin/sh
# readme_test.sh <source folder>: the difference that the README shows is that of the two programs.
set -eu
cd "$1"
shown=$(sed -n '/^```diff$/,/^```$/p' README.md | sed '1d;$d')
real=$(diff -U1 --label fashion_mnist_plain.cpp --label fashion_mnist.cpp \
  examples/fashion_mnist_plain/fashion_mnist_plain.cpp examples/fashion_mnist/fashion_mnist.cpp) || true
if [ "$shown" != "$real" ]; then
  echo "README.md shows another difference than this one:"
  printf '%s\n' "$real"
  exit 1
fi
