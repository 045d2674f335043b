"""What is taken from published lists, row by row: every trap that was seen in a real one."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from tests.price_lists import LISTS, archive, documents, passed, shipped, yardstick

from gpuwise.errors import PriceListError, UnknownNameError
from gpuwise.refresh.adapters import azure, gpuhunt, runpod, skypilot, spot_advisor, vast
from gpuwise.refresh.chip_names import RowRefused, chip_and_count
from gpuwise.refresh.listed import ListedRow, number, text
from gpuwise.refresh.row_gates import gated
from gpuwise.refresh.sources import SOURCES, request_of, requests_of


def test_zones_of_a_region_are_one_row_at_the_lowest_spot_price():
    offers, _ = passed("skypilot:aws")
    p5 = offers["p5.48xlarge", "us-east-1"]
    assert (p5.chip_id, p5.count, p5.on_demand_usd, p5.spot_usd) == ("h100-80gb-sxm", 8, 55.04, 16.2)
    assert offers["p5.48xlarge", "eu-north-1"].spot_usd is None  # the cell is empty


def test_an_instance_that_the_catalog_knows_must_agree_with_the_row():
    offers, reasons = passed("skypilot:aws")
    assert "p4de.24xlarge" not in {instance for instance, _ in offers}
    assert reasons["p4de.24xlarge"] == ["p4de.24xlarge has 8 x a100-80gb-sxm of 80 GB, the list says 40 GB"]
    assert reasons["g4dn.12xlarge"] == ["g4dn.12xlarge has 4 x t4, the list says 1"]


def test_a_spot_price_above_the_one_on_demand_is_left_out_alone():
    offers, reasons = passed("skypilot:aws")
    assert offers["g5.xlarge", "us-east-1"].prices() == {"on-demand": 1.006}
    assert reasons["g5.xlarge"] == ["spot price 1.2 above 1.006 on demand"]


def test_vasts_spot_prices_of_nothing_are_not_free():
    """Every row of SkyPilot's list of Vast.ai has a SpotPrice of 0.00."""
    offers, reasons = passed("skypilot:vast")
    assert offers
    assert all(offer.spot_usd is None for offer in offers.values())
    assert "spot price 0.00: unknown, not free" in reasons["8x-H100_SXM-32-65536"]
    assert reasons["1x-A40-32-65536"] == ["on-demand price 0.00: unknown, not free"]


def test_one_name_for_several_chips_is_told_apart_by_instance_and_memory():
    """SkyPilot calls H100 NVL and SXM "H100", A100 of 40 and 80 GB "A100", and an RTX 4070 Ti Super "RTX4070"."""
    offers, reasons = passed("skypilot:vast")
    chips = {instance: offer.chip_id for (instance, _), offer in offers.items()}
    assert chips["1x-H100_NVL-32-65536"] == "h100-94gb-nvl"
    assert chips["8x-H100_SXM-32-65536"] == "h100-80gb-sxm"
    assert chips["2x-A100_SXM4-32-65536"] == "a100-40gb-sxm"
    assert chips["1x-A100_PCIE-32-65536"] == "a100-80gb-pcie"
    assert chips["2x-RTX_4070S_Ti-32-65536"] == "rtx-4070-ti-super"
    assert chips["1x-RTX_4060_Ti-32-65536"] == "rtx-4060-ti-16gb"
    assert "list does not say which" in reasons["1x-H100-32-65536"][0]
    assert "v100-pcie-16gb or v100-sxm2-16gb" in reasons["8x-Tesla_V100-32-65536"][0]


def test_a_card_with_twice_its_memory_is_not_that_card():
    offers, reasons = passed("skypilot:vast")
    assert [region for instance, region in offers if instance == "1x-RTX_4090-32-65536"] == ["Berlin, DE, EU"]
    assert any("47.99 GB: the catalog has rtx-4090" in why for why in reasons["1x-RTX_4090-32-65536"])


def test_a_count_that_contradicts_the_name_is_refused():
    _, reasons = passed("skypilot:vast")
    assert reasons["4x-L40S-32-65536"] == ["the instance is of 4 devices by its name, of 2 by the list"]


