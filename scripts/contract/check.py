"""Runs schemathesis against a live gateway: open, then with a key. A world of its own; nothing leaves the machine."""
import contextlib, hashlib, os, pathlib, re, signal, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
KEY = "contract-check"
BINARY = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/batchgate"
ALL_OF_IT = ["--phases", "examples,coverage,fuzzing,stateful"]
# With a key the gateway is the same but for who may ask: a few requests of each kind will do.
FOR_THE_KEY = ["--phases", "examples,fuzzing,stateful", "--max-examples", "5"]


@contextlib.contextmanager
def running(name, command, home, said, **env):
    """A child process, and the first group of what it says when it is ready."""
    log = home / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, env={"PATH": os.environ["PATH"], "TMPDIR": str(home), **env}, cwd=home,
                                 stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 60
        while not (found := re.search(said, log.read_text(errors="replace"))):
            if child.poll() is not None or time.monotonic() > until:
                sys.exit(f"{name} is not ready:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        yield found.group(1)
    finally:
        child.terminate()
        try:
            child.wait(40)
        except subprocess.TimeoutExpired:
            child.kill()


def gateway(name, home, sim, **env):
    settings = {
        "BATCHGATE_REDIS_URL": f"unix://{home}/redis.sock", "BATCHGATE_LISTEN": "127.0.0.1:0",
        "ANTHROPIC_API_KEY": "sim-key", "ANTHROPIC_BASE_URL": f"{sim}/anthropic",
        "OPENAI_API_KEY": "sim-key", "OPENAI_BASE_URL": f"{sim}/openai/v1",
        "BATCHGATE_POLL_MIN": "50ms", "BATCHGATE_POLL_MAX": "200ms", "BATCHGATE_LOG_FORMAT": "json",
    }
    return running(name, [str(BINARY), "serve"], home, r'"ready".*?"address":"([^"]+)"|"address":"([^"]+)".*?"ready"',
                   **{**settings, **env})


def schemathesis(address, home, name, arguments, **env):
    """Its exit code; what it says goes to a file, for two of them run side by side."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run",
               f"http://{address}/openapi.yaml", *arguments, *sys.argv[1:]]
    env = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*", **env}
    with (home / f"{name}.said").open("wb") as out:
        return subprocess.run(command, env=env, cwd=home, timeout=600, stdout=out, stderr=subprocess.STDOUT).returncode


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # and take the children along
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contract-")))
        redis = ["redis-server", "--port", "0", "--save", "", "--unixsocket", str(home / "redis.sock")]
        stack.enter_context(running("redis", redis, home, r"(eady to accept connections)"))
        sim = stack.enter_context(running("sim", [str(BINARY), "sim", "--listen", "127.0.0.1:0"], home,
                                          r"listening on (\S+)"))
        digest = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
        its_own = {"BATCHGATE_KEY_HASHES": digest, "BATCHGATE_REDIS_URL": f"unix://{home}/redis.sock?db=1"}
        with (gateway("open", home, sim) as open_to_all, gateway("keyed", home, sim, **its_own) as keyed,
              ThreadPoolExecutor() as side_by_side):
            with_key = ["-H", f"Authorization: Bearer {KEY}", *FOR_THE_KEY]
            runs = {
                "open": side_by_side.submit(schemathesis, open_to_all, home, "open", ALL_OF_IT),
                "keyed": side_by_side.submit(schemathesis, keyed, home, "keyed", with_key, CONTRACT_KEYED="1"),
            }
        failed = 0
        for name, run in runs.items():
            print((home / f"{name}.said").read_text(errors="replace"))
            print(f"{name}: exit {run.result()}", flush=True)
            failed |= run.result()
            failed |= report(name, (home / f"{name}.log").read_text(errors="replace"))
    sys.exit(bool(failed))


def report(name, log):
    """A gateway that panicked or failed a request has a fault, whatever it answered."""
    bad = [line for line in log.splitlines() if "panicked" in line or '"request failed"' in line]
    for line in bad:
        print(f"{name}: {line}")
    return bool(bad)


main()
