"""Checks the JSON of `gpuwise plan llama3-8b --tokens 20B --budget 20000 --deadline 30d`."""

import json
import sys
from pathlib import Path

result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
plans = result["plans"]
assert plans, "no plan for 20B tokens of an 8B model in $20,000 and 30 days"
assert [plan["rank"] for plan in plans] == list(range(1, len(plans) + 1))
for plan in plans:
    assert plan["usd"] <= 20_000, plan["usd"]
    assert plan["hours"] <= 30 * 24, plan["hours"]
    assert 0 < plan["finish_probability"] <= 1
    assert plan["reasons"], "a plan without reasons"
    forecast = plan["forecast"]
    step = forecast["step_time_s"]
    assert 0 < step["low"] <= step["value"] <= step["high"]
    memory = forecast["memory"]
    assert memory["fits"]
    assert memory["device_bytes"] <= memory["capacity_bytes"]
    assert sum(memory["by_category"].values()) == memory["peak_allocated_bytes"]
    # A plan is not faster than the hardware, leaves out no work (6 operations a parameter and token at least), and takes
    # at least the time of its steps.
    assert 0 < forecast["mfu"] < 1, forecast["mfu"]
    assert forecast["flops_per_step"] * plan["steps"] >= 6 * 8.03e9 * 20e9
    assert plan["hours"] * 3600 >= plan["steps"] * step["value"]
assert result["rejected"], "nothing was rejected, so nothing was considered"
best = plans[0]
print(f"{len(plans)} plans; best: {best['count']} x {best['device']}, {best['hours']:.0f} h, ${best['usd']:,.0f}")
