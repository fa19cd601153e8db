#!/bin/sh
# format_test.sh <source folder>: every source is as .clang-format has it. 77 (skipped) without the version that it is written for:
# others lay out a few lines differently.
set -eu
cd "$1"
format=$(command -v clang-format-14 || command -v clang-format) || { echo "no clang-format"; exit 77; }
case $("$format" --version) in *' version 14.'*) ;; *) echo "not version 14: $("$format" --version)"; exit 77 ;; esac
cmake/sources.sh | xargs -P 4 -n 40 "$format" --dry-run --Werror
