"""The files of one data directory."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths under `root`; nothing outside of it is written."""

    root: Path

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def ca(self) -> Path:
        return self.pki / "ca.crt"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    @property
    def audit_policy(self) -> Path:
        return self.root / "audit-policy.yaml"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def sandbox(self) -> Path:
        return self.root / "sandbox"

    @property
    def kubectl_cache(self) -> Path:
        return self.root / "kubectl-cache"

    def certificate(self, name: str) -> Path:
        return self.pki / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.pki / f"{name}.key"

    def kubeconfig(self, name: str) -> Path:
        return self.root / "kubeconfigs" / f"{name}.yaml"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"
