"""Notes on a Keras model as a job."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note()
def assumed_targets(*, shapes: str) -> str:
    """A Keras model has no data beside it, so its outputs and its loss give the shapes of targets. shapes: of a sample."""
    return (
        f"assumed targets of shape {shapes} a sample, from the model's outputs and its loss; data beside the model has others"
    )


@kind_of_note()
def metrics_not_computed() -> str:
    """Metrics that a Keras model was compiled with are no part of its step."""
    return "the metrics that the Keras model was compiled with are not computed while it trains; its loss is"


@kind_of_note()
def recurrent_layers_as_loops(*, layers: int) -> str:
    """A Keras model has LSTM or GRU layers, whose steps are recorded one by one. layers: how many."""
    return (
        f"{layers} LSTM or GRU layers are forecast as loops over time steps, as Keras runs them on other devices; on a GPU of "
        "NVIDIA it may take cuDNN's kernels, which are faster"
    )
