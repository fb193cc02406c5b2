"""What was measured, as aligned text and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.bench.statistics import Spread, ratios

HEADER = ("measurement", "ours", "base", "ratio", "goal", "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of ours, a value per repeat, beside a base from the same repeats.

    ``goal`` is the limit of the ratio ours / base, or of our figure alone where it is ``absolute``, from the project's
    budgets; ``higher_is_better`` turns it round.
    """

    name: str
    unit: str
    ours: Sequence[float]
    base: Sequence[float] | None = None
    goal: float | None = None
    higher_is_better: bool = False
    absolute: bool = False

    @property
    def ratio(self) -> Spread | None:
        return Spread.of(ratios(self.ours, self.base)) if self.base is not None else None

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` by the median; "" where there is no goal."""
        judged = Spread.of(self.ours) if self.absolute else self.ratio
        if self.goal is None or judged is None:
            return ""
        met = judged.median >= self.goal if self.higher_is_better else judged.median <= self.goal
        return "met" if met else "missed"

    def cells(self) -> tuple[str, ...]:
        base = shown(Spread.of(self.base), self.unit) if self.base is not None else "-"
        ratio = shown(self.ratio, "x") if self.ratio is not None else "-"
        sign = ">=" if self.higher_is_better else "<="
        unit = self.unit if self.absolute else "x"
        goal = f"{sign} {self.goal:g}{unit}" if self.goal is not None else "-"
        return (self.name, shown(Spread.of(self.ours), self.unit), base, ratio, goal, self.verdict)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": list(self.ours),
            "base": list(self.base) if self.base is not None else None,
            "ratio": self.ratio.median if self.ratio is not None else None,
            "goal": self.goal,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Table:
    """Figures under one title; ``base`` says what they stand beside, if anything."""

    title: str
    rows: Sequence[Comparison]
    base: str = ""

    def text(self) -> str:
        header = tuple(self.base if cell == "base" else cell for cell in HEADER)
        rows = [header, *(row.cells() for row in self.rows)]
        if all(row.base is None for row in self.rows):
            goals = any(row.goal is not None for row in self.rows)
            rows = [(*cells[:2], *(cells[4:] if goals else ())) for cells in rows]
        return f"{self.title}\n{aligned(rows)}\n"

    def as_json(self) -> dict[str, Any]:
        return {"title": self.title, "base": self.base, "rows": [row.as_json() for row in self.rows]}


@dataclass(frozen=True, slots=True)
class WriteCount:
    """Writes of one sort; ``why`` is None where nobody expects them."""

    what: str
    per_domain: float
    at_most: float
    why: str | None

    @property
    def unexpected(self) -> bool:
        return self.why is None or self.per_domain > self.at_most

    def cells(self) -> tuple[str, ...]:
        note = self.why or "nobody expects this write"
        limit = f"at most {self.at_most:g}" if self.why is not None else "none"
        return (self.what, f"{self.per_domain:g}", limit, "UNEXPECTED: " + note if self.unexpected else note)

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "count": self.per_domain, "why": self.why, "unexpected": self.unexpected}


@dataclass(frozen=True, slots=True)
class WriteList:
    """Every sort of write that one episode caused."""

    title: str
    counts: Sequence[WriteCount]
    extra: str = ""

    def text(self) -> str:
        total = sum(count.per_domain for count in self.counts)
        lines = [f"{self.title}: {total:g}{self.extra}"]
        if self.counts:
            lines.append(aligned([count.cells() for count in self.counts]))
        return "\n".join(lines) + "\n"

    @property
    def unexpected(self) -> bool:
        return any(count.unexpected for count in self.counts)

    def as_json(self) -> dict[str, Any]:
        return {"title": self.title, "counts": [count.as_json() for count in self.counts]}


@dataclass
class Report:
    """Prints each part as soon as it is known and keeps it for the JSON file."""

    facts: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    writes: list[WriteList] = field(default_factory=list)

    def add(self, part: Table | WriteList) -> None:
        if isinstance(part, Table):
            self.tables.append(part)
        else:
            self.writes.append(part)
        print(part.text(), flush=True)

    @property
    def failed(self) -> bool:
        """Whether something was written that must not be; a missed goal alone is no failure."""
        return any(part.unexpected for part in self.writes)

    def save(self, path: Path) -> None:
        document = {
            "facts": self.facts,
            "tables": [table.as_json() for table in self.tables],
            "writes": [part.as_json() for part in self.writes],
            "failed": self.failed,
        }
        path.write_text(json.dumps(document, indent=2) + "\n")


def shown(spread: Spread, unit: str) -> str:
    """Median and spread with three significant digits."""
    return f"{number(spread.median)} {unit} ({number(spread.low)}..{number(spread.high)})"


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as columns, two spaces apart and indented."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(("  " + line).rstrip() for line in lines)