def test_gigabytes_in_a_column_of_mib_are_read_as_such_and_said():
    """SkyPilot's list of RunPod has SizeInMiB 80 for 80 GB."""
    offers, reasons = passed("skypilot:runpod")
    assert offers["1x_A100-80GB_SECURE", "CA"].chip_id == "a100-80gb-pcie"
    assert offers["8x_A100-80GB-SXM_SECURE", "US"].chip_id == "a100-80gb-sxm"
    assert "A100-80GB of 24 GB" in reasons["1x_A100-80GB_SECURE"][0]
    assert skypilot.parse(documents("skypilot:runpod"), provider="runpod").remarks == (
        "the memory of 4 rows, in a column of MiB, was read as GB",
    )


def test_columns_are_read_by_name_whatever_their_order():
    offers, _ = passed("skypilot:lambda")
    assert offers["gpu_8x_v100_n", "us-east-1"].count == 8
    assert offers["gpu_4x_a6000", "us-south-1"].chip_id == "rtx-a6000"
    assert skypilot.parse(documents("skypilot:lambda"), provider="lambda").without_accelerator == 1


def test_prices_of_a_part_of_a_machine_are_refused():
    """SkyPilot lists Google's hosts and accelerators apart, and $700 where it knows no price."""
    offers, reasons = passed("skypilot:gcp")
    assert offers == {}
    assert all("alone" in why for whys in reasons.values() for why in whys)


def test_gpuhunts_rows_of_both_terms_meet():
    offers, reasons = passed("gpuhunt:aws")
    assert offers["p5.48xlarge", "us-east-1"].prices() == {"on-demand": 55.04, "spot": 17.1}
    assert offers["g5.xlarge", "us-east-1"].prices() == {"on-demand": 1.006}
    assert offers["q9.nvl", "us-east-1"].chip_id == "h100-94gb-nvl"
    assert "h100-80gb-sxm or h100-80gb-pcie" in reasons["q9.huge"][0]
    assert reasons["p5.48xlarge"] == ["sold on other terms than by the hour (aws-capacity-block)"]


def test_gpuhunts_archive_is_its_document():
    packed = archive("aws.csv", documents("gpuhunt:aws")[0])
    assert gpuhunt.parse([packed], provider="aws") == gpuhunt.parse(documents("gpuhunt:aws"), provider="aws")


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpuhunt, "LARGEST_BYTES", 100)
    with pytest.raises(PriceListError, match="unpacks to more than 100 bytes"):
        gpuhunt.parse([archive("aws.csv", b"x" * 5000)], provider="aws")


def test_asks_of_vast_are_the_lowest_of_each_machine():
    offers, reasons = passed("vast")
    ask = offers["1x-rtx-4090", "marketplace"]
    assert (ask.on_demand_usd, ask.spot_usd, ask.vcpus) == (0.37, 0.21, 24)
    assert offers["8x-h100-80gb-sxm", "marketplace"].spot_usd == 9.6
    assert set(offers) & {(row.instance, row.region) for row in shipped().offer_rows if row.provider == "vast"}
    assert reasons["1x L40S"] == ["it is rented already"]
    assert reasons["1x Quantum 9000"] == ["Quantum 9000 is no chip of the catalog"]
    assert "4x-a100-40gb-sxm" not in {instance for instance, _ in offers}  # an ask of $0.00


def test_runpods_null_and_nothing_are_no_offer():
    offers, reasons = passed("runpod")
    assert offers["H100 SXM secure", "global"].prices() == {"on-demand": 2.69, "spot": 1.75}
    assert offers["H100 SXM community", "global"].prices() == {"on-demand": 2.59}
    assert ("H100 NVL community", "global") not in offers  # communityCloud is false, whatever the price
    assert ("RTX 6000 Ada community", "global") not in offers
    assert reasons["RTX 4090 community"] == ["spot price 0.00: unknown, not free"]
    assert reasons["MI300X secure"] == ["spot price 5.5 above 1.99 on demand"]
    assert "list does not say which" in reasons["H100 secure"][0]


