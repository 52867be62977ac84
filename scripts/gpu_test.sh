#!/usr/bin/env bash
# Runs the GPU tests of out/gpu-bundle (made by `cmake --build --preset gpu-bundle`) on this machine's first GPU.
#   scripts/gpu_test.sh [LOG_DIR]                      every test program
#   SANITIZER=memcheck scripts/gpu_test.sh [LOG_DIR]   each under compute-sanitizer (memcheck, racecheck, initcheck)
# The programs run side by side. GTEST_FILTER narrows the tests. Status 0 only if all pass and the sanitizer is silent.
set -uo pipefail
cd "$(dirname "$0")/../out/gpu-bundle"
logs=${1:-$(mktemp -d)}
mkdir -p "$logs"
PAGETUNE_CACHE_DIR=$(mktemp -d)
export PAGETUNE_CACHE_DIR PAGETUNE_TEST_DEVICE=cuda:0
wrap=()
name=plain
if [[ -n ${SANITIZER:-} ]]; then
  # No device memory is leaked by design: the process's end returns it. Errors of the driver's API that a test provokes are not faults.
  wrap=(compute-sanitizer --tool "$SANITIZER" --error-exitcode 9 --report-api-errors no --target-processes all)
  name=$SANITIZER
fi
declare -A running
for program in *_test; do
  "${wrap[@]}" ./"$program" --gtest_brief=1 >"$logs/$program.$name.log" 2>&1 &
  running[$program]=$!
done
status=0
for program in "${!running[@]}"; do
  if wait "${running[$program]}"; then verdict=ok; else verdict="FAILED ($?)"; status=1; fi
  summary=$(grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY|PASSED|FAILED  ' "$logs/$program.$name.log" | sort | uniq -c | sort -rn | head -4 | tr -s ' \n' ' ')
  echo "$program $name: $verdict; $summary"
done
exit $status
