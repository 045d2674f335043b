#!/usr/bin/env bash
# Launches for notebooks, dstack and Ray before the peers themselves: bash tests/validators/sessions.sh [pytest's arguments]
# The first run makes an environment in $SESSIONS (build/sessions by default), a few minutes; later ones take it as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${SESSIONS:-build/sessions}
if [ ! -x "$home/bin/python" ]; then
  python -m venv "$home"
  "$home/bin/pip" install -q -c constraints.txt -e ".[torch]" -r tests/validators/sessions-requirements.txt
fi
rm -rf "$home"/lib/python*/site-packages/tests # gpuhunt's wheel installs its own tests by that name
export OMP_NUM_THREADS=1 PYTHONPATH=.:src
exec "$home/bin/python" -m pytest -p no:cacheprovider -m "slow or not slow" tests/validators -k sessions "$@"
