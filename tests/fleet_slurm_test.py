"""examples/fleet/slurm.sh on a real Slurm of one node, with daemons of its own: an array tunes a tiny model on the CPU, one task is killed and requeued, and a
dependent job merges. Usage: fleet_slurm_test.py SOURCE_DIR PAGETUNE_PROGRAM"""
import ctypes
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SHARDS = 3
SHAPE = ["--device", "cpu", "--batch", "1,2", "--len", "64,256"]
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "num_hidden_layers": 2, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.1)
    raise TimeoutError(f"after {seconds} s there is still no {what}")


def die_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """munged, slurmctld and slurmd with all their files in one directory."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "PAGETUNE_"))}
        self.environment |= {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": SBIN}
        # cred_expire: a requeued task begins no sooner than this many seconds later, by default 120.
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        with open(f"{folder}/slurm.conf", "w") as conf:
            conf.write(f"""ClusterName=pagetune
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        for name in ("state", "spool"):
            os.mkdir(f"{folder}/{name}")
        with open(os.open(f"{folder}/munge.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
            key.write(os.urandom(128))
        # --force: a directory below /tmp would be refused as others can write /tmp.
        self.start(["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
                    f"--seed-file={folder}/munge.seed"])
        wait_for("socket of munged", lambda: os.path.exists(f"{folder}/munge.socket"), 10)
        self.start(["slurmctld", "-D"])
        self.start(["slurmd", "-D"])
        wait_for("idle node", self.is_idle, 20)

    def start(self, command):
        log = open(f"{self.folder}/{command[0]}.out", "wb")
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
                                             start_new_session=True))  # Ctrl-C is for this test, which then stops them in order

    def is_idle(self):
        for daemon in self.daemons:
            if daemon.poll() is not None:
                raise RuntimeError(f"{daemon.args[0]} ended with {daemon.returncode}: this machine does not let it run, its log says why")
        return "idle" in self.ask("sinfo", "--noheader", "--format=%T", check=False)

    def ask(self, *command, check=True, **more):
        done = subprocess.run(command, env=self.environment | more, capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def state(self, job):
        """'RUNNING', 'COMPLETED', …"""
        text = self.ask("scontrol", "show", "job", job, "--oneliner")
        return text.split("JobState=")[1].split()[0]

    def stop(self):
        try:
            self.ask("scancel", "--user", getpass.getuser(), check=False)
            wait_for("end of all jobs", lambda: not self.ask("squeue", "--noheader", check=False), 10)
        except (subprocess.TimeoutExpired, TimeoutError) as late:
            print(late, file=sys.stderr)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # What a daemon that died on its own has left behind: processes that were started with this cluster's slurm.conf.
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if f"SLURM_CONF={self.folder}/".encode() in read(f"/proc/{process}/environ"):
                    os.kill(int(process), signal.SIGKILL)
            except OSError:
                pass  # ended, or somebody else's

    def print_logs(self):
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                print(f"--- {name}", open(f"{self.folder}/{name}", errors="replace").read()[-3000:], sep="\n", file=sys.stderr)


def read(path):
    return open(path, "rb").read() if os.path.exists(path) else b""


def exported(cluster, program, store, out):
    for kind in ("json", "csv"):
        cluster.ask(program, "export", "--format", kind, "--out", out, PAGETUNE_CACHE_DIR=store)
    return {name: read(f"{out}/{name}") for name in os.listdir(out)}


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r} where {wanted!r} was expected")


def works(cluster, program, folder, shard):
    plan = json.loads(cluster.ask(program, "plan", f"{folder}/tiny.json", *SHAPE, "--shard", shard, "--json", PAGETUNE_CACHE_DIR=":memory:"))
    return sorted((work["batch"], work["len"]) for work in plan["devices"][0]["works"])


def run(cluster, folder, source, program):
    with open(f"{folder}/tiny.json", "w") as model:
        json.dump(MODEL, model)
    out = f"{folder}/out"
    shards = [works(cluster, program, folder, f"{i}/{SHARDS}") for i in range(SHARDS)]
    all_works = works(cluster, program, folder, "none")
    expect("the shards together", sorted(sum(shards, [])), all_works)
    # Fault: a task that dies leaves a store in the way, or loses what it had. Of the two that run first, so that the array goes on beside it.
    victim = max(range(2), key=lambda i: len(shards[i]))

    said = cluster.ask(f"{source}/examples/fleet/slurm.sh", "submit", f"{folder}/tiny.json", out, str(SHARDS), *SHAPE, "--budget", "8s", PAGETUNE=program)
    array_job, merge_job = re.findall(r"job (\d+)", said)
    task, log = f"{array_job}_{victim}", f"{out}/log/tune-{victim}.txt"
    wait_for(f"progress of task {task}", lambda: b'"work":1' in read(log), 40)
    cluster.ask("scancel", "--full", "--signal=KILL", task)
    wait_for(f"end of task {task}", lambda: cluster.state(task) not in ("RUNNING", "COMPLETING"), 20)
    cluster.ask("scontrol", "requeue", task)
    wait_for("end of the merging job", lambda: cluster.state(merge_job) not in ("PENDING", "RUNNING", "COMPLETING"), 70)

    for i in range(SHARDS):
        starts = read(f"{out}/log/tune-{i}.txt").count(f"shard {i} of {SHARDS}, counted from 0".encode())
        expect(f"starts of task {i}", starts, 2 if i == victim else 1)
        expect(f"state of task {i}", cluster.state(f"{array_job}_{i}"), "COMPLETED")
    expect("state of the merging job", cluster.state(merge_job), "COMPLETED")

    # Faults: a bucket is lost or stands twice; the job merges into something else than it exports.
    files = exported(cluster, program, f"{out}/merged", f"{folder}/first")
    table = json.loads(read(next(f"{folder}/first/{name}" for name in files if name.endswith(".json"))))
    expect("buckets", sorted(tuple(map(int, key.split("x"))) for key in table if key != "_metadata"), all_works)
    expect("lines of the CSV", files["winners.csv"].count(b"\n"), 1 + len(all_works))
    for name in os.listdir(f"{out}/tables"):
        expect(name, read(f"{out}/tables/{name}"), files[name])
    # Fault: the order of the stores shows in the result.
    cluster.ask(program, "merge", *[f"{out}/shard-{i}" for i in reversed(range(SHARDS))], "--into", f"{folder}/reversed")
    expect("the merge in another order", exported(cluster, program, f"{folder}/reversed", f"{folder}/second"), files)


def main(source, program):
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "scontrol") if not shutil.which(name, path=SBIN)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}. scripts/install.sh installs them (Debian: apt install slurm-wlm munge)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    # A socket's path has 107 bytes at most: not below the build folder.
    folder = tempfile.mkdtemp(prefix="pagetune-slurm-", dir="/tmp")
    cluster = None
    try:
        cluster = Cluster.__new__(Cluster)
        cluster.__init__(folder)
        run(cluster, folder, source, program)
    except BaseException:
        if cluster and hasattr(cluster, "daemons"):
            cluster.print_logs()
        for name in sorted(os.listdir(f"{folder}/out/log")) if os.path.isdir(f"{folder}/out/log") else []:
            print(f"--- {name}", read(f"{folder}/out/log/{name}").decode(errors="replace")[-3000:], sep="\n", file=sys.stderr)
        raise
    finally:
        if cluster and hasattr(cluster, "daemons"):
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
