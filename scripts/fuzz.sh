#!/usr/bin/env bash
# Fuzzes the parsers of data from outside: scripts/fuzz.sh [SECONDS] [PARSER…], 600 seconds each and all of them unless named. Finds go into tests/fuzz/corpus/PARSER, made as small as the
# coverage allows; an input that ends a program is written to build/fuzz/found and named, with status 1. Needs clang-19 and libclang-rt-19-dev. JOBS (all cores) parsers run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
if ! compgen -G '/usr/lib/llvm-19/lib/clang/19/lib/*/libclang_rt.fuzzer*' >/dev/null; then
  echo "libFuzzer for clang-19 is not installed: apt-get install clang-19 libclang-rt-19-dev" >&2
  exit 1
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
parsers=("$@")
if ((${#parsers[@]} == 0)); then for folder in tests/fuzz/corpus/*/; do parsers+=("$(basename "$folder")"); done; fi
mkdir -p build/fuzz/found build/fuzz/corpus
export seconds ASAN_OPTIONS=allocator_may_return_null=1

fuzz() {
  local parser=$1 seeds=tests/fuzz/corpus/$1 work=build/fuzz/corpus/$1
  mkdir -p "$work"
  if ! "build/fuzz/bin/fuzz_$parser" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=4096 -timeout=20 -artifact_prefix="build/fuzz/found/$parser-" "$work" "$seeds" >"build/fuzz/found/$parser.log" 2>&1; then
    echo "$parser: FAILED; $(grep -m1 -E 'ERROR|does not hold|refused with|SUMMARY' "build/fuzz/found/$parser.log"); build/fuzz/found/$parser-*"
    return 1
  fi
  rm -rf "$work.small"
  mkdir "$work.small"
  "build/fuzz/bin/fuzz_$parser" -merge=1 -max_len=4096 "$work.small" "$seeds" "$work" >/dev/null 2>&1
  echo "$parser: $(grep -c . <<<"$(ls "$work.small")") files in the corpus; $(tail -n 1 "build/fuzz/found/$parser.log")"
}
export -f fuzz
printf '%s\n' "${parsers[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'fuzz {}'
