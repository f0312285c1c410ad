"""The verdict, and everything it rests on."""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.attention.layout import Layout
from lockstep.base.files import write_whole
from lockstep.verification.checks import Check
from lockstep.verification.conventions import Conventions
from lockstep.verification.foreign import portable

ADAPTED = "adapter.ForeignAttention"  # what a saved class builds, wherever this has lain
"""What tells a configuration that was written here."""
EXIT_STATUS = {"equivalent": 0, "different": 1, "could not tell": 2}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: its code, a sentence, and the user's own traceback where there is one."""

    code: str
    sentence: str
    trace: str = ""


@dataclass
class Certificate:
    """What :func:`~lockstep.verification.judge.verify` found out.

    Args:
        target: what was verified.
        verdict: "equivalent", "different" or "could not tell".
        findings: what is wrong, or what could not be found.
        remarks: what is worth knowing and wrong in nothing.
        arguments: constructor arguments, as words where they depend on sizes.
        conventions: how the class is called.
        mapping: where it keeps the canonical weights.
        checks: the judged checks and the reported figures.
        reach: for each axis, what was tried of it.
        precision: "float64"; or "float32 inside", or "float32 only", where it computes in that, and was judged by it.
        mutants: fault -> "caught by ...", "not applicable" or "NOT CAUGHT".
        seconds: how long it took.
        folder: the working directory, from which a relative target starts.
    """

    target: str
    verdict: str = "could not tell"
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    conventions: Conventions | None = None
    mapping: list[Layout] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    reach: dict[str, str] = field(default_factory=dict)
    precision: str = "float64"
    mutants: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    def differs(self, code: str, sentence: str, trace: str = "") -> None:
        self.verdict = "different"
        self.findings.append(Finding(code, sentence, trace))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``certificate.json``; figures that are not finite become strings."""
        checks = [
            {"what": check.what, "figure": _plain(check.figure), "limit": check.limit, "note": check.note,
             "judged": check.judged, "passed": check.passed}
            for check in self.checks
        ]  # fmt: skip
        return {
            "target": self.target,
            "verdict": self.verdict,
            "precision": self.precision,
            "findings": [asdict(finding) for finding in self.findings],
            "remarks": self.remarks,
            "arguments": self.arguments,
            "conventions": asdict(self.conventions) if self.conventions else None,
            "mapping": [asdict(layout) for layout in self.mapping],
            "checks": checks,
            "reach": self.reach,
            "mutants": self.mutants,
            "seconds": round(self.seconds, 2),
        }

    def save(self, path: Path) -> None:
        write_whole(path, json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n", follow=True)

    def yaml(self) -> str:
        """The configuration that makes the class trainable; JSON values are YAML values.

        Raises:
            ValueError: the class was not found equivalent.
        """
        if self.verdict != "equivalent" or self.conventions is None:
            raise ValueError(f"only an equivalent class is saved; the verdict on {self.target} is: {self.verdict}")
        target, folder = portable(self.target, Path(self.folder))
        lines = [
            "# Written by scripts/verify.py: how the class is constructed and called, and where it keeps its weights.",
            f"_target_: lockstep.verification.{ADAPTED}",
            f"target: {_quoted(target)}",
            *([] if folder is None else [f"folder: {_quoted(folder)}  # within this project, or absolute"]),
            f"arguments: {json.dumps(self.arguments)}",
            "conventions:",
            *(f"  {name}: {json.dumps(value)}" for name, value in asdict(self.conventions).items()),
            "mapping:",
            *(f"  - {json.dumps(asdict(layout))}" for layout in self.mapping),
        ]
        return "\n".join(lines) + "\n"

    def table(self) -> str:
        """The certificate as text."""
        computes = f" ({self.precision})" if self.verdict == "equivalent" and self.precision != "float64" else ""
        lines = [f"{self.verdict.upper()}{computes}: {self.target}  ({self.seconds:.1f} s)", ""]
        for finding in self.findings:
            lines.append(f"  {finding.code}: {finding.sentence}")
            lines += [f"    | {line}" for line in finding.trace.splitlines()]
        lines += [f"  note: {remark}" for remark in self.remarks]
        if self.conventions is not None:
            lines += ["", "  called as", *(f"    {line}" for line in _call_lines(self.conventions))]
        if self.mapping:
            width = max(len(layout.parameter) for layout in self.mapping)
            lines += ["", "  mapping (r role, h head, k channel of a head, d model width)"]
            for layout in self.mapping:
                order = f"  heads in the order {list(layout.heads)}" if layout.heads else ""
                lines.append(f"    {layout.parameter:<{width}}  {layout.axes:<12}  {', '.join(layout.roles)}{order}")
        for title, judged in (("judged", True), ("reported", False)):
            rows = _worst_of_each_kind([check for check in self.checks if check.judged == judged])
            if rows:
                lines += ["", f"  {title}", *_rows(rows)]
        if self.reach and self.verdict == "equivalent":
            width = max(map(len, self.reach))
            lines += [
                "",
                "  reach",
                *(_wrapped(f"{axis:<{width}}  {tried}", width) for axis, tried in self.reach.items()),
            ]
        if self.mutants:
            caught = sum(outcome.startswith("caught") for outcome in self.mutants.values())
            skipped = [name for name, outcome in self.mutants.items() if outcome == "not applicable"]
            lines += ["", f"  mutants: {caught} of {len(self.mutants) - len(skipped)} caught; "
                      f"not applicable: {len(skipped)}"]  # fmt: skip
            lines += [f"    {name}: {o}" for name, o in self.mutants.items() if o.startswith("NOT")]
        lines += ["", f"  The code of {self.target} ran in this process: this is no sandbox."]
        return "\n".join(lines) + "\n"


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(line, 118, initial_indent=" " * 4, subsequent_indent=" " * (width + 6), break_on_hyphens=False)


def _quoted(path: str) -> str:
    """For YAML, and for OmegaConf, to which ${ is a reference."""
    return json.dumps(re.sub(r"(\\*)\$\{", r"\1\1\\${", path), ensure_ascii=False)


def _plain(figure: float | str) -> float | str:
    return figure if isinstance(figure, str) or abs(figure) < float("inf") else str(figure)


def _call_lines(conventions: Conventions) -> list[str]:
    given = ", ".join(name if name == role else f"{name}={role}" for name, role in conventions.inputs.items())
    lines = [f"forward({given}), {'time' if conventions.time_first else 'batch'} first, returns "
             + ("a tensor" if conventions.output is None else f"the output at {conventions.output!r}")]  # fmt: skip
    lines += [str(form) for form in conventions.masks]
    lines += [f"{form}, in self-attention" for form in conventions.self_masks if form not in conventions.masks]
    if conventions.causal:
        lines.append("always causal")
    if conventions.causal_argument:
        lines.append(f"{conventions.causal_argument}=True for causality")
    lines += [f"{name}=None" for name in conventions.none]
    return lines


def _worst_of_each_kind(checks: list[Check]) -> list[Check]:
    """Checks made in many situations as one line for each kind: the worst of them."""
    kinds: dict[str, list[Check]] = {}
    for check in checks:
        kinds.setdefault(check.what.partition(", ")[0], []).append(check)
    lines = []
    for kind, group in kinds.items():
        worst = max(group, key=lambda check: check.figure if isinstance(check.figure, float) else float("inf"))
        if len(group) > 1:
            failed = sum(not check.passed for check in group)
            note = f"in {failed} of them, largest in: {worst.what.partition(', ')[2]}" if failed else ""
            worst = replace(worst, what=f"{kind}, in {len(group)} situations", note=note)
        lines.append(worst)
    return lines


def _rows(checks: list[Check]) -> list[str]:
    width = max(len(check.what) for check in checks)
    rows = []
    for check in checks:
        figure = check.figure if isinstance(check.figure, str) else f"{check.figure:.1e}"
        limit = "" if check.limit is None else f"<= {check.limit:.0e}  {'ok' if check.passed else 'FAILED'}"
        rows.append(f"    {check.what:<{width}}  {figure:>8}  {limit}  {check.note}".rstrip())
    return rows
