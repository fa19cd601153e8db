#!/bin/sh
# fuzz.sh <build folder>: runs each fuzz target that CMake names there for a while on its corpus. Fails where one finds something,
# where one was not built, and where there is none. FUZZ_SECONDS=n changes the time a target.
set -u
build=$(cd "$1" && pwd) || exit 1
cd "$(dirname "$0")/.."
passes=0 failures=0

run() {  # run <name>
  corpus=tests/fuzz/corpus/$1
  [ -d "$corpus" ] || corpus=
  # New inputs land in the first folder, so the checked-in corpus stays as it is.
  mkdir -p "$build/corpus/$1"
  "$build/bin/fuzz_$1" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/$1-" "$build/corpus/$1" $corpus >"$build/$1.log" 2>&1
}

for name in $(cat "$build/fuzz_targets"); do
  if run "$name"; then
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs"
    passes=$((passes + 1))
  else
    tail -n 40 "$build/$name.log"
    echo "fuzz_$name: failed"
    failures=$((failures + 1))
  fi
done
echo "fuzz: $passes passed, $failures failed"
[ "$failures" -eq 0 ] && [ "$passes" -gt 0 ]
