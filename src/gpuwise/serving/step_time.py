"""EngineStep: seconds of an iteration of an engine on a chip, from a model's recorded generation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.calibration import calibration as known_calibration
from gpuwise.cost.host import host_factor
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.serving.engine_costs import NO_COSTS, EngineCosts
from gpuwise.serving.formats import StoredWeights, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.kernels import EngineKernels
from gpuwise.serving.step_tables import POINTS, Table, position_of


class EngineStep:
    """Seconds of iterations (see gpuwise.serving.continuous.IterationTime).

    Arguments:
        generation: of the model, or of one of the devices that share its layers.
        cluster: the devices that run one instance of the model.
        costs: what the engine adds.
        weights: how they are kept; None (default) as they were recorded.

    The kernels run one after the other: those of each token by their number, the head by the sequences that get a token,
    attention of decoding sequences as one kernel a layer over sequences of equal length, attention of each part of a prompt as
    a kernel of its own. Replicas of attention have equal shares of sequences and prompts.
    """

    def __init__(
        self,
        generation: Generation,
        cluster: Cluster,
        *,
        costs: EngineCosts = NO_COSTS,
        weights: StoredWeights | None = None,
        parameters: Parameters | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.generation, self.cluster, self.costs = generation, cluster, costs
        self._weights = weights or stored(generation, None)
        self._parameters, self._calibration = parameters, calibration
        self._kernels = EngineKernels(
            cluster,
            costs,
            self._weights,
            precision=generation.tokens.header.strategy.precision,
            parameters=parameters or shipped_parameters(),
            calibration=calibration or known_calibration(cluster.chip),
        )
        self._host = host_factor(cluster.chip, parameters or shipped_parameters())
        self._tokens, self._head, self._states = Table(self._tokens_s), Table(self._head_s), Table(self._states_s)
        self._attention: dict[tuple[int, int], Table] = {}
        self._decoding: dict[int, tuple[float, float, float, float]] = {}  # by sequences, of iterations that read no prompt

    def with_costs(self, costs: EngineCosts) -> EngineStep:
        """The same model and devices under another engine."""
        if costs.of_kernels != self.costs.of_kernels:
            return EngineStep(
                self.generation,
                self.cluster,
                costs=costs,
                weights=self._weights,
                parameters=self._parameters,
                calibration=self._calibration,
            )
        other = copy(self)  # tables are shared: the kernels take as long
        other.costs, other._decoding = costs, {}
        return other

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        if not chunks and sequences:
            return self._decodes_s(sequences, past_tokens)
        users = -(-(sequences + len(chunks)) // self.generation.degrees.attention_dp)
        kernels_s = self.head_s(users) + self.layers_s(chunks, sequences, past_tokens)
        # A part of one token, as of a prompt read elsewhere, is a decoding step.
        reads = any(tokens > 1 for tokens, _ in chunks)
        prompts_s = self._host * self.costs.prompt_token_s * sum(tokens for tokens, _ in chunks)
        return self.engine_s(users) + prompts_s + max(kernels_s, self.launching_s(reads=reads))

    def _decodes_s(self, sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration that reads no prompt, as most: all of it but attention depends on the sequences alone."""
        kept = self._decoding.get(sequences)
        if kept is None:
            replicas = self.generation.degrees.attention_dp
            users = -(-sequences // replicas)
            others_s = self.head_s(users) + self.layers_s((), sequences, 0, attends=False)
            ends_s = self.launching_s(reads=False)
            kept = self._decoding[sequences] = others_s, self.engine_s(users), ends_s, max(1.0, sequences / replicas)
        others_s, engine_s, launching_s, attending = kept
        return engine_s + max(others_s + self._decoding_s(attending, past_tokens / sequences, 1), launching_s)

    def engine_s(self, users: int) -> float:
        """Seconds that the engine adds to an iteration of so many sequences."""
        return self.costs.iteration_s + self.costs.sequence_s * users

    def launching_s(self, *, reads: bool) -> float:
        """Seconds that the host takes to launch the kernels of a pass, which ends no sooner; 0 where a captured graph does.

        reads: whether it reads prompts.
        """
        launch_s = self.costs.launch_s if reads else self.costs.decoding_launch_s
        linear_s = self.costs.linear_layer_s * self.generation.linear_layers if reads else 0.0
        return self._host * (launch_s * self._launches + linear_s) if launch_s or linear_s else 0.0

    def head_s(self, rows: int) -> float:
        """Seconds of the head, of so many tokens that get logits."""
        return self._head(rows)

    def layers_s(
        self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int, *, new: int = 1, attends: bool = True
    ) -> float:
        """Seconds of everything but the head and what the engine adds. Arguments as for IterationTime.

        new: tokens that each decoding sequence reads; 1 by default. attends: whether attention of decoding sequences counts.
        """
        replicas = self.generation.degrees.attention_dp
        seconds = self._tokens(-(-(sequences * new + sum(tokens for tokens, _ in chunks)) // replicas))
        if self.generation.cache_bytes_per_sequence:
            seconds += self._states(-(-(sequences + len(chunks)) // replicas))
            seconds += self.costs.linear_attention_s * self.generation.linear_layers
        if sequences and attends:
            seconds += self._decoding_s(max(1.0, sequences / replicas), past_tokens / sequences, new)
        for tokens, past in chunks:
            seconds += self._reading_s(tokens, past) / replicas
        return seconds

    @cached_property
    def _launches(self) -> int:
        """Kernels and collectives of a pass; where nothing is fused, every operation is a kernel."""
        layers = sum(layer.layers for layer in self.generation.attention)
        if self.costs.kernel_s:
            return sum(self.generation.kernels) + layers
        fused = len(self.generation.fused_tokens(1).sequence) + len(self.generation.fused_head(1).sequence)
        exchanges = sum(each.calls for each in (*self.generation.exchanges(1), *self.generation.head_exchanges(1)))
        return fused + layers + exchanges

    def _tokens_s(self, tokens: int) -> float:
        fused, operations = self.generation.fused_tokens(tokens), self.generation.kernels[0]
        seconds = self._kernels.pass_s(fused, self._weights.product_bytes, tokens, operations=operations)
        return seconds + self._kernels.exchanges_s(self.generation.exchanges(tokens))

    def _head_s(self, sequences: int) -> float:
        fused, operations = self.generation.fused_head(sequences), self.generation.kernels[1]
        seconds = self._kernels.pass_s(fused, self._weights.head_bytes, sequences, operations=operations, is_head=True)
        return seconds + self._kernels.exchanges_s(self.generation.head_exchanges(sequences))

    def _states_s(self, sequences: int) -> float:
        """States that do not grow, of linear attention and recurrent layers: read and written once a pass."""
        return self._kernels.update_s(sequences * self.generation.cache_bytes_per_sequence)

    def _decoding_s(self, sequences: float, past: float, new: int) -> float:
        """Attention of sequences with `new` new tokens and `past` tokens each. Between two numbers of sequences of a table it
        is linear."""
        low, share = position_of(sequences)
        position = position_of(past)
        seconds = self._attention_table(POINTS[low], new).at(position)
        return (1 - share) * seconds + share * self._attention_table(POINTS[low + 1], new).at(position) if share else seconds

    def _reading_s(self, new: int, past: int) -> float:
        low, share = position_of(new)
        position = position_of(past)
        seconds = self._attention_table(1, POINTS[low]).at(position)
        return (1 - share) * seconds + share * self._attention_table(1, POINTS[low + 1]).at(position) if share else seconds

    def _attention_table(self, sequences: int, new: int) -> Table:
        """Attention of so many sequences with `new` new tokens each, by the tokens of each in the cache."""
        table = self._attention.get((sequences, new))
        if table is None:
            table = self._attention[sequences, new] = Table(lambda past: self._attention_s(sequences, new, past))
        return table

    def _attention_s(self, sequences: int, new: int, past: int) -> float:
        return self._kernels.attention_s(self.generation.attention, sequences=sequences, new=new, past=past)
