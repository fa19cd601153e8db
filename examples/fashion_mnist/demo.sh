#!/usr/bin/env bash
# Trains the CNN on Fashion-MNIST with 2 servers and 2 workers beside a single process, and compares them.
# usage: examples/fashion_mnist/demo.sh [BIN_FOLDER]   EPOCHS, SEED and OUT may be set.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
bin=${1:-$here/build/bin}
out=${OUT:-$here/build/demo}
epochs=${EPOCHS:-2} seed=${SEED:-1}
packed=/usr/share/datasets/fashion-mnist
mkdir -p "$out/images"
for name in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
  [ -s "$out/images/$name" ] || gunzip -c "$packed/$name.gz" >"$out/images/$name.part"
  [ -s "$out/images/$name" ] || mv "$out/images/$name.part" "$out/images/$name"
done
cd "$out"
rm -f ./*.curve

# The single process gets the memory settings that the launcher gives its workers, so that only the parallelism differs.
plain() { "$bin/downpour" run --threads "$1" --quiet -- "$bin/fashion_mnist_plain" images "$epochs" "$seed" "$2"; }
echo "one process, 1 thread ..."
plain 1 plain-1.curve
echo "one process, $(nproc) threads ..."
plain "$(nproc)" plain-all.curve
echo "2 servers, 2 workers, 1 thread each ..."
"$bin/downpour" run --servers 2 --workers 2 --threads 1 -- "$bin/fashion_mnist" images "$epochs" "$seed" downpour.curve

"$bin/fashion_mnist_report" "$out/loss.svg" "${LEAST_ACCURACY:-0.88}" "one process, 1 thread=plain-1.curve" \
  "one process, $(nproc) threads=plain-all.curve" "Downpour, 2 workers x 1 thread=downpour.curve"
