"""Prompts read apart for clients who wait: against closed forms of closed queues, and the open load of the same arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.serving.apart import ApartInstances, Transfer
from gpuwise.serving.apart_loop import served_to_clients
from gpuwise.serving.instance import Instance
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests

READ_S, STEP_S = 0.1, 0.01


def load(count: int, *, read: int = 2048, written: int = 11) -> Requests:
    return requests(np.zeros(count), np.full(count, read), np.full(count, written))


def instances(
    *,
    readers: int = 1,
    writers: int = 1,
    at_once: int = 64,
    transfer_s: float = 0.0,
    request_s: float = 0.0,
    step_s: float = STEP_S,
) -> ApartInstances:
    def iteration_s(chunks, sequences, past_tokens):
        return READ_S if chunks and chunks[0][0] > 1 else step_s

    def instance(sequences: int, *, brought: bool) -> Instance:
        policy = BatchingPolicy(2048, sequences, 1 << 20, brought=brought, request_s=request_s)
        return Instance(iteration_s, policy, (1, 1))

    transfer = Transfer("a link", 2048 / transfer_s if transfer_s else 1e18, 0.0, 1)
    return ApartInstances(instance(1, brought=False), instance(at_once, brought=True), transfer, readers, writers)


def test_one_client_waits_for_each_part_in_turn():
    served = served_to_clients(instances(transfer_s=0.05, request_s=0.02), load(5), 1)
    np.testing.assert_allclose(served.ttft_s, 0.02 + READ_S + 0.05)
    np.testing.assert_allclose(served.latency_s, 0.02 + READ_S + 0.05 + 0.02 + 10 * STEP_S)
    np.testing.assert_allclose(served.requests.arrival_s, np.arange(5) * served.latency_s[0])


@pytest.mark.parametrize(("clients", "readers"), [(2, 1), (8, 1), (8, 2), (12, 4)])
def test_readers_that_all_clients_wait_for_set_the_pace(clients, readers):
    """A closed queue of deterministic stations: a cycle takes as long as both parts, or as all clients at the readers."""
    served = served_to_clients(instances(readers=readers, writers=3), load(40 * clients), clients)
    cycle_s = max(READ_S + 10 * STEP_S, clients / readers * READ_S)
    settled = slice(20 * clients, -2 * clients)
    assert served.latency_s[settled].mean() == pytest.approx(cycle_s, rel=0.04)
    assert served.ttft_s[settled].mean() == pytest.approx(cycle_s - 10 * STEP_S, rel=0.06)


def test_writers_with_one_seat_each_are_all_used():
    """Each writer has room for one sequence, so requests must go to those that are free."""
    served = served_to_clients(instances(readers=4, writers=4, at_once=1), load(40), 4)
    np.testing.assert_allclose(served.latency_s, READ_S + 10 * STEP_S)


def test_instances_side_by_side_are_those_of_the_arrivals_that_clients_made():
    rng = np.random.default_rng(3)
    lengths = requests(np.zeros(60), np.full(60, 2048), rng.integers(1, 40, 60))
    apart = instances(at_once=4, transfer_s=0.0317, step_s=0.010_71)  # nothing arrives just when an iteration ends
    closed = served_to_clients(apart, lengths, 6)
    opened = apart.served(closed.requests)
    np.testing.assert_allclose(opened.first_token_s, closed.first_token_s)
    np.testing.assert_allclose(opened.end_s, closed.end_s)


def test_requests_that_no_writer_holds_are_turned_away():
    small = instances()
    small = ApartInstances(
        small.reads,
        Instance(small.writes.iteration_s, BatchingPolicy(2048, 4, 1024, brought=True), (1, 1)),
        small.transfer,
        1,
        1,
    )
    served = served_to_clients(small, requests(np.zeros(4), np.array([512, 2048, 512, 512]), np.full(4, 5)), 1)
    assert served.turned_away == 1
    assert np.isfinite(served.end_s).sum() == 3
