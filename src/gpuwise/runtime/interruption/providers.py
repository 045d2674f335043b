"""Sources of interruption notices for AWS, Google Cloud and Azure, from their link-local metadata servers."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import ClassVar

from gpuwise.errors import InputError
from gpuwise.runtime.interruption.metadata import MetadataServer, NoAnswer
from gpuwise.runtime.interruption.notices import ADVICE, INTERRUPTION, POLL_S, Notice, NoticeSource

_SERVER = "http://169.254.169.254"  # the same address in all three clouds
DMI = Path("/sys/class/dmi/id")
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # "MSFT AZURE VM"; other Hyper-V machines have another asset tag


class Cloud(ABC):
    """A provider's metadata as a Notice, which is created once and kept until the metadata changes."""

    name: str

    def __init__(self, base_url: str = _SERVER, *, timeout_s: float = 2.0, clock: Callable[[], float] = time.time) -> None:
        self._server = MetadataServer(base_url, timeout_s=timeout_s)
        self._clock = clock
        self._latest_answer: tuple[str, ...] | None = None
        self._notice: Notice | None = None

    def poll(self) -> Notice | None:
        answer = self._ask()
        if answer != self._latest_answer:
            self._latest_answer, self._notice = answer, self._to_notice(answer) if answer else None
        return self._notice

    @abstractmethod
    def _ask(self) -> tuple[str, ...] | None:
        """The provider's notice in its own words; None if nothing is planned."""

    @abstractmethod
    def _to_notice(self, answer: tuple[str, ...]) -> Notice:
        """Converts the provider's words to a Notice."""

    def _get(self, path: str, headers: Mapping[str, str]) -> str | None:
        """The text at a path; None for status 404."""
        answer = self._server.ask(path, headers=headers)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise NoAnswer(f"its metadata server answers {path} with status {answer.status}")
        return answer.text

    def _interruption(self, what: str, at_unix_s: float | None, *, lead_s: float | None = None) -> Notice:
        """A notice of an interruption at most `lead_s` seconds from now.

        The bound guards against a local clock that is slow. A time in the past means that the local clock is fast; the
        interruption may then come at any moment.
        """
        now_s = self._clock()
        if lead_s is not None and at_unix_s is not None:
            at_unix_s = min(at_unix_s, now_s + lead_s)
        if at_unix_s is None or at_unix_s <= now_s:
            return Notice(self.name, INTERRUPTION, None, f"{what} at any moment.")
        return Notice(self.name, INTERRUPTION, at_unix_s, f"{what} at {datetime.fromtimestamp(at_unix_s, UTC):%H:%M:%S} UTC.")


