#!/bin/sh
# report_test.sh <fashion_mnist_report>: the demo's report compares the runs and draws their curves; it fails when a run is short
# of the accuracy, has not finished, or the curves cannot be written.
set -eu
report=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

curve() {  # curve <name> <last line>
  printf '640 1.5 0.9\n1280 3 0.4\n%s\n' "$2" >"$work/$1"
}
curve good 'total 1280 3 0.8900'
curve faster 'total 2560 3 0.8950'
curve short 'total 1280 3 0.8700'
curve unfinished '1920 4.5 0.3'

svg=$work/curves.svg
expect() {  # expect <exit code> <what it must say> <curve...>
  code=$1 words=$2
  shift 2
  arguments=
  for name in "$@"; do
    arguments="$arguments $name=$work/$name"
  done
  status=0
  # shellcheck disable=SC2086 # the arguments are words
  "$report" "$svg" 0.88 $arguments >"$work/output" 2>&1 || status=$?
  if [ "$status" -ne "$code" ] || ! grep -q "$words" "$work/output"; then
    echo "$*: expected exit code $code and '$words', found $status and"
    cat "$work/output"
    exit 1
  fi
}

expect 0 'loss curves: ' good
expect 0 '^good  *89.00%  *427  *3.0  *1.00x$' good faster
grep -q '^faster  *89.50%  *853  *3.0  *2.00x$' "$work/output"
[ "$(grep -c '<polyline ' "$svg")" -eq 2 ]
grep -q '>faster</text>' "$svg"
expect 1 'FAILED: short: expected a test accuracy of at least 0.88, found 0.87' good short
expect 1 'FAILED: unfinished: .* found no finished run' good unfinished
svg=$work/nowhere/curves.svg
expect 1 'FAILED: the loss curves cannot be written to ' good
