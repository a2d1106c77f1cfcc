"""Build Beam's job server for Apache Flink, and run a Flink cluster of several network namespaces on this machine.

    jar               build the job server with Maven, unless the cache has it; print its path
    run -- COMMAND    start a cluster, run a command that reaches it, stop the cluster, and exit with the command's code

One job manager and two task managers with two slots each have a network namespace each; a pool of Python workers runs
beside each task manager. A process that ends is started again, as on Kubernetes. COMMAND gets the variable
FLINK_CLUSTER, the path of a JSON file with the address of the cluster (`master`) and the ids of its `processes`. All
processes end with this script, however it ends. Needs root, Java 17, Maven, setpriv, unshare and ip.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "scripts/flink"
sys.path.insert(0, str(ROOT))

from detloom.trainer_module.files.user_cache import user_cache  # noqa: E402

JOB_SERVER_BEAM = "2.62.0"  # version of Beam's Java packages that the built job server consists of
FLINK = "1.19.3"
FLINK_MINOR = FLINK.rpartition(".")[0]
READY_SECONDS = 120
WORKER_PORT = 50000
ADDRESSES = {"jobmanager": "10.77.0.2", "taskmanager-1": "10.77.0.11", "taskmanager-2": "10.77.0.12"}
MASTER = f"{ADDRESSES['jobmanager']}:8081"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("jar", "run", "_keep"))
    parser.add_argument("--folder", type=Path, help="logs and settings of the cluster; default: in the user's cache")
    parser.add_argument("--enter", default="", metavar="WORDS", help="command before Python, such as `chroot DIR`")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python of the worker pools")
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.folder = (options.folder or user_cache("flink") / "cluster").absolute()
    user_cache("flink").mkdir(parents=True, exist_ok=True)
    if options.action == "jar":
        print(build_job_server())
        return 0
    if options.action == "_keep":
        return keep(options, command)
    build_job_server()
    fetch_flink()
    options.folder.mkdir(parents=True, exist_ok=True)
    own.remove("run")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # setpriv: the processes inside end with this script, even if it is killed.
    apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    inside = subprocess.Popen([*apart, "--mount-proc", sys.executable, __file__, "_keep", *own, "--", *command])
    try:
        return inside.wait()
    finally:
        inside.kill()  # all processes of the namespace end
        inside.wait()
        (options.folder / "cluster.json").unlink(missing_ok=True)


def build_job_server() -> Path:
    """Return the path of Beam's job server in the cache, built by Maven if it is missing."""
    jar = user_cache("flink") / f"beam-runners-flink-{FLINK_MINOR}-job-server-{JOB_SERVER_BEAM}.jar"
    if not jar.is_file():
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=jar.parent) as folder:
            shutil.copyfile(SETTINGS / "job_server.xml", Path(folder, "pom.xml"))
            maven = ["mvn", "--batch-mode", "--quiet", f"-Dflink={FLINK_MINOR}", f"-Dbeam={JOB_SERVER_BEAM}", "package"]
            subprocess.run(maven, cwd=folder, check=True, stdout=sys.stderr)
            os.replace(Path(folder, "target/job-server.jar"), jar)
    return jar


def fetch_flink() -> Path:
    """Return Flink's folder in the cache; download it from PyPI if it is missing."""
    target = user_cache("flink") / f"flink-{FLINK}"
    if not target.is_dir():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as folder:
            package = f"apache-flink-libraries=={FLINK}"
            subprocess.run([*pip, "--no-build-isolation", "--dest", ".", package], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tar.gz")
            subprocess.run(["tar", "--extract", f"--file={archive}"], cwd=folder, check=True)
            (deps,) = Path(folder).glob("*/deps")
            os.rename(deps, target)
    return target


def keep(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the cluster and the command as first process of the namespaces; when it ends, the kernel ends all others."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for old in (*options.folder.glob("*.log"), options.folder / "cluster.json"):
        old.unlink(missing_ok=True)
    (options.folder / "events.log").touch()
    build_network()
    cluster = Cluster(options, fetch_flink())
    cluster.start()
    print(f"flink: the cluster is ready at {MASTER}; logs: {options.folder}", file=sys.stderr, flush=True)
    environment = {**os.environ, "FLINK_CLUSTER": str(options.folder / "cluster.json")}
    running = subprocess.Popen([*options.enter.split(), *command], env=environment)
    while running.poll() is None:
        cluster.restart_ended()
        time.sleep(0.5)
    return running.returncode


def build_network() -> None:
    """Create a bridge and a network namespace for the job manager and each task manager."""
    ip("link set lo up")
    ip("link add bridge type bridge")
    ip("addr add 10.77.0.1/24 dev bridge")
    ip("link set bridge up")
    Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "netns", "/run/netns"], check=True)  # in this mount namespace only
    for number, (name, address) in enumerate(ADDRESSES.items()):
        ip(f"netns add {name}")
        ip(f"link add port{number} type veth peer name eth0 netns {name}")
        ip(f"link set port{number} master bridge up")
        ip(f"-n {name} addr add {address}/24 dev eth0")
        ip(f"-n {name} link set eth0 up")
        ip(f"-n {name} link set lo up")


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


