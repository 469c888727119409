"""A world for the browser: a private Redis, the simulated providers and a gateway, as child processes in one directory."""
import hashlib
import http.client
import json
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = TARGET / "debug" / "batchgate"
SECRET = "bg_default_only-for-this-check"


def until(what, look, seconds=30.0):
    """What `look` returns, once it is true; says what it saw last if that does not come."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}, and saw {found!r}"
        time.sleep(0.02)


class Api:
    """A client of the public API."""

    def __init__(self, port, key=None):
        self.port, self.key = port, key

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def ok(self, method, path, body=None):
        status, answer = self.call(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def submit(self, prompts, **fields):
        batch = {"model": "claude-haiku-4-5", "max_tokens": 100, **fields, "prompts": prompts}
        return self.ok("POST", "/batches", batch)["id"]

    def batch(self, batch):
        return self.ok("GET", f"/batches/{batch}")

    def ended(self, batch):
        def look():
            found = self.ok("GET", f"/batches/{batch}?wait=5")
            return found if found["status"] == "ended" else None

        return until(f"{batch} to end", look, 60)

    def results(self, batch, partial=False):
        found, path = [], f"/batches/{batch}/results?limit=1000" + ("&partial=true" if partial else "")
        while path:
            page = self.ok("GET", path)
            found += page["results"]
            path = page["next"]
        return found


class World:
    """Use it as a context: everything it started ends with it, each by its own pid."""

    def __init__(self, directory):
        self.directory, self.children, self.count = Path(directory), [], 0

    def __enter__(self):
        try:
            redis = ["redis-server", "--port", "0", "--unixsocket", str(self.directory / "redis.sock"), "--appendonly", "yes",
                     "--dir", str(self.directory), "--save", ""]
            self.start("redis", redis, {})
            until("Redis to listen", (self.directory / "redis.sock").exists)
            script = self.directory / "sim.json"
            dwell = {"in_progress_s": 0.3}
            script.write_text(json.dumps({"settings": {"openai": dwell, "anthropic": dwell}}))
            sim = [str(BINARY), "sim", "--listen", "127.0.0.1:0", "--answers", "echo", "--script", str(script),
                   "--spool", str(self.directory)]
            self.start("sim", sim, {})
            url = until("the simulator to listen", lambda: self.told("sim", "listening on "))
            self.sim = Api(int(url.rsplit(":", 1)[1]))
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for _, child in reversed(self.children):
            child.terminate()
        for _, child in reversed(self.children):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def start(self, name, command, env):
        log = open(self.directory / f"{name}.log", "ab")
        kept = {"PATH": os.environ["PATH"], "TMPDIR": str(self.directory)}
        child = subprocess.Popen(command, env=kept | env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append((name, child))
        return child

    def told(self, name, beginning):
        lines = (self.directory / f"{name}.log").read_text(errors="replace").splitlines()
        return next((line.removeprefix(beginning).strip() for line in lines if line.startswith(beginning)), None)

    def gateway(self, keyed=False, port=0):
        """A gateway, ready; gives its port and its process."""
        self.count += 1
        name = f"gateway-{self.count}"
        env = {
            "BATCHGATE_REDIS_URL": f"unix://{self.directory / 'redis.sock'}",
            "BATCHGATE_LISTEN": f"127.0.0.1:{port}",
            "BATCHGATE_POLL_MIN": "100ms",
            "BATCHGATE_POLL_MAX": "500ms",
            "BATCHGATE_LOG_FORMAT": "json",
            "ANTHROPIC_API_KEY": "sim-key",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.sim.port}/anthropic",
            "OPENAI_API_KEY": "sim-key",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.sim.port}/openai/v1",
        }
        if keyed:
            env["BATCHGATE_KEY_HASHES"] = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
        child = self.start(name, [str(BINARY), "serve"], env)

        def ready():
            assert child.poll() is None, (self.directory / f"{name}.log").read_text()[-3000:]
            for line in (self.directory / f"{name}.log").read_text().splitlines():
                fields = json.loads(line).get("fields", {}) if line.startswith("{") else {}
                if fields.get("message") == "ready":
                    return int(fields["address"].rsplit(":", 1)[1])
            return None

        return until("the gateway to be ready", ready), child

    def dwell(self, seconds):
        """How long provider batches run from now on."""
        patch = {"in_progress_s": seconds}
        self.sim.ok("POST", "/_sim/settings", {"openai": patch, "anthropic": patch})
