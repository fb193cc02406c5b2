"""What Kubernetes takes for a name: of labels, their values and extended resources."""

import re

MAX_NAME = 63  # characters of a label value, and of a key behind its domain
MAX_DOMAIN = 253

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUOTA = "requests."
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_NOT_AT_ENDS = "-_."


def is_name(text: str) -> bool:
    """Whether it can be the value of a label that is not empty, or a key without a domain."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether it can be the key of a label, with or without a domain."""
    domain, slash, name = text.rpartition("/")
    return is_name(name) and (not slash or _is_domain(domain))


def is_extended_resource(text: str) -> bool:
    """Whether a node may offer a resource of this name beside those that Kubernetes itself knows."""
    domain, slash, name = text.rpartition("/")
    # A quota names the resource with a prefix, and that has to be a name, too.
    in_quotas = is_name(name) and _is_domain(_QUOTA + domain)
    return bool(slash) and in_quotas and not text.startswith(_QUOTA) and "kubernetes.io/" not in text


def label_value(text: str) -> str:
    """Text as the value of a label, by the rule of fake-gpu-operator: "-" for whatever cannot be in one, then cut."""
    return _NOT_IN_NAMES.sub("-", text)[:MAX_NAME].strip(_NOT_AT_ENDS)


def _is_domain(text: str) -> bool:
    return len(text) <= MAX_DOMAIN and _DOMAIN.fullmatch(text) is not None
