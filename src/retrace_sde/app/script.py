"""The Python that does what the page did; every name in it is a quoted literal."""

from __future__ import annotations

from typing import Any

from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.show.report import FORECAST_STEPS


def recover_options(roles: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What `recover` is called with, from the page's choices, which the server has checked."""
    found: dict[str, Any] = {"subject": roles["subject"]}
    found |= {key: roles[key] for key in ("slice", "time", "group") if roles.get(key)}
    found |= {key: list(roles[key]) for key in ("variables", "covariates") if roles.get(key)}
    found |= {key: options[key] for key in ("dt", "missing_covariates") if key in options}
    if "common_shocks" in options:
        found["common_shocks"] = options["common_shocks"] == "yes"
    ends = {key: options[key] for key in ("first", "last") if options.get(key)}
    if ends and roles.get("slice"):
        found["knowledge"] = Knowledge(**ends)
    return {**found, "random_state": 0}


PLAIN = {"sep": ",", "decimal": ".", "encoding": "utf-8"}
"""How pandas writes csv by itself."""


def steps_ahead(options: dict[str, Any]) -> int:
    """Observations that are forecast."""
    return int(options.get("steps") or FORECAST_STEPS)


def script(
    file: str,
    roles: dict[str, Any],
    options: dict[str, Any],
    *,
    sheet: str | None = None,
    written: dict[str, str] | None = None,
) -> str:
    """A file that fits the same table the same way and writes the same results, as text like the user's own (`written`)."""
    asked = recover_options(roles, options)
    known = asked.pop("knowledge", None)
    if known is not None:
        ends = ", ".join(f"{key}={getattr(known, key)!r}" for key in ("first", "last") if getattr(known, key) is not None)  # fmt: skip
    lines = [f"    {key}={value!r}," for key, value in asked.items()]
    lines += [] if known is None else [f"    knowledge=rt.Knowledge({ends}),"]
    text = [name for name in (roles["subject"], roles.get("slice"), roles.get("group")) if name]
    read = f", sheet={sheet!r}" if sheet is not None else ""
    form = [f", {key}={sign!r}" for key, sign in (written or {}).items() if sign != PLAIN[key]]
    steps, tail = steps_ahead(options), "".join([", index=False", *form])
    return "\n".join([
        '"""Puts a table back in time, as the page did. Usage: python retrace_fit.py [FILE]"""',
        "", "import sys", "", "import retrace_sde as rt", "",
        f"file = sys.argv[1] if len(sys.argv) > 1 else {file!r}",
        f"table = rt.read_table(file, text={text!r}{read})",
        "found = rt.recover(", "    table,", *lines, ")",
        "print(found.summary())",
        f'found.ordered.to_csv("ordered.csv"{tail})',
        f'found.forecast({steps}).to_csv("forecast.csv"{tail})',
        f'found.report("report.html", steps={steps})',
        'found.model.result_.save("result.npz")', "",
    ])  # fmt: skip
