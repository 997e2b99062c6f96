#!/bin/sh
# The straight line as it stands today, on Kimi-K3's real geometry and on a tiny checkpoint made on the spot.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

step() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$@"
}

step k3 inspect kimi-k3
step k3 plan kimi-k3 --scheme nvfp4-mixed --hardware b300 --gpus 8
step k3 recipe kimi-k3 --scheme nvfp4-mixed --hardware b300 --gpus 8
step k3 tiny "$folder/tiny" --scheme mxfp4
step k3 inspect "$folder/tiny"
step k3 convert "$folder/tiny" "$folder/nvfp4" --to nvfp4-mixed
step k3 compare "$folder/tiny" "$folder/nvfp4"
