#!/bin/sh
# Installs what building, testing and the demo need from the distribution, and nothing that is there already.
# As root it calls apt-get; otherwise it prints the line to run and fails.
set -eu

packages="
  g++ make cmake ninja-build ccache pkg-config
  python3 python3-pip
  clang clang-format clang-tidy libclang-rt-14-dev
  libhwy-dev libxxhash-dev
  libcli11-dev nlohmann-json3-dev libspdlog-dev
  libgtest-dev libgmock-dev libgloo-dev
  zlib1g-dev dataset-fashion-mnist
  gdb
"

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system; install the equivalents of:" $packages >&2
  exit 0  # CMake names what it misses
fi

# dpkg-query prints a line for each package that it knows, in any order, and fails if it knows one of them not at all.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null | sed -n 's/^installed //p') || true
missing=
for package in $packages; do
  printf '%s\n' "$installed" | grep -qxF "$package" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "setup: packages are missing and only root can install them. Run:" >&2
  echo "  sudo apt-get update && sudo apt-get install --no-install-recommends$missing" >&2
  exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends $missing
