# Sourced by the other scripts: where this tree's own NVRTC lies, if scripts/install.sh had to fetch it.
if [[ -z ${PAGETUNE_NVRTC:-} && -e build/nvrtc/libnvrtc.so.13 ]]; then
  PAGETUNE_NVRTC=$PWD/build/nvrtc/libnvrtc.so.13
  export PAGETUNE_NVRTC
fi
