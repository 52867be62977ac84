#!/usr/bin/env bash
# Fuzzes the parsers of data from outside: scripts/fuzz.sh [SECONDS] [PARSER…], 620 seconds each and all of them unless named. What covers more goes into tests/fuzz/corpus/PARSER,
# up to 150 files and 300 kB; an input that ends a program or takes over a second is written to build/fuzz/found and named, with status 1. Needs clang-19 and
# libclang-rt-19-dev. JOBS (all cores) parsers run side by side; SEED (1) is libFuzzer's.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-620}
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
export seconds SEED=${SEED:-1} ASAN_OPTIONS=allocator_may_return_null=1

fuzz() {
  local parser=$1 seeds=tests/fuzz/corpus/$1 work=build/fuzz/corpus/$1 found=build/fuzz/found/$1 dictionary=() failed=0
  if [[ -f tests/fuzz/dict/$parser.dict ]]; then dictionary=("-dict=tests/fuzz/dict/$parser.dict"); fi
  mkdir -p "$work"
  rm -f "$found"-*
  "build/fuzz/bin/fuzz_$parser" -seed="$SEED" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -report_slow_units=1 -print_final_stats=1 "${dictionary[@]}" \
    -artifact_prefix="$found-" "$work" "$seeds" >"$found.log" 2>&1 || failed=1
  if ((failed)) || compgen -G "$found-*" >/dev/null; then
    echo "$parser: FAILED; $(grep -a -m1 -E 'ERROR|runtime error|does not hold|refused with|SUMMARY|Slowest unit' "$found.log")" "$found"-*
    return 1
  fi
  echo "$parser: $(grep -a -E '^#[0-9]+[[:space:]]+INITED' "$found.log"); $(grep -a -E '^#[0-9]+[[:space:]]+DONE' "$found.log")"
  keep "$parser"
}

# The fewest inputs that meet every edge, however often: a corpus that the tests replay in a second. What is over 8 KiB is cut before it is judged. The largest first: they reach
# what follows a whole document, the smallest one refusal each.
keep() {
  local parser=$1 seeds=tests/fuzz/corpus/$1 small=build/fuzz/corpus/$1.small files bytes size name
  rm -rf "$small"
  cp -r "$seeds" "$small"
  "build/fuzz/bin/fuzz_$parser" -set_cover_merge=1 -use_counters=0 -max_len=8192 "$small" "build/fuzz/corpus/$parser" >"build/fuzz/found/$parser.merge.log" 2>&1
  files=$(find "$seeds" -type f | wc -l)
  bytes=$(find "$seeds" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum + 0 }')
  while read -r size name; do
    if [[ -e $seeds/$name ]]; then continue; fi
    if ((++files > 150 || (bytes += size) > 300000)); then break; fi
    cp "$small/$name" "$seeds/"
  done < <(find "$small" -type f -printf '%s %f\n' | sort -rn)
}
export -f fuzz keep
printf '%s\n' "${parsers[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'fuzz {}'
