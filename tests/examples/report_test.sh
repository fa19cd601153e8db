#!/bin/sh
# report_test.sh <fashion_mnist_report>: the demo's report fails when a run is short of the accuracy, or has not finished.
set -eu
report=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

curve() {  # curve <name> <last line>
  printf '640 1.5 0.9\n1280 3 0.4\n%s\n' "$2" >"$work/$1"
}
curve good 'total 1280 3 0.8900'
curve short 'total 1280 3 0.8700'
curve unfinished '1920 4.5 0.3'

expect() {  # expect <exit code> <what it must say> <curve...>
  code=$1 words=$2
  shift 2
  arguments=
  for name in "$@"; do
    arguments="$arguments $name=$work/$name"
  done
  status=0
  # shellcheck disable=SC2086 # the arguments are words
  "$report" "$work/curves.svg" 0.88 $arguments >"$work/output" 2>&1 || status=$?
  if [ "$status" -ne "$code" ] || ! grep -q "$words" "$work/output"; then
    echo "$*: expected exit code $code and '$words', found $status and"
    cat "$work/output"
    exit 1
  fi
}

expect 0 'loss curves: ' good
expect 1 'FAILED: short: expected a test accuracy of at least 0.88, found 0.87' good short
expect 1 'FAILED: unfinished: .* found no finished run' good unfinished
