"""The compute-domain controller: serves ComputeDomains without IMEX, drivers or hardware."""

from controllers.compute_domain.declaration import DECLARATION
from controllers.compute_domain.options import ComputeDomainOptions
from controllers.compute_domain.setup import setup

__all__ = ["DECLARATION", "ComputeDomainOptions", "setup"]
