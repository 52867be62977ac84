#!/usr/bin/env bash
# Installs what is missing to build pagetune on Debian 12 (bookworm) or newer, with --tests also what tests alone need; does nothing, quickly, where all is there.
# NVRTC: taken from a CUDA toolkit where there is one, else from PyPI's nvidia-cuda-nvrtc into build/nvrtc.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache clang-19 llvm-19-dev nlohmann-json3-dev libsqlitecpp-dev libsqlite3-dev libarchive-dev libcli11-dev libfmt-dev
          libspdlog-dev libxxhash-dev libgtest-dev libbenchmark-dev python3 python3-jsonschema)
[[ ${1:-} != --tests ]] || packages+=(chromium slurm-wlm munge)  # of `pagetune report` and of examples/fleet
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
install_packages() {
  local as_root=()
  if [[ $(id -u) != 0 ]]; then as_root=(sudo); fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}
if ((${#missing[@]})); then
  echo "installing: ${missing[*]}"
  install_packages "${missing[@]}"
fi

has_nvrtc() {
  ldconfig -p 2>/dev/null | grep -qE 'libnvrtc\.so\.1[23]' && return
  compgen -G "${CUDA_HOME:-/usr/local/cuda}/lib64/libnvrtc.so.1[23]" >/dev/null && return
  [[ -e build/nvrtc/libnvrtc.so.13 ]]
}
if ! has_nvrtc; then
  echo "installing: NVRTC (PyPI nvidia-cuda-nvrtc)"
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
  mkdir -p build/nvrtc
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  python3 -m pip download --quiet --no-deps --only-binary=:all: -d "$wheels" nvidia-cuda-nvrtc==13.0.88
  python3 -m zipfile -e "$wheels"/nvidia_cuda_nvrtc-*.whl "$wheels/files"
  find "$wheels/files" -name 'libnvrtc*.so*' -exec cp {} build/nvrtc/ \;
fi
