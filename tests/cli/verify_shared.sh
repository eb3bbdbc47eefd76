#!/bin/sh
# verify_shared.sh COMOE [FLAGS]: `comoe verify` of the trained model that the repository does not hold.
program=$1
shift
shared=${COMOE_SHARED:-$COMOE_SOURCE_DIR/../shared}
model=$shared/models/moe-64x2
if [ ! -d "$model" ]; then
  echo "SKIPPED: there is no $model; set COMOE_SHARED to the folder that holds models/moe-64x2"
  exit 77
fi
exec "$program" verify "$model" "$@"
