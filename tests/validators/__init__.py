"""Exported files before the peers' own parsers, in an environment of their own: bash tests/validators/run.sh"""
