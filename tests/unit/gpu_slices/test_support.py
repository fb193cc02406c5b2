"""Whether a server takes devices that share counters, as its answers to a trial tell."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controllers.api.dra import dra_api
from controllers.gpu_slices.devices import DRIVER
from controllers.gpu_slices.support import ASK_AGAIN, PartitionSupport
from controllers.runtime import Client, ClientOptions
from controllers.runtime.errors import ApiError
from controllers.runtime.testing import Answer, FakeClock, Reply, ScriptedTransport
from controllers.runtime.transport import HttpRequest

Json = dict[str, Any]
V1 = dra_api("v1")


class Server:
    """Answers trials, and remembers them."""

    def __init__(self, answer: Callable[[Json], Answer]) -> None:
        self.answer = answer
        self.requests: list[HttpRequest] = []

    def __call__(self, request: HttpRequest) -> Reply:
        self.requests.append(request)
        return self.answer(msgspec.json.decode(request.body or b"{}"))


def taken(body: Json) -> Answer:
    return Answer(201, body=body)


def left_out(body: Json) -> Answer:
    for device in body["spec"]["devices"]:
        del device["consumesCounters"]
    return Answer(201, body=body)


def refused(_body: Json) -> Answer:
    return Answer(422, body={"kind": "Status", "code": 422, "reason": "Invalid", "message": "counterSet: Not found"})


def failing(_body: Json) -> Answer:
    return Answer(403, body={"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"})


def support(server: Server, clock: FakeClock) -> PartitionSupport:
    client = Client(ScriptedTransport(server), ClientOptions("tests", attempts=1))
    return PartitionSupport(client, V1.slices_of(DRIVER), V1, clock)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(taken, ""), (left_out, "leaves out the counters"), (refused, "refuses devices whose counters are in another")],
)
def test_a_server_takes_them_if_it_gives_back_what_it_was_given(answer: Callable[[Json], Answer], why: str) -> None:
    asked = support(Server(answer), FakeClock())

    found = asyncio.run(asked.refusal())

    assert bool(found) == bool(why)
    assert why in found
    assert asked.known_refusal == found


def test_the_trial_leaves_nothing_behind() -> None:
    server = Server(taken)

    asyncio.run(support(server, FakeClock()).refusal())

    assert [request.method for request in server.requests] == ["POST"]
    assert ("dryRun", "All") in server.requests[0].query


def test_an_answer_holds_for_a_while_and_for_all_who_ask_at_the_same_time() -> None:
    server, clock = Server(taken), FakeClock()
    asked = support(server, clock)

    async def at_once() -> None:
        await asyncio.gather(*(asked.refusal() for _ in range(5)))

    asyncio.run(at_once())
    assert len(server.requests) == 1
    clock.advance(ASK_AGAIN)
    server.answer = left_out
    assert asyncio.run(asked.refusal())
    assert len(server.requests) == 2


def test_it_is_asked_again_once_counters_were_lost() -> None:
    server = Server(taken)
    asked = support(server, FakeClock())
    asyncio.run(asked.refusal())

    asked.lost()
    server.answer = left_out

    assert asyncio.run(asked.refusal())


def test_what_is_no_answer_is_no_refusal() -> None:
    server = Server(failing)
    asked = support(server, FakeClock())
    with pytest.raises(ApiError):
        asyncio.run(asked.refusal())

    server.answer = taken
    assert asyncio.run(asked.refusal()) == ""
