"""What is wrong with a topology document, in words that name the place and the fix."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    ``path`` leads to it from the top of the document, ``pool`` is "" where it is nobody's in particular. ``why`` says
    what is there and what may be, ``fix`` what to do.
    """

    path: str
    why: str
    fix: str
    pool: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}: {self.fix}"


class Mistake(Exception):
    """Ends the reading of one pool, or of the document, for one or more problems; it does not leave this package."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems

    @property
    def problem(self) -> Problem:
        """The first of them."""
        return self.problems[0]
