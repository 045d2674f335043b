"""A fixed number of users, who each send the next request when the last one is answered: instances, and the rate reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from gpuwise.serving.bounds import LoadMeans, clients_bound, rate_bound
from gpuwise.serving.fleets import Fleet
from gpuwise.serving.instance import A_CLIENT, COUNT, Instance, LoadShape, latencies
from gpuwise.serving.rows import ServingRow, row_alone, with_price
from gpuwise.serving.running import RunningFleet
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served, capacity_of

MOST_CLIENTS = 10_000
FEWEST_REQUESTS, MOST_REQUESTS = 200, 20_000  # of a simulated loop
MIDDLE = (0.25, 0.75)  # of the requests by their arrival: before, the engine fills up; after, users have nothing more to send


def most_clients(within: Callable[[int], bool], most: int) -> int:
    """The most users, up to `most`, of whom one instance serves enough within the limits; 0 where it does for none.

    within: whether the limits hold for so many; more users never make it true again.
    """
    *_, (low, _) = narrowing(within, most)
    return low


def narrowing(within: Callable[[int], bool], most: int) -> Iterator[tuple[int, int]]:
    """Ever narrower bounds of that number, one pair after each number of users that was tried; the last pair is equal."""
    if within(most):
        yield most, most
        return
    low, high = 0, most
    yield low, high - 1
    while high - low > 1:
        middle = (low + high) // 2 if low else max(1, high // 8)
        low, high = (middle, high) if within(middle) else (low, middle)
        yield low, high - 1


def narrowing_of(instance: Instance, load: LoadShape, limits: Limits, clients: int) -> Iterator[tuple[int, int]]:
    """Ever narrower bounds of the most users, up to `clients`, of whom an instance serves enough within the limits.

    Numbers above the closed form of gpuwise.serving.bounds are not simulated.
    """
    drawn = load.of_clients(COUNT)
    bound = clients_bound(rate_bound(instance, LoadMeans.of(drawn), limits), drawn, limits, most=clients)
    return narrowing(partial(_are_within, instance, load, limits, bound), clients)


def _are_within(instance: Instance, load: LoadShape, limits: Limits, bound: int, clients: int) -> bool:
    return clients <= bound and limits.hold(served_steadily(instance, load, clients)[0])


def served_steadily(instance: Instance, load: LoadShape, clients: int, *, factor: float = 1.0) -> tuple[Served, float]:
    """What users see of an instance in the middle of a closed loop, and requests a second that it reaches.

    factor: of the times of iterations over their forecast.
    """
    count = min(max(A_CLIENT * clients, FEWEST_REQUESTS), max(MOST_REQUESTS, 3 * clients))
    served = instance.served_to(clients, load, count=count, factor=factor)
    middle = slice(*(int(share * len(served.requests)) for share in MIDDLE))
    steady = replace(
        served,
        requests=served.requests.of(middle),
        first_token_s=served.first_token_s[middle],
        end_s=served.end_s[middle],
    )
    return steady, capacity_of(served)


def row_of_clients(
    device: str,
    instance: Instance,
    load: LoadShape,
    limits: Limits,
    *,
    clients: int,
    weight_bytes: int,
    usd_per_hour: float | None,
    most: int | None = None,
) -> ServingRow:
    """The row of a device for so many users of all instances. Arguments as for gpuwise.serving.rows.row_of.

    most: users, up to `clients`, whom one instance serves within the limits; None (default) searches for them.

    Each instance has its own users, as equal in number as can be.
    """
    base = row_alone(device, instance, load, limits, weight_bytes=weight_bytes)
    if most is None:
        *_, (most, _) = narrowing_of(instance, load, limits, clients)
    if not most:
        return base
    fleet = Fleet(device, usd_per_hour or 0.0, float(most))
    replicas = fleet.replicas(clients)
    each = -(-clients // replicas)
    outcomes = [served_steadily(instance, load, each, factor=factor) for factor in (1.0, *instance.spread)]
    served, reached_per_s = outcomes[0][0], outcomes[0][1] * clients / each  # some may have one user less
    _, at_most_per_s = served_steadily(instance, load, most)
    row = replace(
        base,
        reason="",
        replicas=replicas,
        clients=each,
        reached_per_s=reached_per_s,
        saturation_rate=at_most_per_s,
        latency=latencies([outcome for outcome, _ in outcomes], instance.first_token_spread),
        share_within=limits.share_of(served),
        load=clients / (replicas * most),
        running=RunningFleet(instances=(replicas,)),
        usd_per_instance_hour=usd_per_hour,
    )
    return with_price(row, fleet.usd_per_hour_at(clients), served.requests, rate_per_s=reached_per_s)
