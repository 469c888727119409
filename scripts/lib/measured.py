"""A world to be measured: private Redis with an append-only file, our simulator, gateways; and batches of prompts of 1 KiB."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FILLER = ("A prompt of one kibibyte, most of it this sentence. " * 20)[:960]
SIM = 18900


def prompt(name, number: int) -> str:
    return f"{name}/{number}: {FILLER}"


def lines(name, size: int, **fields):
    yield json.dumps({"batch": {"model": "claude-haiku-4-5", "max_tokens": 100, **fields}}).encode() + b"\n"
    for number in range(size):
        yield json.dumps(prompt(name, number)).encode() + b"\n"


def groups(pieces, count=2000):
    group = []
    for piece in pieces:
        group.append(piece)
        if len(group) == count:
            yield b"".join(group)
            group = []
    yield b"".join(group)


def call(port: int, method: str, path: str, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request(method, path, body, {"content-type": "application/x-ndjson"}, encode_chunked=body is not None)
    answer = connection.getresponse()
    assert answer.status < 300, (answer.status, answer.read(500))
    return answer


def submit(port: int, name, size: int, **fields) -> str:
    """POSTs so many prompts; the batch's id."""
    return json.loads(call(port, "POST", "/batches", groups(lines(name, size, **fields))).read())["id"]


def wait(port: int, batch: str) -> dict:
    """The batch, once it has ended."""
    while True:
        told = json.loads(call(port, "GET", f"/batches/{batch}?wait=60").read())
        if told["status"] == "ended":
            return told


def check(port: int, batch: str, name, size: int, source: str | None = None):
    """Every answer at its place, and, if that is told, where it came from."""
    count = 0
    for number, line in enumerate(call(port, "GET", f"/batches/{batch}/results")):
        result = json.loads(line)
        assert result["index"] == number and source in (None, result["source"]), line[:300]
        assert result["completion"] == prompt(name, number), line[:300]
        count += 1
    assert count == size, count


def peak(process) -> int:
    """MiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) // 1024


@contextmanager
def world(debug: bool, ports=(18080,), **settings):
    """Starts it all; gives the gateways' processes. A release build is made; with `debug` the one that is there is taken."""
    if not debug:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    binary = str(TARGET / ("debug" if debug else "release") / "batchgate")
    home = Path(tempfile.mkdtemp(prefix="bg-measured-"))
    processes = []

    def start(*command, **environment):
        log = open(home / f"{len(processes)}.log", "wb")
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        processes.append(process)
        return process

    try:
        start("redis-server", "--port", "0", "--unixsocket", str(home / "redis.sock"), "--dir", str(home),
              "--appendonly", "yes", "--save", "")
        start(binary, "sim", "--listen", f"127.0.0.1:{SIM}", "--answers", "echo", "--spool", str(home))
        time.sleep(1)
        gateways = [start(binary, "serve", BATCHGATE_REDIS_URL=f"unix://{home}/redis.sock",
                          BATCHGATE_LISTEN=f"127.0.0.1:{port}", BATCHGATE_POLL_MIN="200ms", BATCHGATE_POLL_MAX="1s",
                          ANTHROPIC_API_KEY="sim-key", ANTHROPIC_BASE_URL=f"http://127.0.0.1:{SIM}/anthropic",
                          **settings)
                    for port in ports]
        time.sleep(1)
        yield gateways
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(30)
        shutil.rmtree(home, ignore_errors=True)
