#!/bin/sh
# setup_test.sh <setup.sh> <case>: cmake/setup.sh with a package system and a user id that are made up.
set -eu
setup=$1
case=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

stub() {  # stub <name>: its script comes from standard input
  { echo '#!/bin/sh'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# The packages in $MISSING are unknown, those in $REMOVED are known but not installed; everything else is there.
stub dpkg-query <<'END'
status=0
for word in "$@"; do
  case " $MISSING " in *" $word "*) status=1; continue ;; esac
  case " $REMOVED " in *" $word "*) echo "config-files $word"; continue ;; esac
  case $word in -*) ;; *'{'*) ;; *) echo "installed $word" ;; esac
done
exit $status
END
stub id <<'END'
[ "$*" = -u ] && echo "$USER_ID"
END
stub apt-get <<'END'
echo "$@" >>"$APT_LOG"
END

fail() {
  echo "$case: $1" >&2
  sed 's/^/  | /' "$work/output" "$work/apt" >&2
  exit 1
}

expect_apt() {  # expect_apt <what it was called with, line by line>
  printf '%s' "$1" | cmp -s - "$work/apt" || fail "apt-get was not called as expected"
}

run() {  # run <user id> <missing> <removed>; sets $status
  : >"$work/apt"
  status=0
  USER_ID=$1 MISSING=$2 REMOVED=$3 APT_LOG=$work/apt PATH=$work/bin:$PATH sh "$setup" >"$work/output" 2>&1 || status=$?
}

case $case in
  nothing_missing)
    for user in 0 1000; do
      run "$user" '' ''
      [ "$status" -eq 0 ] || fail "exit status $status"
      [ ! -s "$work/output" ] || fail "it has something to say"
      expect_apt ''
    done
    ;;
  without_root)
    run 1000 libxxhash-dev 'ninja-build'
    [ "$status" -eq 1 ] || fail "exit status $status"
    grep -qxF '  sudo apt-get update && sudo apt-get install --no-install-recommends ninja-build libxxhash-dev' \
      "$work/output" || fail "it does not name exactly what is missing"
    expect_apt ''
    ;;
  as_root)
    run 0 libxxhash-dev 'ninja-build'
    [ "$status" -eq 0 ] || fail "exit status $status"
    expect_apt 'update -qq
install -y -qq --no-install-recommends ninja-build libxxhash-dev
'
    ;;
  *) fail "no such case" ;;
esac
