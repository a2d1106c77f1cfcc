"""Build Beam's job server for Apache Flink, and run a Flink cluster of several network namespaces on this machine.

Commands:
    jar               build the job server with Maven, unless the cache has it; print its path
    run -- COMMAND    run a command that reaches the cluster, and exit with its code: in the cluster of `start`, or in
                      one that is started for it and stopped afterwards
    start             start a cluster in the background
    stop              stop the cluster of `start`
    status            print the processes of the cluster of `start`

The cluster has one job manager and two task managers with two slots each. Each has a network namespace of its own on a
bridge, and a pool of Python workers runs beside each task manager, with the Python of this script. A process of the
cluster that ends is started again, as on Kubernetes. COMMAND runs at the bridge; it gets the variable FLINK_CLUSTER,
the path of a JSON file with the address of the cluster (`master`) and the ids of its processes (`processes`).

All processes share one process namespace, which ends with this script, however it ends; network namespaces and mounts
end with it. Needs root, Java 17, Maven, setpriv and unshare (util-linux), and ip (iproute2). The packages come from the
registries that pip and Maven are configured for.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from detloom.pipelines.dag.beam_options import JOB_SERVER_BEAM, job_server_in_cache  # noqa: E402
from detloom.trainer_module.files.user_cache import user_cache  # noqa: E402

FLINK = "1.19.3"
FLINK_MINOR = FLINK.rpartition(".")[0]
NUM_TASK_MANAGERS = 2
SLOTS = 2  # of each task manager
READY_SECONDS = 120
RESTART_SECONDS = 2.0  # wait before a process that has ended is started again
STOP_SECONDS = 20
WORKER_PORT = 50000
VARIABLE = "FLINK_CLUSTER"
_NETWORK = "10.77.0."  # exists in the namespaces of the cluster only
_JOB_MANAGER = f"{_NETWORK}2"
MASTER = f"{_JOB_MANAGER}:8081"

# Flink's own `env.java.opts.all` for Java 17.
_JAVA_OPTIONS = [
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    *(
        f"--add-exports=jdk.compiler/com.sun.tools.javac.{name}=ALL-UNNAMED"
        for name in ("api", "file", "parser", "tree", "util")
    ),
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/java.{name}=ALL-UNNAMED"
        for name in ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util")
    ),
    *(f"--add-opens=java.base/java.util.{name}=ALL-UNNAMED" for name in ("concurrent", "concurrent.atomic")),
    "--add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %-60c %x - %m%n
"""

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>detloom</groupId>
  <artifactId>job-server</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.beam</groupId>
      <artifactId>beam-runners-flink-{FLINK_MINOR}</artifactId>
      <version>{JOB_SERVER_BEAM}</version>
    </dependency>
  </dependencies>
  <build>
    <finalName>job-server</finalName>
    <plugins>
      <plugin>
        <groupId>org.apache.maven.plugins</groupId>
        <artifactId>maven-shade-plugin</artifactId>
        <version>3.6.0</version>
        <executions>
          <execution>
            <phase>package</phase>
            <goals><goal>shade</goal></goals>
            <configuration>
              <createDependencyReducedPom>false</createDependencyReducedPom>
              <filters>
                <filter>
                  <artifact>*:*</artifact>
                  <excludes>
                    <exclude>META-INF/*.SF</exclude>
                    <exclude>META-INF/*.DSA</exclude>
                    <exclude>META-INF/*.RSA</exclude>
                  </excludes>
                </filter>
              </filters>
              <transformers>
                <transformer implementation="org.apache.maven.plugins.shade.resource.ServicesResourceTransformer"/>
                <transformer implementation="org.apache.maven.plugins.shade.resource.AppendingTransformer">
                  <resource>reference.conf</resource>
                </transformer>
                <transformer implementation="org.apache.maven.plugins.shade.resource.ManifestResourceTransformer">
                  <mainClass>org.apache.beam.runners.flink.FlinkJobServerDriver</mainClass>
                </transformer>
              </transformers>
            </configuration>
          </execution>
        </executions>
      </plugin>
    </plugins>
  </build>
</project>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("jar", "run", "start", "stop", "status", "_keep", "_hold"))
    parser.add_argument("--folder", type=Path, help="logs and settings of the cluster; default: in the user's cache")
    parser.add_argument("--memory", default="2g", metavar="SIZE", help="of each task manager (default: 2g)")
    parser.add_argument("--no-restart", action="store_true", help="Flink's default: a job fails if a worker is lost")
    parser.add_argument(
        "--enter", default="", metavar="WORDS", help="command before each Python command, such as `chroot DIR`"
    )
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python of the worker pools")
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    if (options.action in ("run", "_keep")) != bool(command):
        parser.error("the action `run` needs a command after --, the others have none")
    own.remove(options.action)
    options.words = own  # passed on to the process inside
    options.folder = (options.folder or user_cache("flink") / "cluster").absolute()
    match options.action:
        case "jar":
            print(build_job_server())
        case "run":
            return run(options, command)
        case "start":
            return start(options)
        case "stop":
            return stop(options.folder)
        case "status":
            return show_status(options.folder)
        case "_keep":
            return keep(options, command)
        case "_hold":
            hold()
    return 0


def say(text: str) -> None:
    print(f"flink: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    say(text)
    sys.exit(1)


# --- packages ---


def build_job_server() -> Path:
    """Return the path of Beam's job server in the cache, built by Maven if it is missing."""
    jar = job_server_in_cache(FLINK_MINOR)
    if jar.is_file():
        return jar
    _check_tools("mvn", "java")
    say(f"building Beam's job server {JOB_SERVER_BEAM} for Flink {FLINK_MINOR} with Maven")
    with _new_folder(jar.parent) as folder:
        (folder / "pom.xml").write_text(_POM, encoding="utf-8")
        _call(["mvn", "--batch-mode", "--quiet", "package"], folder)
        os.replace(folder / "target/job-server.jar", jar)
    return jar


def fetch_flink() -> Path:
    """Return the folder with Flink's jars in the cache; download the source distribution from PyPI if it is missing."""
    target = user_cache("flink") / f"flink-{FLINK}"
    if target.is_dir():
        return target
    say(f"downloading Flink {FLINK}")
    package = f"apache-flink-libraries=={FLINK}"
    with _new_folder(target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        _call([*pip, "--no-build-isolation", "--dest", ".", package], folder)
        (archive,) = folder.glob("*.tar.gz")
        wanted = ["--wildcards", "*/deps/lib/*.jar", "*/deps/bin/*.jar"]
        _call(["tar", "--extract", f"--file={archive}", *wanted], folder)
        (deps,) = folder.glob("*/deps")
        try:
            os.rename(deps, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    return target


@contextlib.contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=parent) as name:
        yield Path(name)


