"""The fixtures that the tests beside this file use."""

from controllers.sandbox.testing import sandbox

__all__ = ["sandbox"]
