#!/usr/bin/env bash
# Make .gpu, the files that a machine with a GPU and without a network needs beside the sources. Run it before the lease begins.
#
#     bench/gpu_prepare.sh [NAME==VERSION ...]
#
# .gpu/wheels   cuDNN's frontend in a fixed version, and all other named packages, for the machine's Python
# .gpu/cubins   the kernels for sm_90, compiled by the same NVRTC as the machine's
# .gpu/commit   the commit that is measured
# bench/gpu.sh looks there for all three. git ignores the folder.
# PYTHON: an interpreter with asynctile's dependencies; .venv/bin/python if it exists, otherwise python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FRONTEND=nvidia-cudnn-frontend==1.28.0 NVRTC=nvidia-cuda-nvrtc==13.0.88 PYTHON_THERE=3.12

if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; fi
fi
compiler=$(mktemp -d)
trap 'rm -rf "$compiler"' EXIT
rm -rf .gpu
mkdir -p .gpu/wheels

pip=("$PYTHON" -m pip --disable-pip-version-check)
platforms=()
for glibc in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
"${pip[@]}" download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$PYTHON_THERE" \
    "${platforms[@]}" --dest .gpu/wheels "$FRONTEND" "$@"
"${pip[@]}" install --quiet --no-deps --no-compile --target "$compiler" "$NVRTC"
PYTHONPATH="$compiler:$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" bench/gpu_cubin.py build .gpu
PYTHONPATH="bench:$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -c 'import common; print(common.commit())' >.gpu/commit
echo "commit $(cat .gpu/commit)"
du -sh .gpu