def _call(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        fail(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")


def _check_tools(*tools: str) -> None:
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        fail(f"needs {', '.join(missing)}.")


# --- outside of the namespaces ---


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run a command in the running cluster, or start one for it; return the command's exit code."""
    keeper = find_keeper(options.folder)
    if keeper is not None:
        enter = ["nsenter", f"--target={keeper}", "--mount", "--net", "--pid"]
        environment = {**os.environ, VARIABLE: str(options.folder / "cluster.json")}
        return subprocess.run([*enter, f"--wd={os.getcwd()}", *command], env=environment, check=False).returncode
    _check_tools("java", "setpriv", "unshare", "ip")
    if os.getuid() != 0:
        fail("needs root, for network namespaces.")
    build_job_server()
    fetch_flink()
    options.folder.mkdir(parents=True, exist_ok=True)
    with open(options.folder / "lock", "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(
                f"{options.folder}: a cluster starts or runs in this folder; stop it, or choose another with --folder."
            )
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        # setpriv: the processes inside end with this script, even if it is killed.
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        inside = subprocess.Popen(
            [*apart, "--mount-proc", sys.executable, __file__, "_keep", *options.words, "--", *command]
        )
        try:
            return inside.wait()
        except KeyboardInterrupt:  # the command got it as well
            with contextlib.suppress(subprocess.TimeoutExpired):
                inside.wait(STOP_SECONDS)
            return 128 + signal.SIGINT
        finally:
            inside.kill()  # all processes of the namespace end
            inside.wait()
            (options.folder / "cluster.json").unlink(missing_ok=True)


def start(options: argparse.Namespace) -> int:
    """Start a cluster in the background; if this process ends before it is ready, the cluster ends too."""
    if find_owner(options.folder) is not None:
        fail(f"{options.folder}: the cluster runs already.")
    hold_it = [sys.executable, __file__, "_hold"]
    options.folder.mkdir(parents=True, exist_ok=True)
    with open(options.folder / "start.log", "w", encoding="utf-8") as log:
        owner = subprocess.Popen(
            [sys.executable, __file__, "run", *options.words, "--", *hold_it],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert owner.stdout is not None
        try:
            is_ready = bool(owner.stdout.readline())
        except BaseException:
            owner.terminate()
            owner.wait()
            raise
    if not is_ready:
        fail((options.folder / "start.log").read_text(encoding="utf-8").strip())
    return show_status(options.folder)


def hold() -> None:
    """Report on stdout that the cluster is ready, and wait for ever; end if nobody waits for the report any more."""
    print("ready", flush=True)
    os.close(1)
    signal.pause()


def stop(folder: Path) -> int:
    """Stop the cluster of `start` and wait for its end."""
    owner = find_owner(folder)
    if owner is None:
        say("no cluster runs.")
        return 0
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, number)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if find_owner(folder) != owner:
                say("stopped.")
                return 0
            time.sleep(0.1)
    fail(f"process {owner} cannot be stopped.")


def show_status(folder: Path) -> int:
    """Print the processes of the running cluster; return 1 if there is none."""
    if find_keeper(folder) is None:
        say("no cluster runs.")
        return 1
    print((folder / "cluster.json").read_text(encoding="utf-8"), end="")
    return 0


def find_owner(folder: Path) -> int | None:
    """Return the process that owns the cluster of a folder, or None."""
    with contextlib.suppress(FileNotFoundError), open(folder / "lock", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(lock.read() or 0) or None
    return None


def find_keeper(folder: Path) -> int | None:
    """Return the id, outside of the namespaces, of the first process inside, if the cluster is ready; or None."""
    owner = find_owner(folder)
    if owner is None or not (folder / "cluster.json").is_file():
        return None
    (unshare,) = Path(f"/proc/{owner}/task/{owner}/children").read_text().split()
    (keeper,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    return int(keeper)


# --- inside of the namespaces ---


class Cluster:
    """The processes of the cluster, children of this process by name.

    Attributes:
        folder: receives logs, settings and `cluster.json`.
    """

    def __init__(self, options: argparse.Namespace, flink: Path) -> None:
        self.folder: Path = options.folder
        self._options, self._flink = options, flink
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restart_at: dict[str, float] = {}
        self._events: IO[str] = open(self.folder / "events.log", "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def build_network(self) -> None:
        """Create a bridge and a network namespace for the job manager and each task manager."""
        _ip("link set lo up")
        _ip("link add bridge type bridge")
        _ip(f"addr add {_NETWORK}1/24 dev bridge")
        _ip("link set bridge up")
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "netns", "/run/netns"], check=True)  # in this mount namespace only
        places = {"jobmanager": _JOB_MANAGER, **{f"taskmanager-{n}": _task_manager(n) for n in _numbers()}}
        for name, address in places.items():
            port = address.replace(_NETWORK, "port")
            _ip(f"netns add {name}")
            _ip(f"link add {port} type veth peer name eth0 netns {name}")
            _ip(f"link set {port} master bridge up")
            _ip(f"-n {name} addr add {address}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")

    def start(self) -> None:
        """Start all processes and wait until the job manager knows all slots."""
        java = self._java("jobmanager", {}, "GET_JM_RESOURCE_PARAMS")
        entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._commands["jobmanager"] = [*java(entry), "--executionMode", "cluster"]
        for number in _numbers():
            own = {"taskmanager.host": _task_manager(number)}
            java = self._java(f"taskmanager-{number}", own, "GET_TM_RESOURCE_PARAMS")
            entry = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
            self._commands[f"taskmanager-{number}"] = java(entry)
            # The pool starts workers by the name `python`.
            path = f"{Path(self._options.python).parent}:{os.environ['PATH']}"
            pool = ["-m", "apache_beam.runners.worker.worker_pool_main"]
            self._commands[f"workerpool-{number}"] = [
                *self._options.enter.split(),
                *("env", f"--chdir={ROOT}", f"PATH={path}"),
                *(self._options.python, *pool, f"--service_port={WORKER_PORT}"),
            ]
        for name in self._commands:
            self._start(name)
        deadline = time.monotonic() + READY_SECONDS
        while not self._has_all_slots():
            if time.monotonic() > deadline:
                fail(f"the cluster is not ready after {READY_SECONDS} s; its logs are in {self.folder}.")
            self.restart_ended()
            time.sleep(0.5)
        self._describe()

    def restart_ended(self) -> None:
        """Start each process again that has ended for some seconds."""
        for name, process in self._processes.items():
            if process.poll() is None:
                continue
            if name not in self._restart_at:
                self._restart_at[name] = time.monotonic() + RESTART_SECONDS
                self._note(f"{name} (process {process.pid}) has ended with {process.returncode}")
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
        self._note(f"{name} is started as process {self._processes[name].pid}")

    def _note(self, event: str) -> None:
        self._events.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event}\n")

    def _describe(self) -> None:
        """Write `cluster.json`."""
        processes = {name: process.pid for name, process in self._processes.items()}
        content = {"master": MASTER, "folder": str(self.folder), "processes": processes}
        new = self.folder / "cluster.json.new"
        new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(new, self.folder / "cluster.json")

    def _has_all_slots(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{MASTER}/overview", timeout=5) as answer:
                return bool(json.load(answer)["slots-total"] == NUM_TASK_MANAGERS * SLOTS)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def _java(self, name: str, own: Mapping[str, str], memory_command: str) -> Any:
        """Write the configuration of a Java process; return a function from its main class to its command."""
        folder = self.folder / "conf" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        temporary = self.folder / "tmp" / name
        temporary.mkdir(parents=True, exist_ok=True)
        settings = {**_settings(self._options), "io.tmp.dirs": str(temporary), **own}
        text = "".join(f"{key}: {value}\n" for key, value in settings.items())
        (folder / "flink-conf.yaml").write_text(text, encoding="utf-8")
        (folder / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
        classes = ":".join(sorted(str(jar) for jar in (self._flink / "lib").glob("*.jar")))
        # The first line of the result has options of Java, the second has settings of Flink.
        utils = "org.apache.flink.runtime.util.bash.BashJavaUtils"
        arguments = [memory_command, "--configDir", str(folder)]
        asked = subprocess.run(
            ["java", "-cp", f"{self._flink}/bin/bash-java-utils.jar:{classes}", utils, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        mark = "BASH_JAVA_UTILS_EXEC_RESULT:"
        results = [line.removeprefix(mark) for line in asked.stdout.splitlines() if line.startswith(mark)]
        if asked.returncode or not results:
            fail(f"Flink rejects the settings of {name}:\n{asked.stdout[-3000:]}")
        memory, more = results[0].split(), " ".join(results[1:]).split()
        logging = [f"-Dlog4j.configurationFile={folder}/log4j.properties", f"-Djava.io.tmpdir={temporary}"]
        java = ["java", *memory, *_JAVA_OPTIONS, *logging, "-cp", classes]
        return lambda entry: [*java, entry, "--configDir", str(folder), *more]


def keep(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the cluster and the command as first process of the namespaces; when it ends, the kernel ends all others."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for old in (*options.folder.glob("*.log"), options.folder / "cluster.json"):
        if old.name != "start.log":
            old.unlink(missing_ok=True)
    shutil.rmtree(options.folder / "tmp", ignore_errors=True)
    cluster = Cluster(options, fetch_flink())
    cluster.build_network()
    started = time.monotonic()
    cluster.start()
    say(f"the cluster is ready at {MASTER} after {time.monotonic() - started:.0f} s; logs: {options.folder}")
    environment = {**os.environ, VARIABLE: str(options.folder / "cluster.json")}
    running = subprocess.Popen([*options.enter.split(), *command], env=environment)
    while True:
        try:
            return running.wait(0.5)
        except subprocess.TimeoutExpired:
            cluster.restart_ended()
        except KeyboardInterrupt:  # the command got it as well
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(STOP_SECONDS)
            return 128 + signal.SIGINT


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings that all Java processes of the cluster share."""
    settings = {
        "jobmanager.rpc.address": _JOB_MANAGER,
        "jobmanager.memory.process.size": "1200m",
        "rest.address": _JOB_MANAGER,
        "rest.bind-address": "0.0.0.0",  # noqa: S104 - in a network namespace of its own
        "taskmanager.bind-host": "0.0.0.0",  # noqa: S104
        "taskmanager.numberOfTaskSlots": str(SLOTS),
        "taskmanager.memory.process.size": options.memory,
        # StatisticsGen's job has hundreds of tasks, and each needs buffers; Beam's job needs little of the rest.
        "taskmanager.memory.network.min": "768m",
        "taskmanager.memory.network.max": "768m",
        "taskmanager.memory.managed.size": "128m",
        "heartbeat.interval": "2000",
        "heartbeat.timeout": "10000",
        "cluster.evenly-spread-out-slots": "true",
    }
    if not options.no_restart:
        settings |= {
            "restart-strategy.type": "fixed-delay",
            # Each failed part of a job counts. StatisticsGen's has eleven: one lost machine uses up 10 attempts.
            "restart-strategy.fixed-delay.attempts": "50",
            "restart-strategy.fixed-delay.delay": "3 s",
        }
    return settings


def _numbers() -> range:
    return range(1, NUM_TASK_MANAGERS + 1)


def _task_manager(number: int) -> str:
    return f"{_NETWORK}{10 + number}"


def _ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode:
        fail(f"ip {words}: {done.stderr.strip()}; this machine does not allow network namespaces.")


if __name__ == "__main__":
    sys.exit(main())