def test_azures_sizes_are_those_that_the_catalog_knows():
    offers, reasons = passed("azure")
    assert offers["Standard_ND96isr_H100_v5", "eastus"].prices() == {"on-demand": 98.32, "spot": 30.1}
    assert set(reasons["Standard_NC4as_T4_v3"]) == {
        "its currency is EUR, not USD",
        "the price is for 1 Month, not for an hour",
    }
    assert "does not know this instance" in reasons["Standard_NC99_X9"][0]
    assert azure.parse(documents("azure")).without_accelerator == 2  # Windows, and a size without GPUs
    assert azure.next_page(documents("azure")[0]).startswith("https://prices.azure.com")
    assert azure.next_page(documents("azure")[1]) == ""


def test_interruption_classes_by_region_and_instance():
    parsed = spot_advisor.parse(documents("spot-advisor"))
    rates = {(rate.region, rate.instance): (rate.share_per_month, rate.label) for rate in parsed.rates}
    assert rates["us-east-1", "p5.48xlarge"] == (0.05, "<5%")
    assert rates["us-east-1", "g5.xlarge"] == (0.40, ">20%")  # the open class
    assert rates["us-east-1", "g6.xlarge"] == (0.10, "5-10%")  # not 0.11, the file's upper end
    assert ("us-east-1", "Windows") not in rates


def row(**changes: object) -> ListedRow:
    values: dict[str, object] = {
        "provider": "new",
        "instance": "big",
        "region": "here",
        "names": ("L40S",),
        "memory_gib": 45.0,
        "count": 1.0,
        "usd": {"on-demand": 1.0},
    }
    return ListedRow(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"memory_gib": None}, "a name alone is not taken"),
        ({"names": ("H100",), "memory_gib": 80.0}, "does not say which"),
        ({"names": ("H100 PCIe SXM",), "memory_gib": 80.0}, "does not say which"),
        ({"names": ("RTX PRO 6000",), "memory_gib": 96.0}, "does not say which"),
        ({"count": None}, "how many devices"),
        ({"count": 1.5}, "no number of devices"),
        ({"count": 0.0}, "no number of devices"),
        ({"count": 4096.0}, "no number of devices"),
        ({"usd": {}}, "no price"),
        ({"usd": {"on-demand": -1.0}}, "not free"),
        ({"usd": {"on-demand": 700.0}}, "a placeholder"),
        ({"currency": ""}, "not stated"),
        ({"instance": ""}, "no name"),
        ({"partial": "by the month"}, "by the month"),
        ({"names": ("Voodoo 2",)}, "no chip of the catalog"),
    ],
)
def test_a_row_that_fails_a_gate_says_why(changes: dict[str, object], why: str):
    offers, refused = gated([row(**changes)], yardstick())
    assert offers == []
    assert why in refused[0].why


def test_one_name_for_two_machines_is_refused_the_second_time():
    offers, refused = gated([row(), row(names=("L4",), memory_gib=24.0)], yardstick())
    assert [offer.chip_id for offer in offers] == ["l40s"]
    assert "one name for two machines" in refused[0].why


@pytest.mark.parametrize(
    ("name", "gib", "chip"),
    [
        ("A100-80GB-SXM", 80, "a100-80gb-sxm"),
        ("A100-80G-PCIe-NVLink", 80, "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100-80gb-sxm"),
        ("NVIDIA H200", 141, None),
        ("H200 NVL", 140, "h200-141gb-nvl"),
        ("H200NVL", 141, "h200-141gb-nvl"),
        ("H100SXM5", 80, "h100-80gb-sxm"),
        ("GB200 NVL72", 186, "gb200-186gb"),
        ("RTX A1000", 8, None),
        ("A100X", 80, None),
        ("RTX 3060 Ti", 8, "rtx-3060-ti"),
        ("RTX 4000 SFF Ada", 20, "rtx-4000-sff-ada"),
        ("B200", 179, "b200-180gb-sxm"),
        ("L4", 22.5, "l4"),
        ("RTX4090", 24, "rtx-4090"),
        ("RTX 4090 D", 24, "rtx-4090-d"),
        ("RTX 3080 Ti", 12, "rtx-3080-ti"),
        ("RTX A6000", 48, "rtx-a6000"),
        ("RTX 6000Ada", 48, "rtx-6000-ada"),
        ("Q RTX 8000", 48, "quadro-rtx-8000"),
        ("RTX6000", 24, "quadro-rtx-6000"),
        ("RTX_PRO_6000_S", 95.6, "rtx-pro-6000-blackwell-server"),
        ("AMD Instinct MI300X OAM", 192, "mi300x"),
        ("Tesla P4", 8, "p4"),
        ("GH200", 144, None),
    ],
)  # fmt: skip
def test_names_with_their_memory(name: str, gib: float, chip: str | None):
    listed = row(names=(name,), memory_gib=float(gib))
    if chip is None:
        with pytest.raises(RowRefused):
            chip_and_count(listed, chips=shipped().chips, instances={})
    else:
        assert chip_and_count(listed, chips=shipped().chips, instances={}) == (chip, 1.0)


