#!/bin/sh
# All that `make test` does: the tests of the default build (the consumer projects among them), the core's under
# AddressSanitizer with UBSan and under ThreadSanitizer, and each fuzz target for a while on its corpus (cmake/fuzz.sh).
# Runs on after a failure; fails at the end if anything failed, and names what was skipped.
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

# Under the sanitizers: the core's own tests, not those that start processes, and the bugs that each sanitizer must find.
core_tests='base_test transport_test ps_test collective_test sanitizer_bugs'
core_labels='^(base|transport|ps|collective|sanitizers)$'

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
  logged fuzz cmake/fuzz.sh build-fuzz
  report fuzz $?
}

# What was just built is up to date: a second run of the same build has nothing to do.
second_build() {
  echo "== second build"
  logged second-build cmake --build --preset default || { report second-build 1; return; }
  grep -q 'no work to do' "$logs/second-build"
  report second-build $?
}

# Where everything is there, setting up again and configuring (a fresh folder, which remembers no path) do not even try to
# download anything.
second_setup() {
  echo "== second setup"
  mkdir "$logs/bin"
  for program in apt-get python3 pip pip3 curl wget git; do
    printf '#!/bin/sh\necho "%s was called: $*" >&2\nexit 1\n' "$program" >"$logs/bin/$program"
    chmod +x "$logs/bin/$program"
  done
  logged second-setup env PATH="$logs/bin:$PATH" sh -c 'cmake/setup.sh && cmake --preset default -B "$0" --log-level=NOTICE' "$logs/build" &&
    ! grep -q 'was called' "$logs/second-setup"
  report second-setup $?
}

# A test that was skipped has passed nothing: the end names them all.
skipped() {
  for what in default asan tsan; do
    [ ! -f "$logs/$what" ] || sed -n "s/^[ \t]*[0-9]* - \(.*\) (Skipped).*/  $what: \1/p" "$logs/$what"
  done
}

check default all . env
second_setup
second_build
check asan "$core_tests" "$core_labels" env
# shellcheck disable=SC2086 # empty or words
check tsan "$core_tests" "$core_labels" $fixed_addresses env
fuzz

if [ -n "$(skipped)" ]; then
  echo "== skipped"
  skipped
fi
if [ -n "$failed" ]; then
  for what in $failed; do
    echo "== again: why $what failed"
    grep -v '[.]* *Passed \| Start *[0-9]' "$logs/$what" | tail -n 60
  done
  echo "make test: FAILED:$failed"
  exit 1
fi
echo "make test: all passed"
