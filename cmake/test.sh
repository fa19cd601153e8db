#!/bin/sh
# All that `make test` does: the tests of the default build (the consumer projects among them), the core's under
# AddressSanitizer with UBSan and under ThreadSanitizer, and each fuzz target for a while on its corpus.
# Runs on after a failure; fails at the end if anything failed. FUZZ_SECONDS=n changes the time a target.
set -u
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
failed=

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

report() {  # report <what> <exit status>
  [ "$2" -eq 0 ] || failed="$failed $1"
}

# logged <what> <command...>: runs it and keeps what it printed, so that the end can say again why something failed.
logged() {
  what=$1
  shift
  { "$@" 2>&1; echo $? >"$logs/status"; } | tee "$logs/$what"
  return "$(cat "$logs/status")"
}

# ThreadSanitizer cannot place its shadow where the kernel randomises addresses over more than 28 bits.
fixed_addresses=
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ]; then
  fixed_addresses="setarch $(uname -m) -R"
fi

# Under the sanitizers: the core's own tests, not those that start processes.
core_tests='base_test transport_test ps_test'
core_labels='^(base|transport|ps)$'

check() {  # check <preset> <targets or all> <labels> [command before ctest...]
  preset=$1
  targets=$2
  labels=$3
  shift 3
  echo "== $preset"
  logged "$preset" cmake --preset "$preset" --log-level=NOTICE || { report "$preset" 1; return; }
  # shellcheck disable=SC2086 # the targets are words
  logged "$preset" cmake --build --preset "$preset" --parallel "$jobs" --target $targets || { report "$preset" 1; return; }
  logged "$preset" "$@" ctest --preset "$preset" --parallel "$jobs" --no-tests=error -L "$labels"
  report "$preset" $?
}

fuzz() {
  echo "== fuzz"
  logged fuzz cmake --preset fuzz --log-level=NOTICE || { report fuzz 1; return; }
  logged fuzz cmake --build --preset fuzz --parallel "$jobs" || { report fuzz 1; return; }
  passes=0 failures=0
  for program in build-fuzz/bin/fuzz_*; do
    [ -x "$program" ] || continue
    name=${program##*/fuzz_}
    corpus=tests/fuzz/corpus/$name
    [ -d "$corpus" ] || corpus=
    # New inputs land in the first folder, so the checked-in corpus stays as it is.
    mkdir -p "build-fuzz/corpus/$name"
    if "$program" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
         -artifact_prefix="build-fuzz/$name-" "build-fuzz/corpus/$name" $corpus >"build-fuzz/$name.log" 2>&1; then
      echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$name.log") inputs"
      passes=$((passes + 1))
    else
      tail -n 40 "build-fuzz/$name.log" | tee "$logs/fuzz"
      failures=$((failures + 1))
    fi
  done
  echo "fuzz: $passes passed, $failures failed"
  report fuzz $failures
}

# What was just built is up to date: a second run of the same build has nothing to do.
second_build() {
  echo "== second build"
  logged second-build cmake --build --preset default || { report second-build 1; return; }
  grep -q 'no work to do' "$logs/second-build"
  report second-build $?
}

check default all . env
second_build
check asan "$core_tests" "$core_labels" env
# shellcheck disable=SC2086 # empty or words
check tsan "$core_tests" "$core_labels" $fixed_addresses env
fuzz

if [ -n "$failed" ]; then
  for what in $failed; do
    echo "== again: why $what failed"
    grep -v '[.]* *Passed \| Start *[0-9]' "$logs/$what" | tail -n 60
  done
  echo "make test: FAILED:$failed"
  exit 1
fi
echo "make test: all passed"