class Cluster:
    """The processes of the cluster, children of this process by name."""

    def __init__(self, options: argparse.Namespace, flink: Path) -> None:
        self.folder: Path = options.folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restart_at: dict[str, float] = {}
        pool = ["-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={WORKER_PORT}"]
        # The pool starts workers by the name `python`.
        path = f"PATH={Path(options.python).parent}:{os.environ['PATH']}"
        self._commands: dict[str, list[str]] = {}
        for name in ADDRESSES:
            self._commands[name] = java_command(name, options.folder, flink)
            if name != "jobmanager":
                workers = [*options.enter.split(), "env", f"--chdir={ROOT}", path, options.python, *pool]
                self._commands[name.replace("taskmanager", "workerpool")] = workers

    def start(self) -> None:
        """Start all processes and wait until the job manager knows all slots."""
        for name in self._commands:
            self._start(name)
        deadline = time.monotonic() + READY_SECONDS
        while not has_all_slots():
            if time.monotonic() > deadline:
                sys.exit(f"flink: the cluster is not ready after {READY_SECONDS} s; its logs are in {self.folder}.")
            self.restart_ended()
            time.sleep(0.5)
        self._describe()

    def restart_ended(self) -> None:
        """Start each process again that has ended for some seconds."""
        for name, process in self._processes.items():
            if process.poll() is None:
                continue
            if name not in self._restart_at:
                self._restart_at[name] = time.monotonic() + 2.0
                with open(self.folder / "events.log", "a", encoding="utf-8") as events:
                    events.write(f"{name} (process {process.pid}) has ended with {process.returncode}\n")
            elif time.monotonic() > self._restart_at[name]:
                del self._restart_at[name]
                self._start(name)
                self._describe()

    def _start(self, name: str) -> None:
        namespace = name.replace("workerpool", "taskmanager")
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{namespace}", *self._commands[name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the command only
            )

    def _describe(self) -> None:
        """Write `cluster.json`."""
        processes = {name: process.pid for name, process in self._processes.items()}
        new = self.folder / "cluster.json.new"
        new.write_text(json.dumps({"master": MASTER, "folder": str(self.folder), "processes": processes}, indent=2))
        os.replace(new, self.folder / "cluster.json")


def has_all_slots() -> bool:
    try:
        with urllib.request.urlopen(f"http://{MASTER}/overview", timeout=5) as answer:
            return bool(json.load(answer)["slots-total"] == 4)  # two of each task manager
    except (OSError, ValueError):
        return False


def java_command(name: str, folder: Path, flink: Path) -> list[str]:
    """Write the configuration of a Java process, and return its command."""
    conf, temporary = folder / "conf" / name, folder / "tmp" / name
    shutil.rmtree(temporary, ignore_errors=True)
    for new in (conf, temporary):
        new.mkdir(parents=True, exist_ok=True)
    settings = {
        "jobmanager.rpc.address": ADDRESSES["jobmanager"],
        "rest.address": ADDRESSES["jobmanager"],
        "taskmanager.host": ADDRESSES[name],
        "io.tmp.dirs": str(temporary),
    }
    text = "".join(f"{key}: {value}\n" for key, value in settings.items())
    (conf / "flink-conf.yaml").write_text((SETTINGS / "flink-conf.yaml").read_text() + text, encoding="utf-8")
    is_master = name == "jobmanager"
    classes = ":".join(sorted(str(jar) for jar in (flink / "lib").glob("*.jar")))
    utils = ["org.apache.flink.runtime.util.bash.BashJavaUtils", f"GET_{'JM' if is_master else 'TM'}_RESOURCE_PARAMS"]
    asked = subprocess.run(
        ["java", "-cp", f"{flink}/bin/bash-java-utils.jar:{classes}", *utils, "--configDir", str(conf)],
        capture_output=True,
        text=True,
        check=True,
    )
    # The first line of the result has options of Java, the second has settings of Flink.
    mark = "BASH_JAVA_UTILS_EXEC_RESULT:"
    memory, *more = (line.removeprefix(mark) for line in asked.stdout.splitlines() if line.startswith(mark))
    entry = "entrypoint.StandaloneSessionClusterEntrypoint" if is_master else "taskexecutor.TaskManagerRunner"
    logging = [f"-Dlog4j.configurationFile={SETTINGS}/log4j.properties", f"-Djava.io.tmpdir={temporary}"]
    java = [
        "java",
        *memory.split(),
        f"@{SETTINGS}/java17.args",
        *logging,
        "-cp",
        classes,
        f"org.apache.flink.runtime.{entry}",
    ]
    return [*java, "--configDir", str(conf), *" ".join(more).split(), *(["--executionMode", "cluster"] * is_master)]


if __name__ == "__main__":
    sys.exit(main())
