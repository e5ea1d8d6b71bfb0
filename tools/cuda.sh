#!/usr/bin/env bash
# cuda.sh [TARGET...]: LibTorch's CUDA build in an environment of its own, .venv-cuda, and the library and all tests built against it in build-cuda.
# Neither a CUDA toolkit nor a GPU is needed: the headers are those of pip's packages. CUDA_INDEX names the index to take them from.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=.venv-cuda
packages=(torch==2.11.0 'nvidia-cuda-crt<13.1' 'nvidia-cuda-cccl<13.1' numpy safetensors)  # the oldest LibTorch that Muster takes

is_installed() { compgen -G "$environment/lib/python3*/site-packages/$1" >/dev/null; }

install() {
  [ -x $environment/bin/python ] || python3 -m venv $environment
  $environment/bin/python -m pip install --quiet --disable-pip-version-check ${CUDA_INDEX:+--index-url "$CUDA_INDEX"} "${packages[@]}"
}

if ! is_installed torch-2.11.0*.dist-info || ! is_installed 'nvidia_cuda_crt-*.dist-info' || ! is_installed 'nvidia_cuda_cccl-*.dist-info'; then
  echo "cuda: installing ${packages[*]} into $environment (2.5 GB)"
  # A constraint of this machine that pins another LibTorch is meant for other environments. An empty variable would not lift one of pip's files.
  install || { echo "cuda: trying without pip's constraints"; PIP_CONSTRAINT=/dev/null install; } || { echo "cuda: pip could not install: ${packages[*]}" >&2; exit 1; }
fi
torch=$(echo "$PWD"/$environment/lib/python3*/site-packages/torch)
if [ ! -f "$torch/lib/libtorch_cuda.so" ]; then
  echo "cuda: pip brought a LibTorch without CUDA into $environment. Remove that folder, and name an index that has the CUDA build:" >&2
  echo "  make cuda CUDA_INDEX=https://download.pytorch.org/whl/cu130" >&2
  exit 1
fi

TORCH=$torch tools/setup.sh
BUILD=build-cuda TORCH=$torch CMAKE_ARGS="-DMUSTER_PYTHON=$PWD/$environment/bin/python3 ${CMAKE_ARGS:-}" tools/build.sh "$@"
echo "cuda: built in build-cuda; 'python3 tools/run_tests.py build-cuda --without large' runs its tests on the CPU, and 'make test' its GPU tests where a GPU is"
