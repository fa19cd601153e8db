#!/bin/sh
# Prints all sources of ours, in whichever folders there are: what is formatted.
cd "$(dirname "$0")/.."
find . \( -name 'build*' -o -name '.*' ! -name . \) -prune -o -type f \( -name '*.h' -o -name '*.cpp' \) -print | sort
