"""Any of the controllers in one process, with one connection and shared caches."""

from controllers.all_in_one.parts import PARTS, Part

__all__ = ["PARTS", "Part"]
