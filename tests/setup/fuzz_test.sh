#!/bin/sh
# fuzz_test.sh <fuzz.sh>: what runs the fuzz targets does not pass where one found something, was not built, or where none is.
set -eu
fuzz=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

target() {  # target <name> <exit status>
  printf '#!/bin/sh\nexit %s\n' "$2" >"$work/bin/fuzz_$1"
  chmod +x "$work/bin/fuzz_$1"
}

expect() {  # expect <passes or fails> <names that CMake wrote> <what it must say>
  printf '%s\n' $2 >"$work/fuzz_targets"
  result=passes
  sh "$fuzz" "$work" >"$work/output" 2>&1 || result=fails
  if [ "$result" != "$1" ] || ! grep -qF "$3" "$work/output"; then
    echo "of '$2': expected that it $1 with '$3'; it $result with"
    cat "$work/output"
    exit 1
  fi
}

target good 0
target bad 1
expect passes good '1 passed, 0 failed'
expect fails '' '0 passed, 0 failed'
expect fails 'good bad' '1 passed, 1 failed'
expect fails 'good absent' '1 passed, 1 failed'
rm "$work/fuzz_targets"
! sh "$fuzz" "$work" >"$work/output" 2>&1
