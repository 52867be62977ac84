#!/usr/bin/env bash
# Runs the GPU tests of out/gpu-bundle (made by `cmake --build --preset gpu-bundle`) on this machine's GPUs, or those of CUDA_VISIBLE_DEVICES.
#   scripts/gpu_test.sh [LOG_DIR]                                     every test program in shards, side by side, and random cases of attention_fuzz
#   SANITIZERS="memcheck racecheck" scripts/gpu_test.sh [LOG_DIR]     then every test case under compute-sanitizer's tools (initcheck and synccheck too), a process each
# GTEST_FILTER narrows the tests, FUZZ_COUNT (400; 0: none) and FUZZ_SEED set the random cases, JOBS (two less than there are cores) the processes, CASE_SECONDS (400) what a case
# may take under a sanitizer, STORE (a new one) the folder of compiled kernels, which a second run then takes. Status 0 only if all pass and the sanitizers
# are silent; what failed is listed. The sanitizers' runs take the kernels that the first run compiled.
set -uo pipefail
cd "$(dirname "$0")/../out/gpu-bundle"
logs=${1:-$(mktemp -d)}
mkdir -p "$logs"
PAGETUNE_CACHE_DIR=${STORE:-$(mktemp -d)}
export PAGETUNE_CACHE_DIR PAGETUNE_TEST_DEVICE=cuda:0 PAGETUNE_TEST_STORE="$PAGETUNE_CACHE_DIR/tests" logs
failed=0
jobs=${JOBS:-$(($(nproc) - 2))}
gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}
if [[ -z $gpus ]]; then
  echo "no GPU: nvidia-smi lists none; check the driver and CUDA_VISIBLE_DEVICES" >&2
  exit 1
fi
export gpus jobs

# Each process has another GPU first, and sees all: some tests want two.
turn() { xargs --process-slot-var=slot -P "$jobs" "$@"; }
pin() {
  local all first
  IFS=, read -ra all <<<"$gpus"
  first=$((slot % ${#all[@]}))
  all=("${all[@]:first}" "${all[@]:0:first}")
  CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${all[*]}")
  export CUDA_VISIBLE_DEVICES
}

# A program's shard: which tests it has is GoogleTest's business. More shards than processes, so that one with long tests holds up little.
run_shard() {
  local program=$1 shard=$2 shards=$3 start=$SECONDS verdict
  local log="$logs/$program.$shard.log"
  if GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "./$program" --gtest_brief=1 >"$log" 2>&1; then verdict=ok; else verdict="FAILED ($?)"; fi
  echo "$program $((shard + 1))/$shards: $verdict, $((SECONDS - start)) s; $(grep -hE 'PASSED|SKIPPED|FAILED  ' "$log" | tr -s ' \n' ' ')"
}
run_fuzz() {
  local start=$SECONDS verdict log="$logs/attention_fuzz.log"
  if ./attention_fuzz --count "$1" --seed "${FUZZ_SEED:-1}" --device "$PAGETUNE_TEST_DEVICE" --threads "$((jobs / 2 + 1))" >"$log" 2>&1; then verdict=ok; else verdict="FAILED ($?)"; fi
  echo "attention_fuzz: $verdict, $((SECONDS - start)) s; $(grep -h WRONG "$log" | head -3 | tr -s ' \n' ' ') $(tail -n 1 "$log")"
}

# No device memory is leaked by design: the process's end returns it. Errors of the driver's API that a test provokes are not faults.
run_case() {
  local start=$SECONDS log="$logs/$1.${2//\//_}.$tool.log"
  if timeout "${CASE_SECONDS:-400}" compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no --target-processes all \
    ./"$1" --gtest_brief=1 --gtest_filter="$2" >"$log" 2>&1; then
    echo "$1 $2: ok, $((SECONDS - start)) s"
  else
    echo "$1 $2: FAILED ($?), $((SECONDS - start)) s; $(grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY|Internal Sanitizer Error|FAILED  ' "$log" | head -3 | tr -s ' \n' ' ')"
  fi
}
export -f pin run_shard run_fuzz run_case

# Lines of function and arguments. The fuzzer and the programs that are not shared out go first: they take longest.
list_work() {
  local program shards shard
  if ((${FUZZ_COUNT:-400} > 0)); then echo "run_fuzz ${FUZZ_COUNT:-400}"; fi
  for program in *_test; do
    if [[ $program != attention_device_test ]]; then echo "run_shard $program 0 1"; fi
  done
  shards=$((2 * jobs))
  for ((shard = 0; shard < shards; ++shard)); do echo "run_shard attention_device_test $shard $shards"; done
}

verdicts=$(list_work | turn -I{} bash -c 'pin; {}')
echo "$verdicts"
echo "$(grep -c ': ok' <<<"$verdicts") of $(wc -l <<<"$verdicts") runs passed in $SECONDS s; logs in $logs"
if grep -q FAILED <<<"$verdicts"; then failed=1; fi

# The kernels of tuner_faults_test fault on purpose. Stopped from outside, a tool's run says how far it got, and names the cases without a verdict: they were running, or had not begun.
stopped() {
  echo "$tool: stopped after $((SECONDS - start)) s with $(grep -c ': ok,' "$logs/$tool.txt") test cases clean; without a verdict: $(for program in *_test; do cases_of "$program"; done | while read -r program case; do grep -qF "$program $case:" "$logs/$tool.txt" || echo "$case"; done | paste -sd' ')"
  exit 1
}
cases_of() { [[ $1 == tuner_faults_test ]] || ./"$1" --gtest_list_tests | awk -v p="$1" '/^[^ ]/ { suite = $1 } /^ / { print p, suite $1 }'; }

export tool PAGETUNE_TEST_SANITIZED=1
trap stopped TERM INT
for tool in ${SANITIZERS:-}; do
  start=$SECONDS
  verdicts=$(for program in *_test; do cases_of "$program"; done | turn -L 1 bash -c 'pin; run_case "$0" "$1"' | tee "$logs/$tool.txt")
  grep FAILED <<<"$verdicts" && failed=1
  echo "$tool: $(grep -c ': ok,' <<<"$verdicts") of $(wc -l <<<"$verdicts") test cases clean in $((SECONDS - start)) s; longest: $(sed 's/.*_test \(.*\): [^,]*, \([0-9]*\) s.*/\2 s \1/' <<<"$verdicts" | sort -rn | head -3 | paste -sd, -)"
done
exit $failed
