"""Checkpoints: a state of a training as a folder of safetensors and JSON that is complete or absent."""

from gpuwise.runs.lock import RunLock
from gpuwise.runtime.checkpoint.checkpoint import Checkpoint
from gpuwise.runtime.checkpoint.export import export_weights, plain_weights
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.interval import FIRST_S, SaveInterval, choose_interval
from gpuwise.runtime.checkpoint.rank_reader import RankReader
from gpuwise.runtime.checkpoint.rank_saver import RankSaver
from gpuwise.runtime.checkpoint.restore import restore_optimizer, restore_weights
from gpuwise.runtime.checkpoint.saver import Outcome, Saved, SaveFailure, Saver
from gpuwise.runtime.checkpoint.state import Packed, pack, unpack
from gpuwise.runtime.checkpoint.store import CheckpointStore

__all__ = [
    "FIRST_S",
    "Checkpoint",
    "CheckpointStore",
    "Files",
    "Outcome",
    "Packed",
    "RankReader",
    "RankSaver",
    "RunLock",
    "SaveFailure",
    "SaveInterval",
    "Saved",
    "Saver",
    "choose_interval",
    "export_weights",
    "pack",
    "plain_weights",
    "restore_optimizer",
    "restore_weights",
    "unpack",
]
