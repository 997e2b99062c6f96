#!/bin/sh
# The whole line: a checkpoint with Kimi-K3's architecture is made, converted, planned, served, checked, and reported on.
# It is tiny and its weights are random, so that all of it runs on a laptop; every step is the one for the real thing.
set -eu
folder=${DEMO:-$PWD/demo}
mkdir -p "$folder"
rm -rf "$folder/tiny" "$folder/nvfp4" "$folder/state"
trap 'k3 down --state "$folder/state" > /dev/null 2>&1 || true' EXIT

step() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$@"
}

# What 8 x B300 do with the real Kimi-K3, and the command for it.
step k3 plan kimi-k3 --scheme nvfp4-mixed --hardware b300 --gpus 8
step k3 recipe kimi-k3 --scheme nvfp4-mixed --hardware b300 --gpus 8

# The same line on a checkpoint that fits here: MXFP4 as Moonshot publishes it, to NVFP4 as NVIDIA does.
step k3 tiny "$folder/tiny" --scheme mxfp4
step k3 inspect "$folder/tiny"
step k3 convert "$folder/tiny" "$folder/nvfp4" --to nvfp4-mixed
step k3 compare "$folder/tiny" "$folder/nvfp4"

# Preflight, start, follow, one token, all checks of the level quick, report, stop.
step k3 up "$folder/nvfp4" --engine reference --port "${DEMO_PORT:-8765}" --state "$folder/state" --stop
printf '\nThe report: %s\n' "$(find "$folder/state" -name report.html)"
