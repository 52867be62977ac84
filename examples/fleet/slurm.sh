#!/usr/bin/env bash
# Tunes a model on many machines of a Slurm cluster, then merges and exports what they found.
#
#   examples/fleet/slurm.sh submit MODEL.json OUT SHARDS [option of tune]...
#
# OUT is a directory that all nodes see; MODEL.json lies where they see it too. Options of sbatch come from its variables (SBATCH_PARTITION, SBATCH_GPUS,
# SBATCH_TIMELIMIT), the program from PAGETUNE. Task i tunes shard i into the store OUT/shard-i; when all tasks have ended, one job merges the stores
# into OUT/merged and exports its winners to OUT/tables. OUT/log holds what they print.
set -euo pipefail

pagetune=${PAGETUNE:-pagetune}
if (($# < 4)); then
  echo "usage: slurm.sh submit|tune|merge MODEL.json OUT SHARDS [option of tune]..." >&2
  exit 2
fi

submit() {  # MODEL OUT SHARDS [option]...
  mkdir -p "$2/log"
  local array merge
  array=$(sbatch --parsable --job-name=pagetune-tune --requeue --array="0-$(($3 - 1))" --output="$2/log/tune-%a.txt" --open-mode=append "$0" tune "$@")
  # afterany: a task that failed must not keep the others' winners from being merged.
  merge=$(sbatch --parsable --job-name=pagetune-merge --dependency="afterany:${array%%;*}" --output="$2/log/merge.txt" "$0" merge "$@")
  echo "job ${array%%;*} tunes $3 shards, then job ${merge%%;*} merges them"
}

tune() {  # MODEL OUT SHARDS [option]...
  local model=$1 out=$2
  # The count by itself, so that a task that is submitted again alone knows its shard.
  export PAGETUNE_SHARDS=$3
  export PAGETUNE_CACHE_DIR=$out/shard-$SLURM_ARRAY_TASK_ID
  "$pagetune" tune "$model" "${@:4}"
}

merge() {  # MODEL OUT SHARDS
  local out=$2 stores=() i code=0
  for ((i = 0; i < $3; i++)); do stores+=("$out/shard-$i"); done
  # 3: some stores could not be read, and the log says which. What there is is exported.
  "$pagetune" merge "${stores[@]}" --into "$out/merged" || code=$?
  if ((code == 0 || code == 3)); then PAGETUNE_CACHE_DIR=$out/merged "$pagetune" export --out "$out/tables" || code=$?; fi
  return "$code"
}

case $1 in
  submit | tune | merge) "$@" ;;
  *) echo "slurm.sh: '$1' is not one of submit, tune, merge" >&2; exit 2 ;;
esac
