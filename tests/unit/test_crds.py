"""The CRDs have the schema that clients of the real driver rely on, and the comparison finds what departs from it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.diff_crd import differences, load, main

CRDS = Path(__file__).resolve().parents[2] / "crds"
DOMAIN = CRDS / "computedomains.yaml"
CLIQUE = CRDS / "computedomaincliques.yaml"
TOPOLOGY = CRDS / "noderesourcetopology" / "noderesourcetopologies.yaml"

Schema = dict[str, Any]
TEXT = {"type": "string"}
NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": rf"^(\+|-)?{NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{NUMBER}))?$",
    "x-kubernetes-int-or-string": True,
}
READINESS = {"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"}
SPEC = {
    "type": "object",
    "required": ["channel"],
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
    "properties": {
        "numNodes": {"type": "integer", "minimum": 0, "default": 0},
        "channel": {
            "type": "object",
            "required": ["resourceClaimTemplate"],
            "properties": {
                "resourceClaimTemplate": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
                "allocationMode": {"type": "string", "enum": ["All", "Single"], "default": "Single"},
            },
        },
    },
}
STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": READINESS,
        "nodes": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["cliqueID", "ipAddress", "name"],
                "properties": {
                    "name": {"type": "string"},
                    "ipAddress": {"type": "string"},
                    "cliqueID": {"type": "string"},
                    "index": {"type": "integer"},
                    "status": READINESS,
                },
            },
        },
    },
}
DAEMONS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["nodeName"],
    "items": {
        "type": "object",
        "required": ["cliqueID", "ipAddress", "nodeName"],
        "properties": {
            "nodeName": {"type": "string"},
            "ipAddress": {"type": "string"},
            "cliqueID": {"type": "string"},
            "index": {"type": "integer"},
            "status": READINESS,
        },
    },
}


def without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_descriptions(item) for key, item in value.items() if key != "description"}
    return value


def version(path: Path) -> dict[str, Any]:
    (only,) = load(path)["spec"]["versions"]
    assert isinstance(only, dict)
    return only


def schema(path: Path) -> Schema:
    found: Schema = version(path)["schema"]["openAPIV3Schema"]
    return found


def test_domain_has_exactly_the_fields_of_the_real_driver() -> None:
    properties = schema(DOMAIN)["properties"]
    assert properties.keys() == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert without_descriptions(properties["spec"]) == SPEC
    assert without_descriptions(properties["status"]) == STATUS
    assert "required" not in schema(DOMAIN)


def test_clique_has_exactly_the_fields_of_the_real_driver() -> None:
    properties = schema(CLIQUE)["properties"]
    assert properties.keys() == {"apiVersion", "kind", "metadata", "daemons"}
    assert without_descriptions(properties["daemons"]) == DAEMONS


def test_only_the_domain_has_a_status_subresource() -> None:
    assert version(DOMAIN)["subresources"] == {"status": {}}
    assert "subresources" not in version(CLIQUE)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (DOMAIN, {"kind": "ComputeDomain", "plural": "computedomains", "singular": "computedomain"}),
        (CLIQUE, {"kind": "ComputeDomainClique", "plural": "computedomaincliques", "singular": "computedomainclique"}),
    ],
)
def test_names_group_and_version_are_those_of_the_real_driver(path: Path, names: dict[str, str]) -> None:
    crd = load(path)
    assert crd["metadata"]["name"] == f"{names['plural']}.resource.nvidia.com"
    assert crd["spec"]["group"] == "resource.nvidia.com"
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"] == {**names, "listKind": f"{names['kind']}List"}
    assert (version(path)["name"], version(path)["served"], version(path)["storage"]) == ("v1beta1", True, True)


def test_domain_shows_its_state_in_columns() -> None:
    columns = {column["name"]: column["jsonPath"] for column in version(DOMAIN)["additionalPrinterColumns"]}
    assert columns == {
        "Status": ".status.status",
        "Nodes wanted": ".spec.numNodes",
        "Template": ".spec.channel.resourceClaimTemplate.name",
        "Mode": ".spec.channel.allocationMode",
        "Age": ".metadata.creationTimestamp",
    }


def test_topology_has_the_names_of_its_group_and_both_versions() -> None:
    crd = load(TOPOLOGY)
    assert crd["metadata"]["name"] == "noderesourcetopologies.topology.node.k8s.io"
    assert crd["metadata"]["annotations"].keys() == {"api-approved.kubernetes.io"}
    assert (crd["spec"]["group"], crd["spec"]["scope"]) == ("topology.node.k8s.io", "Cluster")
    assert crd["spec"]["names"] == {
        "kind": "NodeResourceTopology",
        "listKind": "NodeResourceTopologyList",
        "plural": "noderesourcetopologies",
        "singular": "noderesourcetopology",
        "shortNames": ["node-res-topo"],
    }
    versions = [(entry["name"], entry["served"], entry["storage"]) for entry in crd["spec"]["versions"]]
    assert versions == [("v1alpha1", True, False), ("v1alpha2", True, True)]


NAMED_VALUE = {"type": "object", "required": ["name", "value"]}
PAIRS = {"type": "array", "items": {**NAMED_VALUE, "properties": {"name": TEXT, "value": TEXT}}}
ZONES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "type"],
        "properties": {
            "name": TEXT,
            "type": TEXT,
            "parent": TEXT,
            "costs": {
                "type": "array",
                "items": {
                    **NAMED_VALUE,
                    "properties": {"name": TEXT, "value": {"type": "integer", "format": "int64"}},
                },
            },
            "attributes": PAIRS,
            "resources": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "capacity", "allocatable", "available"],
                    "properties": {
                        "name": TEXT,
                        "capacity": QUANTITY,
                        "allocatable": QUANTITY,
                        "available": QUANTITY,
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize(
    ("number", "required", "more"),
    [(0, ["topologyPolicies", "zones"], {}), (1, ["zones"], {"attributes": PAIRS})],
    ids=["v1alpha1", "v1alpha2"],
)
def test_topology_has_exactly_the_fields_that_schedulers_read(number: int, required: list[str], more: Schema) -> None:
    root = load(TOPOLOGY)["spec"]["versions"][number]["schema"]["openAPIV3Schema"]
    properties = without_descriptions(root["properties"])
    for name in ("apiVersion", "kind", "metadata"):
        properties.pop(name)
    assert root["required"] == required
    assert properties == {"topologyPolicies": {"type": "array", "items": TEXT}, "zones": ZONES, **more}


@pytest.mark.parametrize("path", [DOMAIN, CLIQUE, TOPOLOGY])
def test_crds_carry_the_labels_that_uninstalling_goes_by(path: Path) -> None:
    assert load(path)["metadata"]["labels"] == {
        "app.kubernetes.io/part-of": "gpu-mirage",
        "app.kubernetes.io/managed-by": "gpu-mirage",
    }


# -- the comparison ---------------------------------------------------------------------------------------------------


def change_words(crd: Any) -> None:
    crd["metadata"].pop("labels")
    crd["metadata"]["annotations"] = {"made-by": "a generator"}
    only = crd["spec"]["versions"][0]
    only.pop("additionalPrinterColumns")
    root = only["schema"]["openAPIV3Schema"]
    root["description"] = "other words"
    root["properties"]["spec"]["properties"]["numNodes"].pop("description")
    root["properties"]["spec"]["properties"]["channel"]["required"].reverse()
    root["properties"]["status"]["properties"]["nodes"]["items"]["required"].reverse()


def test_words_columns_and_metadata_do_not_count() -> None:
    ours, upstream = load(DOMAIN), load(DOMAIN)
    change_words(upstream)
    assert differences(ours, upstream) == []


ROOT = "$.spec.versions[0].schema.openAPIV3Schema.properties"
SPEC_PATH = ROOT + ".spec"
MODE_PATH = SPEC_PATH + ".properties.channel.properties.allocationMode"


def in_spec(crd: Any) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def change_default(crd: Any) -> None:
    in_spec(crd)["properties"]["numNodes"]["default"] = 1


def change_type_of_a_value(crd: Any) -> None:
    in_spec(crd)["properties"]["numNodes"]["minimum"] = False


def change_enum(crd: Any) -> None:
    in_spec(crd)["properties"]["channel"]["properties"]["allocationMode"]["enum"].append("Some")


def change_enum_value(crd: Any) -> None:
    in_spec(crd)["properties"]["channel"]["properties"]["allocationMode"]["enum"][0] = "Every"


def drop_required(crd: Any) -> None:
    in_spec(crd).pop("required")


def change_rule(crd: Any) -> None:
    in_spec(crd)["x-kubernetes-validations"][0]["message"] = "no"


def add_field(crd: Any) -> None:
    in_spec(crd)["properties"]["description"] = {"type": "string"}


def drop_subresource(crd: Any) -> None:
    crd["spec"]["versions"][0].pop("subresources")


def add_short_name(crd: Any) -> None:
    crd["spec"]["names"]["shortNames"] = ["cd"]


def rename(crd: Any) -> None:
    crd["metadata"]["name"] = "others.resource.nvidia.com"


@pytest.mark.parametrize(
    ("mutate", "path", "difference"),
    [
        (change_default, SPEC_PATH + ".properties.numNodes.default", "ours has 0, upstream 1"),
        (change_type_of_a_value, SPEC_PATH + ".properties.numNodes.minimum", "ours has 0, upstream false"),
        (change_enum, MODE_PATH + ".enum", 'ours has ["All", "Single"], upstream ["All", "Single", "Some"]'),
        (change_enum_value, MODE_PATH + ".enum[0]", 'ours has "All", upstream "Every"'),
        (drop_required, SPEC_PATH + ".required", 'only ours has it: ["channel"]'),
        (
            change_rule,
            SPEC_PATH + ".x-kubernetes-validations[0].message",
            'ours has "A computeDomain.spec is immutable", upstream "no"',
        ),
        (add_field, SPEC_PATH + ".properties.description", 'only upstream has it: {"type": "string"}'),
        (drop_subresource, "$.spec.versions[0].subresources", 'only ours has it: {"status": {}}'),
        (add_short_name, "$.spec.names.shortNames", 'only upstream has it: ["cd"]'),
        (
            rename,
            "$.metadata.name",
            'ours has "computedomains.resource.nvidia.com", upstream "others.resource.nvidia.com"',
        ),
    ],
)
def test_each_difference_of_schema_is_found_with_its_path_and_no_other(
    mutate: Callable[[Any], None], path: str, difference: str
) -> None:
    ours = load(DOMAIN)
    upstream = copy.deepcopy(ours)
    mutate(upstream)
    assert differences(ours, upstream) == [f"{path}: {difference}"]


SMALL = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: A thing.
        type: object
        properties:
          size: {type: integer, default: 3}
          x.y/z: {type: string}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "ours.yaml"
    path.write_text(SMALL)
    return path


def test_equal_files_exit_with_0_and_print_nothing(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream = tmp_path / "upstream.yaml"
    upstream.write_text(SMALL.replace("A thing.", "Quite another thing."))
    assert main([str(small), str(upstream)]) == 0
    assert capsys.readouterr().out == ""


def test_different_files_exit_with_1_and_print_every_path(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream = tmp_path / "upstream.yaml"
    upstream.write_text(SMALL.replace("default: 3", "default: 4").replace("z: {type: string}", "z: {type: number}"))
    assert main([str(small), str(upstream)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{ROOT}.size.default: ours has 3, upstream 4",
        f'{ROOT}["x.y/z"].type: ours has "string", upstream "number"',
    ]
