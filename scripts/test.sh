#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. GPU tests skip with their reason where there is no GPU.
# Arguments go to ctest, for example: scripts/test.sh -R store
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh --tests
source scripts/environment.sh
cmake --preset default
cmake --build --preset default
ctest --preset default -j"$(nproc)" "$@"
