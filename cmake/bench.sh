#!/bin/sh
# Runs every benchmark of the default build. Each writes JSON objects, one a line, to its standard output (name, value,
# unit, peer, peer_value, ratio); they are printed and appended to build/bench.jsonl. What is for people goes to stderr.
set -u
cd "$(dirname "$0")/.."
failed=
for program in build/bin/bench_*; do
  [ -x "$program" ] || continue
  echo "== ${program##*/}"
  if ! "$program" >build/bench.out; then
    failed="$failed ${program##*/}"
  fi
  grep '^{' build/bench.out | tee -a build/bench.jsonl
done
rm -f build/bench.out
if [ -n "$failed" ]; then
  echo "make bench: FAILED:$failed"
  exit 1
fi
