# Sourced: nvidia_library FILE sets `found` to a library of this machine, from CUDA or a Python package, or to nothing.
nvidia_library() {
  found=
  for file in "/usr/local/cuda/lib64/$1" "/usr/local/cuda/extras/CUPTI/lib64/$1" \
      $(python3 -c 'import nvidia, os, sys; print(*[os.path.join(p, "cu13/lib", sys.argv[1]) for p in nvidia.__path__])' "$1" 2>/dev/null); do
    if [ -e "$file" ]; then
      found=$file
      return
    fi
  done
}
