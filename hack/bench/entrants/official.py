"""The official client's informer of pods, with handlers that do nothing."""

import sys
import threading
from typing import Any

from kubernetes.client import ApiClient, Configuration, CoreV1Api
from kubernetes.informer import ADDED, MODIFIED, SharedInformer

from hack.bench.entrants.meter import Meter, age, delays, finish, report


class Counter:
    """Counts calls until enough have come, with the age of each object that has one."""

    def __init__(self, count: int) -> None:
        self.count = 0
        self.ages: list[float] = []
        self.enough = threading.Event()
        self._target = count

    def __call__(self, pod: Any) -> None:
        old = age(pod.metadata.annotations)
        if old is not None:
            self.ages.append(old)
        self.count += 1
        if self.count == self._target:
            self.enough.set()


def main(url: str, mode: str, objects: int, events: int) -> None:
    configuration = Configuration()
    configuration.host = url
    informer = SharedInformer(CoreV1Api(ApiClient(configuration)).list_pod_for_all_namespaces)
    listed, told = Counter(objects), Counter(events)
    informer.add_event_handler(ADDED, listed)
    informer.add_event_handler(MODIFIED, told)
    meter = Meter()
    informer.start()
    listed.enough.wait()
    if mode != "list":
        meter = Meter()
        report({})
        told.enough.wait()
    finish({**meter.figures(), **(delays(told.ages) if mode == "latency" else {})})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
