"""Notes on offers that a plan leaves out."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note()
def no_price() -> str:
    """The price list has no price for the offer."""
    return "no price"


@kind_of_note()
def chip_not_in_catalog() -> str:
    """The offer's chip is not known."""
    return "chip is not in the catalog"


@kind_of_note(flag="--spot")
def spot_not_wanted() -> str:
    """A spot offer, where the user wants none."""
    return "spot is not wanted"


@kind_of_note(flag="--spot")
def not_spot() -> str:
    """An offer on other terms, where the user wants spot alone."""
    return "not spot"


@kind_of_note(flag="--where")
def not_where() -> str:
    """The chip or the offer does not satisfy the user's filter."""
    return "outside --where"


@kind_of_note(flag="--region")
def another_region(*, region: str) -> str:
    """The offer is in another region than the user wants."""
    return f"not in region {region}"


@kind_of_note(flag="--region")
def cheaper_region() -> str:
    """A fetched price list has the same machine in a cheaper region."""
    return "the same machine is cheaper in another region"


@kind_of_note(flag="--region")
def no_region(*, listed: str) -> str:
    """The price list says no region of the offer, where the user wants one."""
    return f"its price list names no region; --region {listed} takes those"


@kind_of_note(flag="--xla")
def train_cannot_run(*, obstacle: str) -> str:
    """The chip needs what `gpuwise train` does not run, where the user leaves such chips out."""
    return obstacle


@kind_of_note()
def too_many_devices(*, most: int) -> str:
    """More devices than a plan looks at."""
    return f"more than {most} devices"


@kind_of_note()
def fractional_devices() -> str:
    """More than one device, and not a whole number of them."""
    return "a broken number of devices"


@kind_of_note()
def chip_cannot_train() -> str:
    """The chip is sold for inference alone."""
    return "chip cannot train"


@kind_of_note()
def too_old_for_pytorch() -> str:
    """PyTorch has no kernels for a chip of this age."""
    return "too old for PyTorch"


@kind_of_note()
def no_speed_known() -> str:
    """The catalog knows no rate of the chip."""
    return "no speed known for the chip"


@kind_of_note(flag="--global-batch")
def batch_does_not_divide() -> str:
    """The global batch is no multiple of the devices."""
    return "global batch does not divide over the devices"


@kind_of_note()
def micro_batch_does_not_divide() -> str:
    """Micro-batch and accumulation, both named by the user, do not make the batch of a device."""
    return "micro-batch and accumulation do not make the batch of a device"


@kind_of_note(flag="--precision")
def precision_unsupported() -> str:
    """The chip does not compute in the precision that the user names."""
    return "precision unsupported"


@kind_of_note()
def no_trace() -> str:
    """The step can be recorded in none of the chip's precisions."""
    return "no trace in a precision of the chip"


@kind_of_note()
def out_of_memory() -> str:
    """No strategy fits the device's memory."""
    return "does not fit in memory"


@kind_of_note()
def cannot_be_priced() -> str:
    """A figure is unknown that the price of the step needs."""
    return "the step cannot be priced there"


@kind_of_note()
def never_ends() -> str:
    """Interruptions or session limits undo more work than is done."""
    return "never ends under its interruptions or session limits"


@kind_of_note(flag="--deadline")
def past_the_deadline() -> str:
    """The run ends after the deadline."""
    return "past the deadline"


@kind_of_note(flag="--deadline")
def over_a_year() -> str:
    """Without a deadline, the run takes more than a year."""
    return "takes over a year"


@kind_of_note(flag="--budget")
def over_budget() -> str:
    """The run costs more than the budget."""
    return "over budget"


@kind_of_note(flag="--stale")
def price_over_a_year_old() -> str:
    """The price is over a year old."""
    return "price over a year old; --stale ranks them too"


@kind_of_note()
def ranked_lower() -> str:
    """The plan is inside the limits, and the table has no room for it."""
    return "inside, but others on the list rank higher"


@kind_of_note(flag="--max-devices")
def not_rented_together(*, why: str) -> str:
    """Machines of a provider that are not rented several for one job. why: in words."""
    return f"several of them are not rented for one job: {why}"


@kind_of_note(flag="--max-devices")
def parts_not_joined() -> str:
    """Machines with a part of a device, or with CPUs alone, which are not joined for a job."""
    return "several machines with parts of a device, or with CPUs alone, are not joined"


@kind_of_note(flag="--max-devices")
def network_unknown() -> str:
    """Machines of which the catalog does not know what joins them, so several have no forecast."""
    return "several of them: nothing is known of the network between them"


@kind_of_note(flag="--max-devices")
def larger_machine_joined() -> str:
    """Machines of which the provider rents larger ones with the same chip."""
    return "several of them: larger machines of the provider with the same chip are joined instead"
