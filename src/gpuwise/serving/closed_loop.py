"""A fixed number of users, who each send the next request when the last one is answered: instances, and the rate reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwise.serving.fleets import Fleet
from gpuwise.serving.instance import A_CLIENT, Instance, LoadShape, latencies
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
    if within(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2 if low else max(1, high // 8)
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


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
) -> ServingRow:
    """The row of a device for so many users of all instances. Arguments as for gpuwise.serving.forecast.row_of.

    Each instance has its own users, as equal in number as can be.
    """
    base = row_alone(device, instance, load, limits, weight_bytes=weight_bytes)
    most = most_clients(lambda number: limits.hold(served_steadily(instance, load, number)[0]), clients)
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
