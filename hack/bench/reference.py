"""A server that does nothing but answer: what the HTTP library alone can do on this machine. Run as a process."""

import asyncio
import base64
import sys
from pathlib import Path

import uvloop
import yaml
from aiohttp import web

from controllers.sandbox.certificates import make_authority, make_serving

HOST = "127.0.0.1"


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    """Reads the body and sends it back."""
    return web.Response(status=201, body=await request.read(), content_type="application/json")


async def serve(file: Path) -> None:
    """Serves with TLS until the process ends, and writes how to get there, as a kubeconfig."""
    serving = make_serving(make_authority(), [HOST])
    runner = web.ServerRunner(web.Server(echo, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=serving.context()).start()
    cluster = {
        "server": f"https://{HOST}:{runner.addresses[0][1]}",
        "certificate-authority-data": base64.b64encode(serving.ca).decode(),
    }
    document = {"clusters": [{"cluster": cluster}], "users": [{"user": {"token": "none"}}]}
    draft = file.with_suffix(".draft")
    draft.write_text(yaml.safe_dump(document))
    draft.rename(file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
