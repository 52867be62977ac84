#!/usr/bin/env bash
# Installs what is missing, builds, and runs pagetune. With arguments: `pagetune <arguments>`. Without: tunes Llama-3.1-8B's decode
# attention on the best device of this machine (GPU, else CPU) for about a minute and prints the winners and where they are stored.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
root=$PWD
scripts/install.sh
source scripts/environment.sh
log=build/build.log
mkdir -p build
if ! { [[ -e build/default/build.ninja ]] || cmake --preset default; } >"$log" 2>&1 || ! cmake --build --preset default --target pagetune_program pagetune_cpu >>"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
if (($# == 0)); then
  set -- tune "$root/configs/models/llama-3.1-8b.json" --budget 55s
fi
cd "$here"
exec "$root/build/default/bin/pagetune" "$@"
