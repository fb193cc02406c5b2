"""What each component is started with: pure functions from options to command lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from hack.localcluster.binaries import Binaries
from hack.localcluster.certificates import SERVICE_ACCOUNT, SERVING
from hack.localcluster.layout import Layout

Component = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
# The audit log is evidence of who did what; rotated away (100 MiB by default) it would be none. In MiB.
AUDIT_LOG_SIZE = 8192
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
  - level: Metadata
"""


@dataclass(frozen=True)
class Options:
    """How the control plane is run."""

    start_kwok: bool = True
    """Whether KWOK makes annotated nodes Ready and runs their pods."""
    extra_flags: Mapping[Component, Sequence[str]] = field(default_factory=dict)
    """Flags appended to a component's own; the last of two equal flags wins."""
    ready_exclusions: Sequence[str] = ()
    """Checks of the API server's /readyz not to wait for. `informer-sync` never passes where
    `--runtime-config` switches off a version that the server itself watches, such as resource.k8s.io/v1."""
    start_timeout: float = 60.0
    """Seconds until a start that is not healthy counts as failed (it takes about 5 on two cores)."""
    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    node_lease_duration: int = 40
    """Seconds; KWOK renews a node's lease four times as often. Small values cost one write per renewal and node."""
    node_monitor_grace_period: float = 50.0
    """Seconds without a renewal after which a node is not Ready (the default of Kubernetes). Longer than a lease, so
    that nodes stay Ready while a restarted KWOK waits for the leases of its predecessor to run out."""
    node_monitor_period: float = 1.0
    """Seconds between two looks of the controller manager at all nodes."""


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1; `etcd_peer` is listened on though nobody calls it."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    kwok: int


@dataclass(frozen=True)
class Plan:
    """Everything that a command line depends on."""

    layout: Layout
    binaries: Binaries
    ports: Ports
    options: Options

    @property
    def server(self) -> str:
        return f"https://{HOST}:{self.ports.apiserver}"

    @property
    def etcd_url(self) -> str:
        return f"http://{HOST}:{self.ports.etcd}"

    @property
    def components(self) -> list[Component]:
        """What is to run, in the order in which it is started."""
        return [name for name in COMPONENTS if name != "kwok" or self.options.start_kwok]

    def command(self, component: Component) -> list[str]:
        """The command line of a component."""
        flags = {
            "etcd": _etcd,
            "kube-apiserver": _apiserver,
            "kube-controller-manager": _controller_manager,
            "kube-scheduler": _scheduler,
            "kwok": _kwok,
        }[component](self)
        executable = str(self.binaries.executable(component))
        return [executable, *flags, *self.options.extra_flags.get(component, ())]

    def health_url(self, component: Component) -> str:
        """The URL that answers 200 once a component has started."""
        exclusions = "&".join(f"exclude={check}" for check in self.options.ready_exclusions)
        return {
            "etcd": f"{self.etcd_url}/readyz",
            "kube-apiserver": f"{self.server}/readyz?{exclusions}",
            "kube-controller-manager": f"https://{HOST}:{self.ports.controller_manager}/healthz",
            "kube-scheduler": f"https://{HOST}:{self.ports.scheduler}/healthz",
            "kwok": f"http://{HOST}:{self.ports.kwok}/readyz",
        }[component]


def _etcd(plan: Plan) -> list[str]:
    client = plan.etcd_url
    peer = f"http://{HOST}:{plan.ports.etcd_peer}"
    return [
        "--name=local",
        f"--data-dir={plan.layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(plan: Plan) -> list[str]:
    layout = plan.layout
    return [
        f"--etcd-servers={plan.etcd_url}",
        f"--bind-address={HOST}",
        f"--secure-port={plan.ports.apiserver}",
        # A loopback address can be advertised only when nobody puts it into the endpoints of the kubernetes Service.
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        *_serving_certificate(layout),
        f"--client-ca-file={layout.ca}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={layout.pki / SERVICE_ACCOUNT}.pub",
        f"--service-account-signing-key-file={layout.key(SERVICE_ACCOUNT)}",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={layout.audit_log}",
        f"--audit-log-maxsize={AUDIT_LOG_SIZE}",
    ]


def _controller_manager(plan: Plan) -> list[str]:
    layout = plan.layout
    return [
        *_api_client(layout, "kube-controller-manager"),
        *_serving_certificate(layout),
        f"--secure-port={plan.ports.controller_manager}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={layout.key(SERVICE_ACCOUNT)}",
        f"--root-ca-file={layout.ca}",
        f"--node-monitor-period={plan.options.node_monitor_period}s",
        f"--node-monitor-grace-period={plan.options.node_monitor_grace_period}s",
        "--concurrent-namespace-syncs=20",
    ]


def _scheduler(plan: Plan) -> list[str]:
    return [
        *_api_client(plan.layout, "kube-scheduler"),
        *_serving_certificate(plan.layout),
        f"--secure-port={plan.ports.scheduler}",
    ]


def _kwok(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.layout.kubeconfig('kwok')}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-lease-duration-seconds={plan.options.node_lease_duration}",
        "--cidr=10.0.0.1/16",
        "--node-ip=10.0.0.1",
        f"--server-address={HOST}:{plan.ports.kwok}",
        # Naming the files also keeps KWOK from reading a configuration in the user's home.
        *(f"--config={stage}" for stage in plan.binaries.stages()),
    ]


def _api_client(layout: Layout, name: str) -> list[str]:
    """Flags that the controller manager and the scheduler share."""
    kubeconfig = layout.kubeconfig(name)
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={HOST}",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _serving_certificate(layout: Layout) -> list[str]:
    return [
        f"--tls-cert-file={layout.certificate(SERVING)}",
        f"--tls-private-key-file={layout.key(SERVING)}",
    ]