def test_every_chip_of_the_catalog_that_a_pattern_names_exists():
    from gpuwise.refresh.chip_names import _FAMILIES

    assert {id_ for _, ids in _FAMILIES for id_ in ids.split()} <= set(shipped().chips)


BROKEN = {
    "nothing": b"",
    "HTML": b"<!DOCTYPE html><html>busy</html>",
    "not text": b"\xff\xfe\x00InstanceType",
    "a null": b'InstanceType,AcceleratorName\n"a\x00',
    "no columns": b"a,b,c\n1,2,3\n",
    "half a row": b"InstanceType,AcceleratorName,AcceleratorCount,Price,Region\np5,H100,8\n",
    "no JSON": b'{"offers": [',
    "a number": b"17",
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "texts": b'{"offers": ["a"], "data": {"gpuTypes": ["b"]}, "Items": ["c"], "spot_advisor": [], "ranges": []}',
    "tables": b'{"offers": {}, "data": {"gpuTypes": {}}, "Items": {}, "spot_advisor": {}, "ranges": {}}',
    "not a number": b'{"offers": [], "data": {"gpuTypes": NaN}, "Items": NaN, "spot_advisor": {"a": NaN}}',
    "an empty archive": archive("other.csv", b""),
    "half an archive": archive("aws.csv", b"instance_name\n" * 100)[:60],
}


@pytest.mark.parametrize(
    "adapter", [skypilot, gpuhunt, vast, runpod, azure, spot_advisor], ids=lambda module: module.__name__.split(".")[-1]
)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_document_is_one_coded_error_or_no_rows(adapter: object, name: str):
    with suppress(PriceListError):
        assert adapter.parse([BROKEN[name]], provider="aws").rows == ()  # type: ignore[attr-defined]


def test_a_class_that_the_file_does_not_explain_is_an_error():
    data = json.loads(documents("spot-advisor")[0])
    data["spot_advisor"]["us-east-1"]["Linux"]["p5.48xlarge"]["r"] = 9
    with pytest.raises(PriceListError, match="in no class"):
        spot_advisor.parse([json.dumps(data).encode()])


def test_texts_and_numbers_from_outside():
    assert text(" a\x1b[31m\nb\u202e ") == "a[31m b"
    assert [number(value) for value in ("1.5", 2, "", None, True, "nan", "1e999", 10**400, [1])] == [1.5, 2.0, *[None] * 7]


def test_lists_are_named_by_provider_or_with_their_source():
    assert request_of("aws").source.name == "skypilot"
    assert request_of("gpuhunt:aws").words == "gpuhunt's catalog v3 of aws"
    assert request_of("verda").source.name == "skypilot"
    assert [request.provider for request in requests_of([])][-1] == "spot-advisor"
    assert len(requests_of(["aws", "gpuhunt:aws"])) == 1
    for name in ("awz", "gpuhunt:kaggle", "nobody:aws", ""):
        with pytest.raises(UnknownNameError, match="no price list"):
            request_of(name)


def test_each_list_has_its_sample_and_its_host():
    assert {name.split(":")[0] for name in LISTS} == set(SOURCES)
    for source in SOURCES.values():
        assert source.url.startswith(f"https://{source.host}/")
