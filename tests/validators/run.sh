#!/usr/bin/env bash
# Exported files before the peers' own parsers: bash tests/validators/run.sh [--draws N] [TARGET...]
# The first run makes an environment in $VALIDATORS (build/validators by default), a few minutes; later ones take it as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${VALIDATORS:-build/validators}
if [ ! -x "$home/bin/python" ]; then
  python -m venv "$home"
  "$home/bin/pip" install -q -c constraints.txt -e ".[torch]" -r tests/validators/requirements.txt
  DS_BUILD_OPS=0 "$home/bin/pip" install -q --no-build-isolation --no-deps deepspeed==0.19.8
  "$home/bin/pip" install -q --no-deps megatron-core==0.16.1 torchtitan==0.3.0
fi
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPATH=.:src
exec "$home/bin/python" -m tests.validators "$@"