class Aws(Cloud):
    """EC2 Spot instances: the interruption notice, two minutes ahead, and the rebalance recommendation, which is advice.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (instance-action; 404 when
    nothing is planned; two minutes, none before a hibernation; poll every 5 s),
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html and, for the token of IMDSv2,
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
    """

    name = "aws"
    _LEAD_S = 120.0
    _token = ""

    def _ask(self) -> tuple[str, ...] | None:
        if (answer := self._with_token("/latest/meta-data/spot/instance-action")) is not None:
            facts = _facts(answer)
            if facts.get("action") not in ("terminate", "stop", "hibernate"):
                raise NoAnswer(f"its instance-action is {answer[:80]!r}")
            return INTERRUPTION, str(facts["action"]), str(facts.get("time", ""))
        if (answer := self._with_token("/latest/meta-data/events/recommendations/rebalance")) is not None:
            return ADVICE, "rebalance", str(_facts(answer).get("noticeTime", ""))
        return None

    def _to_notice(self, answer: tuple[str, ...]) -> Notice:
        kind, action, when = answer
        if kind == ADVICE:
            return Notice(self.name, ADVICE, None, "AWS says that this spot instance is likely to be interrupted.")
        at_unix_s = None
        if action != "hibernate":
            with suppress(ValueError, OverflowError):
                at_unix_s = datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()
        return self._interruption(f"AWS will {action} this spot instance", at_unix_s, lead_s=self._LEAD_S)

    def _with_token(self, path: str) -> str | None:
        if not self._token:
            self._renew()
        answer = self._server.ask(path, headers={"X-aws-ec2-metadata-token": self._token})
        if answer.status == 401:  # the token has expired
            self._renew()
        elif answer.status == 200:
            return answer.text
        elif answer.status == 404:
            return None
        return self._get(path, {"X-aws-ec2-metadata-token": self._token})

    def _renew(self) -> None:
        answer = self._server.ask("/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "21600"})
        token = answer.text.strip()
        if answer.status != 200 or not (0 < len(token) < 1000 and token.isascii() and token.isprintable()):
            raise NoAnswer(f"its metadata server gives no token (status {answer.status})")
        self._token = token


class Gcp(Cloud):
    """Spot and preemptible machines of Compute Engine, and the maintenance of its hosts.

    https://cloud.google.com/compute/docs/instances/create-use-preemptible#detecting (`preempted` becomes TRUE; 30 s),
    https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice (`maintenance-event`; 60 s),
    https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance (an hour with GPUs attached; the shorter is assumed).
    """

    name = "gcp"
    _LEADS_S: ClassVar = {"preempted": 30.0, "TERMINATE_ON_HOST_MAINTENANCE": 60.0}
    _PATH = "/computeMetadata/v1/instance/"

    def _ask(self) -> tuple[str, ...] | None:
        if self._word("preempted", ("TRUE", "FALSE")) == "TRUE":
            return ("preempted",)
        words = ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")
        event = self._word("maintenance-event", words)
        return None if event == "NONE" else (event,)

    def _to_notice(self, answer: tuple[str, ...]) -> Notice:
        if answer[0] not in self._LEADS_S:
            return Notice(self.name, ADVICE, None, "Google Cloud will move this machine to another host, which is a pause.")
        what = "preempt" if answer[0] == "preempted" else "stop"
        at_unix_s = (
            self._clock() + self._LEADS_S[answer[0]] - POLL_S
        )  # up to one poll interval may have passed since the notice appeared
        return self._interruption(f"Google Cloud will {what} this machine", at_unix_s)

    def _word(self, key: str, words: tuple[str, ...]) -> str:
        answer = self._server.ask(self._PATH + key, headers={"Metadata-Flavor": "Google"})
        word = answer.text.strip()
        # Google's servers put this header on every answer; an answer without it comes from another server.
        if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google" or word not in words:
            raise NoAnswer(f"its metadata server answers {key} with status {answer.status} and {word[:80]!r}")
        return word


class Azure(Cloud):
    """Scheduled events of this virtual machine: Preempt (30 s), Terminate, Reboot and Redeploy (minutes).

    https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events (events go to all machines of a set, each
    named in Resources; NotBefore is empty once the event has begun; the first answer may take two minutes),
    https://learn.microsoft.com/azure/virtual-machines/linux/instance-metadata-service (this machine's name).
    """

    name = "azure"
    _EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
    _NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    _ENDING: ClassVar = {"Preempt": "evict", "Terminate": "delete", "Reboot": "reboot", "Redeploy": "move and reboot"}
    _machine = ""

    def _ask(self) -> tuple[str, ...] | None:
        if not self._machine:
            self._machine = (self._get(self._NAME, {"Metadata": "true"}) or "").strip().lower()
        events = _facts(self._get(self._EVENTS, {"Metadata": "true"}) or "").get("Events")
        if not self._machine or not isinstance(events, list):
            raise NoAnswer("its metadata server does not know this machine or its events")
        mine = [(str(event.get("EventType")), str(event.get("NotBefore") or "")) for event in events if self._is_mine(event)]
        return min(mine, key=lambda event: _unix_s(event[1]) or 0.0, default=None)

    def _to_notice(self, answer: tuple[str, ...]) -> Notice:
        return self._interruption(f"Azure will {self._ENDING[answer[0]]} this machine", _unix_s(answer[1]))

    def _is_mine(self, event: object) -> bool:
        if not isinstance(event, dict) or event.get("EventType") not in self._ENDING:
            return False
        machines = event.get("Resources")
        return isinstance(machines, list) and self._machine in [str(machine).lower() for machine in machines]


_CLOUDS: dict[str, type[Cloud]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def source_for(name: str, *, dmi: Path = DMI) -> NoticeSource | None:
    """The source of a provider; None for "none", or for "auto" outside the three clouds. Uses no network.

    Arguments:
        name: auto | aws | gcp | azure | none.
        dmi: folder in which Linux describes the machine's vendor; auto detects the provider from it.

    Raises InputError for another name.
    """
    if name not in ("auto", "none", *_CLOUDS):
        raise InputError(f"unknown source of interruption notices {name!r}.", [f"one of: auto, {', '.join(_CLOUDS)}, none"])
    cloud = _detected(dmi) if name == "auto" else name
    return _CLOUDS[cloud]() if cloud in _CLOUDS else None


def _detected(dmi: Path) -> str:
    """'aws', 'gcp', 'azure' or 'none', from the firmware's description of the machine."""

    def firmware(field: str) -> str:
        with suppress(OSError, UnicodeDecodeError):
            return (dmi / field).read_text().strip()
        return ""

    vendor = firmware("sys_vendor")
    if vendor == "Amazon EC2" or "amazon" in firmware("bios_version").lower():  # bios_version: older instances, on Xen
        return "aws"
    if vendor == "Google" and firmware("product_name") == "Google Compute Engine":
        return "gcp"
    if vendor == "Microsoft Corporation" and firmware("chassis_asset_tag") == _AZURE_TAG:
        return "azure"
    return "none"


def _facts(text: str) -> dict[str, object]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise NoAnswer(f"its metadata server answers with {text[:80]!r}")
    return facts


def _unix_s(date: str) -> float | None:
    """The UNIX time of a date such as 'Mon, 19 Sep 2016 18:29:47 GMT'; None if it cannot be parsed."""
    with suppress(ValueError, TypeError, OverflowError):
        return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
    return None
