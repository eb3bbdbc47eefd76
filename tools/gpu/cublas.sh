# Sourced by a script that has set `here` to this folder: sets COMOE_CUBLAS to a cuBLAS of this machine, unless it is set.
. "$here/nvidia_library.sh"
if [ -z "${COMOE_CUBLAS:-}" ]; then
  nvidia_library libcublas.so.13
  [ -z "$found" ] || export COMOE_CUBLAS="$found"
fi
echo "cuBLAS: ${COMOE_CUBLAS:-none}"
