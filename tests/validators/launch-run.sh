#!/usr/bin/env bash
# Launches before the targets' own parsers and optimizer: bash tests/validators/launch-run.sh [PYTEST'S ARGUMENTS]
# The first run makes an environment in $LAUNCH_VALIDATORS (build/launch-validators by default); later ones take it as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${LAUNCH_VALIDATORS:-build/launch-validators}
if [ ! -x "$home/bin/python" ]; then
  python -m venv "$home"
  "$home/bin/pip" install -q -e . -r tests/validators/launch-requirements.txt
fi
PYTHONPATH=.:src exec "$home/bin/python" -m pytest -p no:cacheprovider -o filterwarnings= -rs -v "$@" tests/validators/test_launch_files.py
