"""The run itself: nodes, controllers, a domain and its workers, and what came of them."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from controllers.all_in_one import PARTS
from hack.demo import tables
from hack.demo.borrowed import Unfit
from hack.demo.estate import Estate
from hack.demo.manifests import installation, samples_for
from hack.demo.options import DemoOptions
from hack.demo.progress import Progress, State
from hack.localcluster import ControllerProcess, Environment, delete_nodes
from hack.localcluster.controllers import NAMESPACE, REPOSITORY
from hack.localcluster.nodes import CLIQUE_LABEL, POOL_LABEL, apply_nodes, is_schedulable

INSTALLATION = ("config/overlays/all-in-one", "crds/noderesourcetopology")
SAMPLES = "config/samples"
CHANNELS, GPUS = "compute-domain.nvidia.com", "gpu.nvidia.com"
"""Drivers of slices."""

TIMEOUT = 120.0
"""Seconds for one step; a busy machine, not the controllers, needs more than a few."""

NODES_TIMEOUT = 45.0
"""Seconds for KWOK to make the nodes Ready; it takes one or two."""

REMOVAL_TIMEOUT = "90s"
LOG_LINES = 15  # of each controller's log, shown after a failure

Manifest = dict[str, Any]


class Demo:
    """One run on one cluster. `run` may be called once."""

    def __init__(self, cluster: Environment, options: DemoOptions, progress: Progress) -> None:
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._namespace = options.prefix
        self._controllers: list[ControllerProcess] = []
        self._wanted = 0  # nodes
        self._samples = samples_for(self._rendered(SAMPLES), self._namespace, options.nodes)
        self._estate = Estate(options.prefix, options.racks, options.nodes_per_rack)
        # In a cluster of the demo's own the usual name, so that what the documentation says works there.
        self._topology = options.prefix if options.kubeconfig else "topology"

    def run(self, cleanup: ExitStack) -> None:
        """Bring the domain to Ready. What must be taken back from a borrowed cluster is pushed on `cleanup`.

        Raises KubectlError, ProcessError, TimeoutError or Unfit where something does not come about.
        """
        if self._options.kubeconfig:
            self._refuse_existing("namespace", [self._namespace])
            self._refuse_existing("node", self._estate.nodes)
        if self._deployed_controllers():
            self._make_nodes(cleanup, self._estate.racked_node_manifests())
        else:
            self._install(cleanup)
            self._make_nodes(cleanup, self._estate.node_manifests())
            self._start_controllers()
            self._follow("the estate", self._estate_state)
        self._follow("the channel slices", self._slices_state)
        self._apply_samples(cleanup)
        self._follow("readiness of the domain", self._domain_state)

    def report(self) -> str:
        """Tables of everything that exists now."""
        kubectl, inside = self._cluster.kubectl, f"--namespace={self._namespace}"
        domain = self._domain()
        sections = {
            "Nodes": tables.nodes(self._nodes(), self._slices(GPUS), self._zones()),
            "Domain": kubectl("get", "computedomains", self._samples.domain, inside),
            "Members": tables.members(domain),
            "Template": kubectl("get", "resourceclaimtemplates", inside),
            "Claims": tables.claims(self._items("resourceclaims")),
            "Slices": tables.slices([*self._slices(CHANNELS), *self._slices(GPUS)]),
        }
        return "\n\n".join(f"{title}\n{table.strip()}" for title, table in sections.items())

    def suggestions(self) -> str:
        """How to go on by hand."""
        kubectl, namespace = _command(self._cluster.kubectl_path), self._namespace
        workers, fewer = self._samples.workers, self._options.nodes - 1
        return "\n".join(
            [
                f"export KUBECONFIG={self._cluster.admin_kubeconfig}",
                f"{kubectl} get computedomains -n {namespace} --watch",
                f"{kubectl} scale deployment {workers} -n {namespace} --replicas={fewer}    # one member leaves",
                f"{kubectl} delete computedomain {self._samples.domain} -n {namespace}    # template and labels go",
            ]
        )

    def log_tail(self) -> str:
        """The last lines of the controllers' logs; "" where none has written anything."""
        return "\n".join(_tail(controller.log) for controller in self._controllers if controller.log.is_file())

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _deployed_controllers(self) -> list[str]:
        """Controllers that run in the cluster already: a second one would write the same objects."""
        listed = self._cluster.kubectl_json("get", "deployments", f"--namespace={NAMESPACE}")["items"]
        names = [deployment["metadata"]["name"] for deployment in listed]
        if names:
            self._progress.say(f"the cluster's own {', '.join(names)} will serve the demo")
        return names

    def _install(self, cleanup: ExitStack) -> None:
        rendered = [document for path in INSTALLATION for document in self._rendered(path)]
        documents = [document for document in rendered if not self._is_of_others(document)]
        self._apply(installation(documents))
        if self._options.kubeconfig:
            cleanup.callback(self._remove_topology)
        self._apply([self._estate.topology(self._topology)])
        definitions = [item["metadata"]["name"] for item in documents if item["kind"] == "CustomResourceDefinition"]
        self._cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", *definitions)
        self._progress.say("CRDs, device classes, accounts, rights and the topology are applied")

    def _is_of_others(self, document: Manifest) -> bool:
        """Whether it is a definition that somebody else has installed already, with a schema of their own."""
        if document["kind"] != "CustomResourceDefinition" or not self._options.kubeconfig:
            return False
        name = document["metadata"]["name"]
        labels = self._cluster.kubectl(
            "get", "customresourcedefinition", name, "--ignore-not-found", "--output=jsonpath={.metadata}"
        )
        return bool(labels) and json.loads(labels).get("labels", {}).get("app.kubernetes.io/part-of") != "gpu-mirage"

    def _make_nodes(self, cleanup: ExitStack, manifests: Sequence[Manifest]) -> None:
        if self._options.kubeconfig:
            cleanup.callback(self._remove_nodes)
        apply_nodes(self._cluster, manifests)
        self._wanted = len(manifests)
        try:
            self._follow("readiness of the nodes", self._nodes_state, NODES_TIMEOUT)
        except TimeoutError as error:
            raise Unfit(
                f"{error}. KWOK makes such nodes Ready: it does not run here, or does not manage nodes with the "
                "annotation kwok.x-k8s.io/node=fake. See https://kwok.sigs.k8s.io/docs/user/kwok-in-cluster/"
            ) from error

    def _start_controllers(self) -> None:
        self._controllers = [
            ControllerProcess(
                self._cluster,
                package="all_in_one",
                account="gpu-mirage-all-in-one",
                name="all-in-one",
                arguments=[f"--controllers={','.join(PARTS)}", f"--topology-name={self._topology}"],
            )
        ]
        for controller in self._controllers:
            controller.start(wait=False)
        self._follow("readiness of the controllers", self._controllers_state)

    def _apply_samples(self, cleanup: ExitStack) -> None:
        if self._options.kubeconfig:
            cleanup.callback(self._remove_namespace)
        if not self._cluster.kubectl("get", "namespace", self._namespace, "--ignore-not-found"):
            self._cluster.create_namespace(self._namespace)
        self._apply(self._samples.documents)
        self._progress.say(
            f"config/samples is applied in namespace {self._namespace}: "
            f"ComputeDomain {self._samples.domain}, Deployment {self._samples.workers}"
        )

    def _remove_nodes(self) -> None:
        self._progress.say("removing the nodes")
        delete_nodes(self._cluster, self._estate.nodes)

    def _remove_topology(self) -> None:
        self._cluster.kubectl("delete", "configmap", self._topology, f"--namespace={NAMESPACE}", "--ignore-not-found")

    def _remove_namespace(self) -> None:
        self._progress.say(f"removing the namespace {self._namespace}")
        self._cluster.kubectl(
            "delete", "namespace", self._namespace, "--ignore-not-found", f"--timeout={REMOVAL_TIMEOUT}"
        )

    def _refuse_existing(self, kind: str, names: list[str]) -> None:
        """What exists is somebody's, and the demo would delete it at its end."""
        found = self._cluster.kubectl("get", kind, *names, "--ignore-not-found", "--output=name").split()
        if found:
            raise Unfit(f"{', '.join(found)} exists in the cluster: choose another --prefix")

    # -- how far things are -------------------------------------------------------------------------------------------

    def _follow(self, what: str, look: Callable[[], State], timeout: float = TIMEOUT) -> None:
        def look_at_both() -> State:
            self._check_controllers()
            return look()

        self._progress.follow(look_at_both, timeout, what)

    def _check_controllers(self) -> None:
        for controller in self._controllers:
            code = self._cluster.processes.exit_code(controller.name)
            if code is not None:
                raise Unfit(f"the controller {controller.name} ended with exit code {code}")

    def _nodes_state(self) -> State:
        ready = [node for node in self._nodes() if is_schedulable(node)]
        return State(f"nodes ready {len(ready)}/{self._wanted}", len(ready) >= self._wanted)

    def _controllers_state(self) -> State:
        ready = [controller.name for controller in self._controllers if controller.ready()]
        text = f"controllers ready {len(ready)}/{len(self._controllers)} {', '.join(ready)}".strip()
        return State(text, len(ready) == len(self._controllers))

    def _estate_state(self) -> State:
        racked = {node["metadata"]["labels"].get(CLIQUE_LABEL) for node in self._nodes()} - {None}
        counted = [node for node in self._nodes() if tables.counted_gpus(node)]
        done = {
            "racks": (len(racked), self._options.racks),
            "nodes with GPU slices": (len(self._slices(GPUS)), self._options.nodes),
            "nodes with nvidia.com/gpu": (len(counted), len(self._estate.hall_nodes)),
            "nodes with NUMA zones": (len(self._zones()), len(self._estate.hall_nodes)),
        }
        text = ", ".join(f"{what} {there}/{wanted}" for what, (there, wanted) in done.items())
        return State(text, all(there >= wanted for there, wanted in done.values()))

    def _slices_state(self) -> State:
        found = len(self._slices(CHANNELS))
        return State(f"channel slices {found}/{self._wanted}", found >= self._wanted)

    def _domain_state(self) -> State:
        total, status = self._options.nodes, self._domain().get("status", {})
        templates = [item["metadata"]["name"] for item in self._items("resourceclaimtemplates")]
        running = [pod for pod in self._items("pods") if pod["status"].get("phase") == "Running"]
        claims = [claim for claim in self._items("resourceclaims") if tables.allocated(claim)]
        template = "made" if self._samples.template in templates else "missing"
        text = (
            f"template {template}, pods running {len(running)}/{total}, claims allocated {len(claims)}/{total}, "
            f"members {len(status.get('nodes', []))}/{total}, domain {status.get('status', 'without status')}"
        )
        everything = status.get("status") == "Ready" and len(running) >= total and len(claims) >= total
        return State(text, everything)

    # -- looking at the cluster ---------------------------------------------------------------------------------------

    def _nodes(self) -> list[Manifest]:
        pools = f"{POOL_LABEL} in ({self._estate.rack_pool},{self._estate.hall_pool})"
        items: list[Manifest] = self._cluster.kubectl_json("get", "nodes", f"--selector={pools}")["items"]
        return items

    def _slices(self, driver: str) -> list[Manifest]:
        wanted = set(self._estate.nodes)
        items = self._cluster.kubectl_json("get", "resourceslices", f"--field-selector=spec.driver={driver}")["items"]
        return [item for item in items if item["spec"].get("nodeName") in wanted]

    def _zones(self) -> list[Manifest]:
        wanted = set(self._estate.nodes)
        items = self._cluster.kubectl_json("get", "noderesourcetopologies")["items"]
        return [item for item in items if item["metadata"]["name"] in wanted]

    def _domain(self) -> Manifest:
        return self._cluster.kubectl_json(
            "get", "computedomains", self._samples.domain, f"--namespace={self._namespace}"
        )

    def _items(self, kind: str) -> list[Manifest]:
        items: list[Manifest] = self._cluster.kubectl_json("get", kind, f"--namespace={self._namespace}")["items"]
        return items

    def _rendered(self, path: str) -> list[Manifest]:
        return list(yaml.safe_load_all(self._cluster.kubectl("kustomize", str(REPOSITORY / path))))

    def _apply(self, documents: Iterable[Manifest]) -> None:
        listing = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self._cluster.kubectl("apply", "--server-side", "--filename=-", input=json.dumps(listing))


def _command(kubectl: Path) -> str:
    """How a person calls kubectl here: by its name where the PATH has it, else by its path."""
    if shutil.which("kubectl"):
        return "kubectl"
    return str(kubectl.relative_to(Path.cwd()) if kubectl.is_relative_to(Path.cwd()) else kubectl)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join([f"the end of the log of {log.stem}:", *(f"  {line}" for line in lines)])
