"""Google Colab and Kaggle: what their notebooks run on, how long, and where files outlive a session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.pricelist import OfferRow
from gpuwise.launch.device_names import device_name
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.rented import rental
from gpuwise.plan.economics.save_time import save_seconds
from gpuwise.plan.economics.terms import HOUR_S, WEEK_S
from gpuwise.plan.types import Plan


@dataclass(frozen=True)
class NotebookSite:
    """A site that runs notebooks.

    Attributes:
        name: of `--set site=` and of the catalog's provider.
        title: in sentences.
        work: folder of a session.
        kept: folder whose content outlives a session.
        begins: how a session is begun there.
    """

    name: str
    title: str
    work: str
    kept: str
    begins: str


SITES = {
    "colab": NotebookSite(
        "colab",
        "Google Colab",
        "/content",
        "/content/drive/MyDrive/gpuwise",
        "upload train.ipynb at https://colab.research.google.com (File, Upload notebook), then Runtime, Run all",
    ),
    "kaggle": NotebookSite(
        "kaggle",
        "Kaggle",
        "/kaggle/temp",
        "/kaggle/working",
        "import train.ipynb at https://www.kaggle.com/code (New Notebook, File, Import), then Save Version, Save & Run All",
    ),
}


@dataclass(frozen=True)
class SiteTime:
    """How long a site runs a plan.

    Attributes:
        session_s: the longest session.
        week_s: machine time a week; infinite without a limit.
        machine_s: machine time of the run, with each session's setup and save.
    """

    session_s: float
    week_s: float
    machine_s: float


def site_of(plan: Plan, name: str) -> NotebookSite:
    """The named site, or without a name the one that the plan was made for, or the first that has its devices.

    Raises UnsupportedError naming what sites have.
    """
    names = [name] if name else sorted(SITES, key=lambda site: site != plan.offer.provider)
    for site in names:
        if plan.on_cpu or _row(plan, site) is not None:
            return SITES[site]
    has = "; ".join(f"{SITES[site].title} has {_devices(site)}" for site in (names if name else SITES))
    raise UnsupportedError(
        f"the plan is for {plan.count:g} x {plan.device}, which no notebook there runs on: {has}.",
        [f"gpuwise plan {plan.job_argument} --where provider={site} -o plan.toml" for site in names],
    )


def accelerator(plan: Plan, site: NotebookSite) -> str:
    """What the site calls the plan's device; "" for a CPU. Raises UnsupportedError for a device that it has no name for."""
    return "" if plan.on_cpu else device_name(site.name, plan.device, speaker=site.title)


def site_time(plan: Plan, site: NotebookSite) -> SiteTime:
    """The limits of the site's sessions, and the machine time of the plan under them.

    A plan for an offer of the site has its own; of others the steps are billed anew. Sites state no limits of their paid
    sessions: those of the free ones are taken.
    """
    row = _row(plan, site.name)
    limits = row if row is not None and "free" in row.prices else _free_row(site.name)
    offer = next(each for each in limits.offers(today=load_catalog().today) if each.terms == "free")
    terms, _ = rental(offer, parameters=0)
    session_s = terms.session_s
    assert session_s is not None  # of a free offer
    week_s = terms.week_s if terms.week_s is not None and not plan.on_cpu and limits is row else math.inf
    if plan.offer.provider == site.name:
        return SiteTime(session_s, min(week_s, WEEK_S), plan.machine_hours * HOUR_S)
    save_s = save_seconds(replace(plan, offer=offer)).value
    terms = replace(terms, save_s=save_s, week_s=None if math.isinf(week_s) else week_s)
    machine_s = bill(plan.forecast.step_time_s.value * plan.steps, terms).machine_s
    return SiteTime(session_s, min(week_s, WEEK_S), machine_s)


def _rows(site: str) -> Sequence[OfferRow]:
    """Rows of a site whose devices PyTorch trains on, free ones first."""
    catalog = load_catalog()
    rows = [row for row in catalog.offer_rows if row.provider == site and row.chip_id is not None]
    rows = [row for row in rows if catalog.chips[row.chip_id or ""].kind.startswith("gpu")]
    return sorted(rows, key=lambda row: "free" not in row.prices)


def _row(plan: Plan, site: str) -> OfferRow | None:
    """The row whose devices the plan runs on: as many of its chip, or more."""
    fits = (row for row in _rows(site) if row.chip_id == plan.device and row.values.get("count", 0) >= plan.count)
    return next(fits, None) if plan.machines == 1 else None


def _free_row(site: str) -> OfferRow:
    return next(row for row in _rows(site) if "free" in row.prices)


def _devices(site: str) -> str:
    return ", ".join(dict.fromkeys(f"{row.values.get('count', 0):g} x {row.chip_id}" for row in _rows(site)))
