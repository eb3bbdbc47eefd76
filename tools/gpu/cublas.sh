# Sourced: sets COMOE_CUBLAS to a cuBLAS of this machine, from CUDA or a Python package, unless it is set.
if [ -z "${COMOE_CUBLAS:-}" ]; then
  for file in /usr/local/cuda/lib64/libcublas.so.13 \
      $(python3 -c 'import nvidia, os; print(*[os.path.join(p, "cu13/lib/libcublas.so.13") for p in nvidia.__path__])' 2>/dev/null); do
    if [ -e "$file" ]; then
      export COMOE_CUBLAS="$file"
      break
    fi
  done
fi
echo "cuBLAS: ${COMOE_CUBLAS:-none}"
