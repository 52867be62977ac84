#!/usr/bin/env bash
# Runs the GPU tests of out/gpu-bundle (made by `cmake --build --preset gpu-bundle`) on this machine's first GPU.
#   scripts/gpu_test.sh [LOG_DIR]                      every test program, side by side
#   SANITIZER=memcheck scripts/gpu_test.sh [LOG_DIR]   every test case under compute-sanitizer (memcheck, racecheck, initcheck, synccheck), a process each
# GTEST_FILTER narrows the tests. Status 0 only if all pass and the sanitizer is silent; what failed is listed.
set -uo pipefail
cd "$(dirname "$0")/../out/gpu-bundle"
logs=${1:-$(mktemp -d)}
mkdir -p "$logs"
PAGETUNE_CACHE_DIR=$(mktemp -d)
export PAGETUNE_CACHE_DIR PAGETUNE_TEST_DEVICE=cuda:0 logs

run_program() {
  if ./"$1" --gtest_brief=1 >"$logs/$1.plain.log" 2>&1; then verdict=ok; else verdict="FAILED ($?)"; fi
  echo "$1: $verdict; $(grep -hE 'PASSED|FAILED  ' "$logs/$1.plain.log" | tr -s ' \n' ' ')"
}

# No device memory is leaked by design: the process's end returns it. Errors of the driver's API that a test provokes are not faults.
run_case() {
  local log="$logs/$1.${2//\//_}.$SANITIZER.log"
  if timeout "${CASE_SECONDS:-400}" compute-sanitizer --tool "$SANITIZER" --error-exitcode 9 --report-api-errors no --target-processes all \
    ./"$1" --gtest_brief=1 --gtest_filter="$2" >"$log" 2>&1; then
    echo "$1 $2: ok"
  else
    echo "$1 $2: FAILED ($?); $(grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY|Internal Sanitizer Error|FAILED  ' "$log" | head -3 | tr -s ' \n' ' ')"
  fi
}
export -f run_program run_case

if [[ -z ${SANITIZER:-} ]]; then
  verdicts=$(printf '%s\n' *_test | xargs -P 14 -I{} bash -c 'run_program {}')
  echo "$verdicts"
else
  export SANITIZER PAGETUNE_TEST_SANITIZED=1
  verdicts=$(for program in *_test; do
    ./"$program" --gtest_list_tests | awk -v p="$program" '/^[^ ]/ { suite = $1 } /^ / { print p, suite $1 }'
  done | xargs -P 14 -L 1 bash -c 'run_case "$0" "$1"')
  grep FAILED <<<"$verdicts"
  echo "$SANITIZER: $(grep -c ': ok$' <<<"$verdicts") of $(wc -l <<<"$verdicts") test cases clean"
fi
! grep -q FAILED <<<"$verdicts"
