#!/bin/sh
# Makes the stubs that the `comoe` package needs, beside it (or in the folder OUT, with the package copied there):
#   clients/python/generate_stubs.sh [OUT]
# Needs protoc and grpc_python_plugin (Debian: protobuf-compiler protobuf-compiler-grpc).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
proto="$here/../../proto"
out=${1:-$here}
plugin=$(command -v grpc_python_plugin) || {
  echo "generate_stubs.sh: grpc_python_plugin is missing: apt-get install protobuf-compiler protobuf-compiler-grpc" >&2
  exit 1
}
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ "$out" != "$here" ]; then
  mkdir -p "$out/comoe"
  cp "$here"/comoe/*.py "$out/comoe/"
fi
protoc --proto_path="$proto" --python_out="$out" --grpc_out="$out" --plugin=protoc-gen-grpc="$plugin" \
  comoe/v1/inference.proto comoe/v1/model.proto comoe/v1/admin.proto
