# SPDX-License-Identifier: Apache-2.0
#
# Code generated from relay/openapi.json by UPDATE=1 go test ./clients. DO NOT EDIT.

"""What boxd answers. A field that boxd has left out is None, and so is one that an older boxd does not know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

#: number of bytes
Bytes = int

DurationText = str

#: text such as 30s, or a number of seconds
Duration = Union[DurationText, float]


@dataclass(frozen=True)
class Limits:
    """Limits of a session."""

    cpus: float

    memory: Bytes

    memory_high: Bytes

    swap: Bytes

    #: one of process, program, session
    oom: str

    pids: int

    cpu_weight: int

    io_weight: int

    io_read: Bytes

    io_write: Bytes

    tmp: Bytes

    workspace_quota: Bytes

    workspace_inodes: int

    #: resource limits that differ from the defaults
    rlimits: Optional[Dict[str, str]] = None


@dataclass(frozen=True)
class Lifetime:
    """Timeouts of a session."""

    ttl: DurationText

    max_lifetime: DurationText


@dataclass(frozen=True)
class Mount:
    """A host directory in the box. The allowed directories are configured (mounts.allow)."""

    #: host directory
    source: str

    #: any path in the box that it does not need itself; missing directories are created
    target: str

    #: the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then
    source_base64: Optional[str] = None

    #: the path in base64, if it is not UTF-8: in a request in place of target, which is empty then
    target_base64: Optional[str] = None

    #: default that of the profile; one of ro, rw, none
    mode: Optional[str] = None

    #: root only: host uid that owns files created by the box
    owner: Optional[int] = None

    #: do not follow symbolic links in the directory
    nosymfollow: Optional[bool] = None


@dataclass(frozen=True)
class Instructions:
    """The object Instructions of the API."""

    profile: str

    #: one fact per line
    instructions: str

    #: id of an existing session
    session: Optional[str] = None


@dataclass(frozen=True)
class MountList:
    """The object MountList of the API."""

    mounts: List[SessionMount]


@dataclass(frozen=True)
class SessionMount:
    """The object SessionMount of the API."""

    #: host directory
    source: str

    #: path in the box
    target: str

    #: default that of the profile; one of ro, rw, none
    mode: str

    #: added to the running session, and removable
    live: bool

    #: the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then
    source_base64: Optional[str] = None

    #: the path in base64, if it is not UTF-8: in a request in place of target, which is empty then
    target_base64: Optional[str] = None

    #: root only: host uid that owns files created by the box
    owner: Optional[int] = None

    #: do not follow symbolic links in the directory
    nosymfollow: Optional[bool] = None

    since: Optional[str] = None

    #: mount attributes reported by the kernel, if live
    attributes: Optional[List[str]] = None


@dataclass(frozen=True)
class MountUser:
    """A user of a busy mount."""

    #: cwd, root, exe, map, mount, or a file descriptor number
    how: str

    #: path in the box
    path: str

    #: pid in the box; absent if the user is another mount
    pid: Optional[int] = None

    #: program name, as reported by the program itself
    program: Optional[str] = None


@dataclass(frozen=True)
class SessionDefinition:
    """The object SessionDefinition of the API."""

    #: a SessionRequest with every setting; max_lifetime is what is left of it
    session: Dict[str, Any]

    #: a ProcessRequest by id, for processes with the restart policy `always`, which a stopped session has
    #: when it starts again
    processes: Dict[str, Dict[str, Any]]

    #: directories in the box whose files are on disk and the session's own: get an archive of each
    paths: List[str]

    #: what the session has besides, in words: for example changes to the root filesystem, and snapshots
    left_out: List[str]

    #: digest of its image, which can have another one under its name elsewhere; absent if the box has the
    #: programs of the host
    image_digest: Optional[str] = None


@dataclass(frozen=True)
class Session:
    """The object Session of the API."""

    cpus: float

    memory: Bytes

    memory_high: Bytes

    swap: Bytes

    #: one of process, program, session
    oom: str

    pids: int

    cpu_weight: int

    io_weight: int

    io_read: Bytes

    io_write: Bytes

    tmp: Bytes

    workspace_quota: Bytes

    workspace_inodes: int

    ttl: DurationText

    max_lifetime: DurationText

    id: str

    owner: str

    owner_uid: int

    #: one of starting, ready, stopping, stopped, frozen, unhealthy, ending, ended
    state: str

    profile: str

    image: str

    hostname: str

    network: str

    read_only_root: bool

    #: name of the user that programs run as
    user_name: str

    #: home directory of that user
    home: str

    mounts: List[Mount]

    #: names only
    env: List[str]

    #: What enforces each limit on this host; "host" is a host directory as workspace, limited by its
    #: filesystem only.
    enforcement: Dict[str, str]

    created_at: str

    last_used_at: str

    #: running executions
    running: int

    executions: int

    #: resource limits that differ from the defaults
    rlimits: Optional[Dict[str, str]] = None

    network_rules: Optional[List[str]] = None

    network_strict: Optional[bool] = None

    #: concurrent connections with egress; absent if unlimited or set by the configuration
    network_connections: Optional[int] = None

    #: bytes per second and direction; absent if unlimited
    network_bandwidth: Optional[Bytes] = None

    #: names of its secrets
    secrets: Optional[List[str]] = None

    #: bucket and path that results go to; absent if none
    push: Optional[str] = None

    #: absent if false
    home_on_disk: Optional[bool] = None

    #: named workspaces mounted read-only; absent if none
    inputs: Optional[List[Input]] = None

    #: its named workspace; absent if it has one of its own
    workspace_name: Optional[str] = None

    #: its skills, and requested ones that do not exist; absent if none
    skills: Optional[List[SessionSkill]] = None

    #: its drives; absent if none
    drives: Optional[List[SessionDrive]] = None

    labels: Optional[Dict[str, str]] = None

    #: absent if none; in lists only if asked for
    metadata: Optional[Dict[str, str]] = None

    #: end of its idle timeout, or removal of a stopped session
    expires_at: Optional[str] = None

    #: only if it is stopped
    stopped_at: Optional[str] = None

    #: host pid of its PID 1
    pid: Optional[int] = None

    #: first of its host uids
    id_base: Optional[int] = None

    #: path of its cgroup on the host
    group: Optional[str] = None

    #: values lowered by a policy
    clamped: Optional[List[Clamp]] = None

    #: in the answer about one session and in lists on request, if it has cgroups
    usage: Optional[SessionUsage] = None

    #: in the answer about one session, if it has push
    pushed: Optional[Pushed] = None

    #: in the answer about one session, if it has a network
    traffic: Optional[Traffic] = None

    #: in the answer about one session and in lists on request, if it has a quota
    workspace: Optional[Quota] = None


@dataclass(frozen=True)
class Quota:
    """Usage of a filesystem or directory."""

    #: one of workspace, tmp
    kind: str

    used: Bytes

    limit: Bytes

    files: int

    files_limit: int

    #: it is full
    hit: bool


@dataclass(frozen=True)
class Pushed:
    """Results of a session that go to a bucket, counted by versions of outputs."""

    #: to be read, sent, or sent again
    waiting: int

    done: int

    #: not sent for three days; they stay in the drive push/BUCKET
    given_up: int

    #: error of the last try of one that is not there
    error: Optional[str] = None


@dataclass(frozen=True)
class Traffic:
    """Network traffic of a session since its creation, headers included."""

    #: addresses of the box
    addresses: List[str]

    received: Bytes

    received_packets: int

    sent: Bytes

    sent_packets: int

    #: packets that no rule allowed; events of type denied have the destinations
    denied_packets: int


@dataclass(frozen=True)
class SessionUsage:
    """Resource usage of all programs of a session."""

    cpu_ms: float

    #: time throttled by the CPU limit
    throttled_ms: float

    memory: Bytes

    memory_peak: Bytes

    swap: Bytes

    pids: int

    io_read: Bytes

    io_write: Bytes

    oom_kills: int

    pressure: Pressure


@dataclass(frozen=True)
class Pressure:
    """PSI some avg10: percentage of the last ten seconds in which a program waited for the resource."""

    cpu: float

    memory: float

    io: float


@dataclass(frozen=True)
class UsageHistory:
    """What a session has used lately. A session without cgroups has only samples of its workspace, and none
    without a quota of that either.
    """

    #: approximate time between two samples
    interval: DurationText

    #: how long samples are kept; `0s`: no samples are taken (`usage.history` of box.toml)
    kept: DurationText

    #: oldest first
    samples: List[UsageSample]


@dataclass(frozen=True)
class UsageSample:
    """The object UsageSample of the API."""

    at: str

    #: if the session has cgroups
    usage: Optional[SampledUsage] = None

    #: if the workspace has a quota
    workspace: Optional[WorkspaceUsage] = None


@dataclass(frozen=True)
class SampledUsage:
    """Resource usage of all programs of a session at a time. A session that was stopped begins again with zero."""

    cpu_ms: float

    #: percentage of one CPU since the previous sample; in the first, since the session was created
    cpu_percent: float

    memory: Bytes

    swap: Bytes

    pids: int

    io_read: Bytes

    io_write: Bytes

    pressure: Pressure


@dataclass(frozen=True)
class WorkspaceUsage:
    """The object WorkspaceUsage of the API."""

    used: Bytes

    files: int


@dataclass(frozen=True)
class SessionList:
    """The object SessionList of the API."""

    sessions: List[Session]

    #: if there are more: the value of `after` for the next page
    next: Optional[str] = None


@dataclass(frozen=True)
class ExecResult:
    """The object ExecResult of the API."""

    session: str

    #: canceled: it was killed because its caller disconnected or its grace period was over; lost: its box is
    #: gone and the result unknown; start_failed: it never ran, see failure. ; one of exited, signaled,
    #: timed_out, oom_killed, canceled, lost, start_failed
    status: str

    #: in utf-8, invalid bytes are replaced by U+FFFD
    stdout: str

    stderr: str

    #: totals of stdout and stderr
    output: List[Total]

    duration_ms: float

    usage: Usage

    #: number of background processes killed
    leftovers_killed: int

    #: its timeout; 0s is none
    timeout: DurationText

    #: with exited
    exit_code: Optional[int] = None

    #: with signaled
    signal: Optional[str] = None

    #: pid that it had in the box; absent for executions without an id that are no stream, and for what has
    #: not started
    pid: Optional[int] = None

    clamped: Optional[List[Clamp]] = None

    #: with start_failed
    failure: Optional[StartFailure] = None

    #: if a process of it was killed for lack of memory, with any status
    oom: Optional[OOM] = None

    #: filesystems that were full at its end, with any status
    quota: Optional[List[Quota]] = None

    #: if requested
    changes: Optional[Changes] = None


@dataclass(frozen=True)
class Changes:
    """Changes of the workspace by an execution, from a scan before and after it. Files created and removed in
    between are not included; a moved file is removed and created. Paths are relative to the workspace and
    sorted. Of more than ten thousand files all are counted and the first ones listed, up to the limit.
    """

    created: List[File]

    #: changed content or permissions, or replaced files
    changed: List[File]

    removed: List[RemovedFile]

    #: counts of all changes, listed or not
    counts: ChangeCounts

    #: nothing else ran in the session, and no other session uses the workspace: the execution made all
    #: changes
    exact: bool

    #: there are more than the limit; the first ones by path are listed
    truncated: Optional[bool] = None

    #: number of files above max_size, which are not listed
    too_large: Optional[int] = None

    #: number of directories that the box user cannot read
    unreadable: Optional[int] = None

    #: why changes are unknown; the lists are then empty
    unknown: Optional[str] = None


@dataclass(frozen=True)
class RootDiscarded:
    """A directory counts as one, with its content."""

    #: number of removed paths, which the image does not have
    removed: int

    #: number of paths restored from the image
    restored: int


@dataclass(frozen=True)
class ChangeCounts:
    """The object ChangeCounts of the API."""

    created: int

    changed: int

    removed: int


@dataclass(frozen=True)
class RemovedFile:
    """State in the image."""

    path: str

    #: as in File
    type: str

    size: int

    path_base64: Optional[str] = None


@dataclass(frozen=True)
class Total:
    """The object Total of the API."""

    #: bytes written
    bytes: int

    #: bytes omitted from the answer, at a line that says so
    omitted: Optional[int] = None


@dataclass(frozen=True)
class Usage:
    """Peaks and io need cgroups."""

    user_ms: float

    system_ms: float

    #: of its largest process
    max_rss: Bytes

    memory_peak: Optional[Bytes] = None

    pids_peak: Optional[int] = None

    io_read: Optional[Bytes] = None

    io_write: Optional[Bytes] = None


@dataclass(frozen=True)
class Plan:
    """The effect of a request, without doing it. Whether a mount source exists is only known at a start."""

    #: always true
    dry_run: bool

    #: a session with this id exists, and the request would get it
    exists: bool

    #: policy table of the caller in box.toml
    policy: Optional[str] = None

    #: the session after profile and policy are applied
    session: Optional[PlannedSession] = None

    exec: Optional[PlannedExec] = None

    #: what enforces each limit
    enforcement: Optional[Dict[str, str]] = None

    clamped: Optional[List[Clamp]] = None

    #: the problem that would be the answer
    refused: Optional[Problem] = None


@dataclass(frozen=True)
class PlannedSession:
    """Settings of a planned session."""

    cpus: float

    memory: Bytes

    memory_high: Bytes

    swap: Bytes

    #: one of process, program, session
    oom: str

    pids: int

    cpu_weight: int

    io_weight: int

    io_read: Bytes

    io_write: Bytes

    tmp: Bytes

    workspace_quota: Bytes

    workspace_inodes: int

    ttl: DurationText

    max_lifetime: DurationText

    profile: str

    image: str

    network: str

    read_only_root: bool

    #: name of the user that programs run as
    user_name: str

    #: home directory of that user
    home: str

    mounts: List[Mount]

    #: names only
    env: List[str]

    #: resource limits that differ from the defaults
    rlimits: Optional[Dict[str, str]] = None

    #: absent if it would be random
    id: Optional[str] = None

    network_rules: Optional[List[str]] = None

    network_strict: Optional[bool] = None

    network_connections: Optional[int] = None

    network_bandwidth: Optional[Bytes] = None

    #: names of its secrets
    secrets: Optional[List[str]] = None

    #: bucket and path that results go to; absent if none
    push: Optional[str] = None

    #: absent if false
    home_on_disk: Optional[bool] = None

    skills: Optional[List[str]] = None

    drives: Optional[List[str]] = None


@dataclass(frozen=True)
class PlannedExec:
    """A planned execution, without input, and without code above the size of an argument."""

    argv: List[str]

    cwd: str

    #: names only
    env: List[str]

    timeout: DurationText

    output_limit: Bytes

    #: own limit; 0: that of the session
    cpus: float

    memory: Bytes

    pids: int

    #: maximum bytes of each stream on disk
    spool: Optional[Bytes] = None


@dataclass(frozen=True)
class UsageList:
    """The object UsageList of the API."""

    #: current amounts of everything the policy limits
    holdings: List[Holding]

    days: List[UsageDays]

    #: policy table of the caller in box.toml
    policy: Optional[str] = None


@dataclass(frozen=True)
class Holding:
    """The object Holding of the API."""

    #: key of box.toml, for example policy.ci.sessions
    rule: str

    used: float

    allowed: float


@dataclass(frozen=True)
class UsageDays:
    """Usage of one principal on one day."""

    #: day in UTC
    day: str

    principal: str

    #: executions and process starts
    executions: int

    #: requests denied by policy
    refused: int

    #: sessions created
    sessions: int

    #: lifetime of all sessions together
    session_seconds: float

    cpu_seconds: float

    #: memory limits of sessions, multiplied by time
    memory_byte_hours: float

    #: content of workspaces with a quota, multiplied by time
    disk_byte_hours: float


@dataclass(frozen=True)
class Clamp:
    """A value that was lowered."""

    field: str

    #: requested value, or that of the profile
    asked: str

    got: str

    #: rule, a key of box.toml
    by: Optional[str] = None


@dataclass(frozen=True)
class OOM:
    """The object OOM of the API."""

    kills: int

    #: limit that was reached
    limit: Bytes

    #: whose limit: execution, session, owner (all sessions together), or process (without cgroups); one of
    #: execution, session, owner, process
    of: str

    #: with process: no process was killed, but allocations seem to have failed (MemoryError, or a signal)
    sign: Optional[str] = None

    #: peak memory, if known
    peak: Optional[Bytes] = None

    #: processes killed by the kernel, if known from its log
    victims: Optional[List[str]] = None


@dataclass(frozen=True)
class StartFailure:
    """The step of a failed start, its object and the error of the kernel."""

    step: str

    errno: str

    text: str

    item: Optional[str] = None

    #: what to do, if known
    hint: Optional[str] = None


@dataclass(frozen=True)
class PortToken:
    """A token for a preview."""

    token: str

    #: host name of the preview
    host: str

    expires_at: str

    #: URL for a browser on this host; absent if boxd has no HTTP socket
    url: Optional[str] = None


@dataclass(frozen=True)
class Terminal:
    """Size of a terminal in characters."""

    rows: int

    cols: int


@dataclass(frozen=True)
class Restart:
    """Restart policy."""

    #: on-failure: any end but exit code 0 or a stop; one of no, on-failure, always
    policy: Optional[str] = None

    #: delay before the first restart, doubled for each further one; default 100ms
    delay: Optional[Duration] = None

    #: default 30s
    max_delay: Optional[Duration] = None

    #: this many restarts within window are a crash loop, which ends the restarts; default 5; 0 is unlimited
    limit: Optional[int] = None

    #: default 1m
    window: Optional[Duration] = None


@dataclass(frozen=True)
class Stop:
    """How to stop the program."""

    #: signal to its process group; default SIGTERM
    signal: Optional[str] = None

    #: time before it is killed; default 10s
    grace: Optional[Duration] = None


@dataclass(frozen=True)
class Process:
    """A process. An execution with an id is one too."""

    id: str

    session: str

    #: waiting: before its next start; one of starting, running, waiting, stopping, ended
    state: str

    ready: bool

    #: total number of starts
    starts: int

    argv: List[str]

    cwd: str

    #: names only
    env: List[str]

    stdin: bool

    #: attached clients
    readers: int

    #: one of them may write
    writer: bool

    restart: Restart

    stop: Stop

    #: state of stdout and stderr
    output: List[StreamState]

    started_at: str

    #: pid in the box of its program, or of the last one, whose number another may have by now; absent if none
    #: has run
    pid: Optional[int] = None

    #: one of direct
    stdio: Optional[str] = None

    terminal: Optional[Terminal] = None

    timeout: Optional[DurationText] = None

    lease: Optional[DurationText] = None

    labels: Optional[Dict[str, str]] = None

    #: maximum size of each on disk; absent if they are kept in memory
    spool: Optional[Bytes] = None

    ended_at: Optional[str] = None

    #: in state waiting
    next_start: Optional[str] = None

    #: end of its lease
    expires_at: Optional[str] = None

    #: reason of the end, if it was not the program itself; one of stopped, lease, revoked, crash loop, not
    #: ready, shutdown
    reason: Optional[str] = None

    clamped: Optional[List[Clamp]] = None

    #: when it has ended; with output in the answer about this process only
    result: Optional[ExecResult] = None


@dataclass(frozen=True)
class StreamState:
    """The object StreamState of the API."""

    #: total bytes written
    bytes: int

    #: offset of the oldest byte kept
    from_: int = field(metadata={"name": "from"})


@dataclass(frozen=True)
class ProcessList:
    """The object ProcessList of the API."""

    processes: List[Process]


@dataclass(frozen=True)
class LogLine:
    """A chunk of a stream as it was written."""

    #: one of stdout, stderr
    stream: str

    #: offset of its first byte in the stream
    offset: int

    #: approximate time of writing
    time: str

    data: Optional[str] = None

    #: data is base64, because it is not UTF-8
    base64: Optional[bool] = None

    #: number of bytes no longer kept; without data
    gap: Optional[int] = None


@dataclass(frozen=True)
class ServerControl:
    """A control message from boxd, with one field."""

    started: Optional[StreamStarted] = None

    #: bytes of standard input accepted
    stdin_taken: Optional[int] = None

    attached: Optional[StreamAttached] = None

    gap: Optional[StreamGap] = None

    #: another client is the writer now
    writer_lost: Optional[bool] = None

    #: the program has ended
    exit: Optional[ExecResult] = None

    #: nothing was started, or the stream has failed
    error: Optional[Problem] = None


@dataclass(frozen=True)
class StreamStarted:
    """The object StreamStarted of the API."""

    session: str

    clamped: Optional[List[Clamp]] = None


@dataclass(frozen=True)
class StreamAttached:
    """The object StreamAttached of the API."""

    process: Process

    #: offset of the next byte to be sent, or in a gap
    stdout: int

    stderr: int

    #: bytes of standard input the process has received
    stdin: int

    writer: bool


@dataclass(frozen=True)
class StreamGap:
    """The object StreamGap of the API."""

    #: one of stdout, stderr
    stream: str

    #: number of missing bytes
    bytes: int

    #: only with attach.lines: a line over 16 MiB, or one that the program did not finish; without it the
    #: bytes are no longer kept; one of long_line, unfinished_line
    reason: Optional[str] = None


@dataclass(frozen=True)
class Profile:
    """Limits and defaults of a session."""

    cpus: float

    memory: Bytes

    memory_high: Bytes

    swap: Bytes

    #: one of process, program, session
    oom: str

    pids: int

    #: resource limits that differ from the defaults
    rlimits: Dict[str, str]

    cpu_weight: int

    io_weight: int

    io_read: Bytes

    io_write: Bytes

    tmp: Bytes

    workspace_quota: Bytes

    workspace_inodes: int

    ttl: DurationText

    max_lifetime: DurationText

    image: str

    #: one of off, egress, host
    network: str

    network_rules: List[str]

    network_strict: bool

    #: 0: network.connections
    network_connections: int

    #: bytes per second and direction; 0: network.bandwidth
    network_bandwidth: Bytes

    read_only_root: bool

    home_on_disk: bool

    #: name of the user that programs run as
    user_name: str

    #: home directory of that user
    home: str

    #: one of ro, rw, none
    mounts: str

    #: skills for sessions that request none
    skills: List[str]

    #: for executions that set none
    timeout: DurationText

    max_timeout: DurationText

    #: what to do with background processes of a command; one of kill, keep
    leftovers: str

    #: freeze the session after this time without use; 0 is never
    freeze_after: DurationText

    #: number of boxes started in advance
    warm: int

    #: up to this many, following how many were used at once in the last ten minutes; 0: no more than warm
    warm_max: int

    #: fields that requests cannot change
    locked: List[str]


@dataclass(frozen=True)
class Configuration:
    """The object Configuration of the API."""

    settings: List[Setting]


@dataclass(frozen=True)
class Setting:
    """The object Setting of the API."""

    key: str

    #: as in box.toml
    value: str

    #: file and line, variable, or built-in
    origin: str


@dataclass(frozen=True)
class ProfileList:
    """The object ProfileList of the API."""

    #: for sessions that name none
    default: str

    profiles: Dict[str, Profile]


@dataclass(frozen=True)
class Status:
    """The object Status of the API."""

    version: str

    started_at: str

    sessions: int

    max_sessions: int

    #: stopped sessions, which are not among sessions
    stopped: int

    #: running processes of all sessions
    processes: int

    #: limit per session
    max_processes: int

    #: executions and processes
    running: int

    #: since the start of boxd
    executed: int

    control_groups: str

    #: limits that may be missing (limits.best_effort)
    best_effort: List[str]

    #: those that are missing on this host
    unenforced: List[str]

    #: what enforces each limit on this host
    enforced: Dict[str, str]

    #: current problems, as text
    degraded: List[str]

    #: off: drained; failed: no session can start; one of ok, degraded, off, failed
    state: str

    queue: Queue

    #: boxes started in advance
    warm: List[Warm]

    #: who drained boxd, and why
    off: Optional[str] = None


@dataclass(frozen=True)
class Queue:
    """The queue of requests that wait for room."""

    #: requests for a session, of all callers
    waiting: int

    #: executions that wait for their session
    executions: int

    #: limit for each of the two
    length: int

    #: maximum wait
    wait: DurationText

    #: requests of the caller, or all for root; next first
    places: List[Place]


@dataclass(frozen=True)
class Place:
    """A waiting request for a session."""

    #: id of the session
    id: str

    owner: str

    #: 1 is next
    position: int

    #: one of sessions, owner, starts, disk, memory, pressure
    reason: str

    since: str


@dataclass(frozen=True)
class Warm:
    """Boxes of a profile that were started in advance."""

    profile: str

    ready: int

    want: int


@dataclass(frozen=True)
class Drain:
    """Who drained boxd."""

    by: str

    since: str

    reason: Optional[str] = None


@dataclass(frozen=True)
class Doctor:
    """The object Doctor of the API."""

    #: no check failed
    ok: bool

    checks: List[Check]


@dataclass(frozen=True)
class Check:
    """The object Check of the API."""

    name: str

    #: one of ok, warn, fail
    level: str

    detail: str

    #: what to do
    hint: Optional[str] = None


@dataclass(frozen=True)
class Grant:
    """A temporary role of a principal."""

    principal: str

    #: one of viewer, user, operator, admin
    role: str

    #: principal who granted it
    by: str

    created_at: str

    until: str


@dataclass(frozen=True)
class Image:
    """A root filesystem for sessions."""

    name: str

    #: digest of its manifest or equivalent: `sha256:…`
    digest: str

    #: format of the imported archive; `commit`: created from a session; one of oci, docker, rootfs, commit
    form: str

    bytes: int

    entries: int

    layers: int

    #: number of sessions that use it
    sessions: int

    config: ImageConfig

    #: time of the import
    created_at: str

    #: number of devices and FIFOs that were skipped
    left_out: Optional[int] = None


@dataclass(frozen=True)
class ImageConfig:
    """Defaults of an image for programs. They always run as the box user, with its HOME, whatever `user` says."""

    architecture: Optional[str] = None

    env: Optional[List[str]] = None

    working_dir: Optional[str] = None

    user: Optional[str] = None

    entrypoint: Optional[List[str]] = None

    cmd: Optional[List[str]] = None


@dataclass(frozen=True)
class ImageList:
    """The object ImageList of the API."""

    images: List[Image]


@dataclass(frozen=True)
class Skill:
    """An instruction package for agents."""

    name: str

    display_name: str

    #: what it does and when to use it
    description: str

    #: SKILL.md or skill.md
    entry_file: str

    #: digest of all files: `sha256:…`
    digest: str

    bytes: int

    entries: int

    created_at: str

    updated_at: str

    license: Optional[str] = None

    #: its requirements
    compatibility: Optional[str] = None

    allowed_tools: Optional[str] = None

    metadata: Optional[Dict[str, str]] = None

    #: absent in lists
    instructions: Optional[str] = None

    #: source of the import
    origin: Optional[str] = None

    python_project: Optional[bool] = None

    #: part of boxd
    built_in: Optional[bool] = None

    #: allowed, but not recommended
    advice: Optional[List[str]] = None


@dataclass(frozen=True)
class Input:
    """A named workspace that a session may read only. Mounted ro, nosuid, nodev and nosymfollow."""

    #: its name
    workspace: str

    #: any path in the box, outside /workspace, that the box does not need itself; default /mnt/NAME
    target: Optional[str] = None

    #: the path in base64, if it is not UTF-8
    target_base64: Optional[str] = None


@dataclass(frozen=True)
class Workspace:
    """The object Workspace of the API."""

    name: str

    owner: str

    created_at: str

    quota: Bytes

    #: 0: no quota
    inodes: int

    #: ids of sessions that use it
    sessions: List[str]

    #: what enforces the quota; absent if it has none; one of project-quota, store, none
    enforcement: Optional[str] = None

    usage: Optional[Quota] = None


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of what a session has on disk."""

    name: str

    created_at: str

    #: how much of workspace_quota it uses
    size: Bytes

    #: files and directories
    files: int


@dataclass(frozen=True)
class SnapshotList:
    """The object SnapshotList of the API."""

    snapshots: List[Snapshot]


@dataclass(frozen=True)
class WorkspaceList:
    """The object WorkspaceList of the API."""

    workspaces: List[Workspace]


@dataclass(frozen=True)
class SkillList:
    """The object SkillList of the API."""

    skills: List[Skill]


@dataclass(frozen=True)
class Drive:
    """A versioned directory, newest version last."""

    #: owner/project
    name: str

    created_at: str

    #: keep versions until they are marked as pushed
    push: bool

    versions: List[DriveVersion]

    #: number of versions to keep; 0 is all; default drives.keep_versions
    keep_versions: Optional[int] = None

    #: maximum age of versions; 0 is any; default drives.keep_age
    keep_age: Optional[DurationText] = None


@dataclass(frozen=True)
class DriveVersion:
    """The object DriveVersion of the API."""

    version: int

    #: digest of names, contents and executable bits
    digest: str

    bytes: int

    entries: int

    created_at: str

    #: number of sessions that use or have used it
    sessions: int

    #: session and directory of its files
    origin: Optional[str] = None

    pushed_at: Optional[str] = None


@dataclass(frozen=True)
class DriveList:
    """The object DriveList of the API."""

    drives: List[Drive]


@dataclass(frozen=True)
class DriveEntry:
    """The object DriveEntry of the API."""

    #: path in the drive
    path: str

    #: one of file, directory
    type: str

    size: int

    sha256: Optional[str] = None

    executable: Optional[bool] = None


@dataclass(frozen=True)
class DriveIndex:
    """The object DriveIndex of the API."""

    version: DriveVersion

    entries: List[DriveEntry]

    #: offset of the next page; absent at the end
    next: Optional[int] = None


@dataclass(frozen=True)
class DriveText:
    """The object DriveText of the API."""

    version: int

    text: str


@dataclass(frozen=True)
class SessionDrive:
    """A drive of a session."""

    name: str

    #: its path in the box
    target: str

    version: int

    digest: str

    since: str

    #: mount attributes reported by the kernel
    attributes: Optional[List[str]] = None

    #: number of earlier versions, kept until the session ends
    earlier: Optional[int] = None


@dataclass(frozen=True)
class SessionSkill:
    """A skill of a session. A missing one was requested but does not exist; it has no target."""

    name: str

    since: str

    #: its path in the box
    target: Optional[str] = None

    #: digest of the mounted version
    digest: Optional[str] = None

    #: mount attributes reported by the kernel
    attributes: Optional[List[str]] = None

    missing: Optional[bool] = None


@dataclass(frozen=True)
class SkillEnvironment:
    """A Python virtual environment for a skill."""

    #: its path in the box; the interpreter is bin/python
    path: str

    #: version of Python
    python: str

    #: created by this request; false if it existed
    made: bool


@dataclass(frozen=True)
class SkillIndex:
    """The object SkillIndex of the API."""

    text: str

    #: requested, but not found
    missing: Optional[List[str]] = None


@dataclass(frozen=True)
class SkillEntry:
    """The object SkillEntry of the API."""

    #: path in the skill
    path: str

    name: str

    #: one of file, directory
    type: str

    size: int

    executable: Optional[bool] = None


@dataclass(frozen=True)
class SkillEntries:
    """The object SkillEntries of the API."""

    path: str

    entries: List[SkillEntry]

    truncated: Optional[bool] = None


@dataclass(frozen=True)
class SkillFile:
    """The object SkillFile of the API."""

    path: str

    content: str

    #: one of utf-8, base64
    encoding: str

    #: digest of the skill
    digest: str

    executable: Optional[bool] = None


@dataclass(frozen=True)
class SkillCandidates:
    """The object SkillCandidates of the API."""

    candidates: List[SkillCandidate]


@dataclass(frozen=True)
class SkillCandidate:
    """The object SkillCandidate of the API."""

    #: path in the archive, `.` for its root
    path: str

    skill: SkillDraft

    #: errors that prevent the import
    problems: Optional[List[SkillProblem]] = None


@dataclass(frozen=True)
class SkillDraft:
    """The object SkillDraft of the API."""

    name: str

    description: str

    digest: str

    bytes: int

    entries: int

    instructions: Optional[str] = None

    advice: Optional[List[str]] = None


@dataclass(frozen=True)
class SkillProblem:
    """The object SkillProblem of the API."""

    text: str

    #: key of the front matter
    key: Optional[str] = None


@dataclass(frozen=True)
class GrantList:
    """The object GrantList of the API."""

    grants: List[Grant]


@dataclass(frozen=True)
class Health:
    """The object Health of the API."""

    #: one of ok
    status: str


@dataclass(frozen=True)
class Event:
    """An event. Fields that do not apply are absent."""

    #: position after the event
    id: str

    time: str

    #: one of session.started, session.failed, session.ended, session.frozen, session.thawed, session.stopped,
    #: session.changed, session.adopted, session.unhealthy, exec.started, exec.ended, process.started,
    #: process.ready, process.restarted, process.ended, denied, oom, quota, config.reloaded, config.refused,
    #: daemon.started, daemon.stopping, audit.failed, audit.recovered, grant.changed, push.done, push.failed,
    #: gap
    type: str

    session: Optional[str] = None

    #: owner of the session
    owner: Optional[str] = None

    #: principal of the request
    principal: Optional[str] = None

    process: Optional[str] = None

    #: id of an execution, if it has one
    exec: Optional[str] = None

    profile: Optional[str] = None

    #: one word: reason of the end, status, limit or layer
    reason: Optional[str] = None

    #: text for people; may change in any release
    detail: Optional[str] = None

    took_ms: Optional[float] = None

    request: Optional[str] = None

    traceparent: Optional[str] = None

    #: only with type gap
    gap: Optional[Gap] = None


@dataclass(frozen=True)
class Gap:
    """Reason for missing events."""

    #: boxd was restarted since the given id; events in between are unknown
    restarted: Optional[bool] = None

    #: number of lost events, of all principals
    missed: Optional[int] = None


@dataclass(frozen=True)
class RecentError:
    """An error. Errors without a principal are of boxd itself."""

    time: str

    #: last part of the problem type; warn or error for boxd itself
    kind: str

    detail: str

    principal: Optional[str] = None

    route: Optional[str] = None

    session: Optional[str] = None

    status: Optional[int] = None

    request: Optional[str] = None

    traceparent: Optional[str] = None


@dataclass(frozen=True)
class ErrorList:
    """The object ErrorList of the API."""

    errors: List[RecentError]


@dataclass(frozen=True)
class AuditRecord:
    """A record of the audit log. Fields that do not apply are absent."""

    seq: int

    #: one of call, running, started, repaired, dropped, lost
    kind: str

    time: str

    request: Optional[str] = None

    traceparent: Optional[str] = None

    principal: Optional[str] = None

    uid: Optional[int] = None

    #: process that connected, at that time
    pid: Optional[int] = None

    #: socket, tcp, or token: and its name
    via: Optional[str] = None

    route: Optional[str] = None

    session: Optional[str] = None

    #: owner of the session, if it is not the caller
    owner: Optional[str] = None

    process: Optional[str] = None

    what: Optional[AuditWhat] = None

    status: Optional[int] = None

    #: done, failed, cut_off (the caller disconnected early), or the status of the program
    outcome: Optional[str] = None

    #: last part of the problem type
    error: Optional[str] = None

    detail: Optional[str] = None

    took_ms: Optional[float] = None


@dataclass(frozen=True)
class AuditWhat:
    """The request. Environment variables are names only."""

    argv: Optional[List[str]] = None

    #: digest of the arguments, each followed by a zero byte
    argv_sha256: Optional[str] = None

    argc: Optional[int] = None

    env: Optional[List[str]] = None

    mounts: Optional[List[str]] = None

    profile: Optional[str] = None

    #: other fields of the request
    changes: Optional[List[str]] = None


@dataclass(frozen=True)
class AuditList:
    """The object AuditList of the API."""

    records: List[AuditRecord]

    #: NUMBER:HASH of the last record
    head: str

    #: records are missing because of the limit of 16 MiB; filter by session, principal or request
    cut: Optional[bool] = None


@dataclass(frozen=True)
class FileContent:
    """Part of a file."""

    file: File

    content: str

    encoding: str

    byte_offset: int

    next_byte_offset: int

    #: number of the first line, if any
    start_line: Optional[int] = None

    end_line: Optional[int] = None

    #: next line; 0 at the end, or within a line
    next_offset: Optional[int] = None

    truncated: Optional[bool] = None

    #: "lines" or "bytes"
    truncated_by: Optional[str] = None


@dataclass(frozen=True)
class File:
    """Metadata of a file, directory or other entry."""

    path: str

    #: "file", "directory", "symlink", "fifo", "socket" or "device"
    type: str

    size: int

    #: octal, for example "0644"
    mode: str

    modified_at: str

    path_base64: Optional[str] = None

    #: target of a symlink
    target: Optional[str] = None

    target_base64: Optional[str] = None

    #: "sha256:…"
    digest: Optional[str] = None

    #: in answers of stat, list, mkdir, file and watch, as are all below
    uid: Optional[int] = None

    gid: Optional[int] = None

    #: name of uid in the box's /etc/passwd
    user: Optional[str] = None

    #: name of gid in the box's /etc/group
    group: Optional[str] = None

    #: what a symlink finally leads to: absolute, without symlinks; absent if that does not exist or is out of
    #: reach
    resolved: Optional[str] = None

    resolved_base64: Optional[str] = None

    #: type of what a symlink finally leads to
    target_type: Optional[str] = None

    target_mode: Optional[str] = None

    #: extended attributes user.*, if requested; values in base64
    xattrs: Optional[Dict[str, str]] = None

    #: there are more than 64 KiB of them
    xattrs_truncated: Optional[bool] = None


@dataclass(frozen=True)
class FileEvent:
    """Something that happened in a watched directory."""

    #: "watching", "create", "write", "remove", "rename", "chmod", "overflow" or "error"
    event: str

    #: relative to the watched directory; "." is the directory itself
    path: Optional[str] = None

    path_base64: Optional[str] = None

    #: in create: former path, if it was renamed within the watched directories
    from_: Optional[str] = field(default=None, metadata={"name": "from"})

    from_base64: Optional[str] = None

    #: as in File; absent for a removed or renamed entry that is not a directory
    type: Optional[str] = None

    file: Optional[File] = None

    problem: Optional[Problem] = None


@dataclass(frozen=True)
class FileWritten:
    """A file after writing, or a new directory."""

    file: File

    created: Optional[bool] = None


@dataclass(frozen=True)
class FileEdited:
    """A file after editing, with the result of each edit."""

    file: File

    edits: List[FileReplaced]


@dataclass(frozen=True)
class FileReplaced:
    """Number of replacements of an edit, and the line of the first."""

    count: int

    line: int


@dataclass(frozen=True)
class FileEntries:
    """Files, with paths relative to the requested one."""

    entries: List[File]

    truncated: Optional[bool] = None


@dataclass(frozen=True)
class FileMatches:
    """Matches by file, sorted by path."""

    files: List[FileMatch]

    #: number of lines, or names
    matches: int

    #: number of files searched
    searched: int

    #: number of files skipped: binary, too large or unreadable
    skipped: int

    truncated: Optional[bool] = None

    #: "lines" (limit), "files" (files.max_entries) or "bytes" (files.max_search, or the answer)
    truncated_by: Optional[str] = None


@dataclass(frozen=True)
class FileMatch:
    """Matches in one file."""

    path: str

    path_base64: Optional[str] = None

    lines: Optional[List[FileLine]] = None


@dataclass(frozen=True)
class FileLine:
    """A line of a file, at most 500 bytes. Invalid UTF-8 is replaced by U+FFFD."""

    line: int

    text: str

    #: byte position of the match, starting at 1; absent for context lines
    column: Optional[int] = None

    cut: Optional[bool] = None


@dataclass(frozen=True)
class FileDone:
    """Success without a result."""

    ok: bool


@dataclass(frozen=True)
class ArchiveDone:
    """An unpacked archive."""

    entries: int

    bytes: int


@dataclass(frozen=True)
class FileFailure:
    """A file error. Kind is a word such as "not_found", "not_unique" or "binary"."""

    kind: str

    path: Optional[str] = None

    path_base64: Optional[str] = None


@dataclass(frozen=True)
class Problem:
    """An error (RFC 9457)."""

    #: Stable, for programs; all types are listed here.; one of urn:boxd:problem:internal,
    #: urn:boxd:problem:invalid, urn:boxd:problem:not_found, urn:boxd:problem:conflict,
    #: urn:boxd:problem:denied, urn:boxd:problem:exhausted, urn:boxd:problem:unsupported,
    #: urn:boxd:problem:unauthenticated, urn:boxd:problem:unavailable
    type: str

    title: str

    status: int

    #: one sentence for people; may change in any release
    detail: str

    #: invalid field, as named in the request; several fields are separated by commas
    field: Optional[str] = None

    #: given value, shortened
    value: Optional[str] = None

    #: allowed values
    allowed: Optional[str] = None

    #: what to do next
    hint: Optional[str] = None

    #: rule that denied the request
    denial: Optional[Denial] = None

    #: caller, if the request was denied
    by: Optional[str] = None

    file: Optional[FileFailure] = None

    #: users of a busy mount, at most 16
    users: Optional[List[MountUser]] = None

    #: step of the start that failed
    failure: Optional[StartFailure] = None


@dataclass(frozen=True)
class Denial:
    """The rule that denied a request, and the setting that would allow it."""

    #: one of policy, mount, network, quota, seccomp, limit
    layer: str

    #: key of box.toml, for example policy.ci.sessions
    rule: str

    #: current amount
    used: Optional[str] = None

    allowed: Optional[str] = None

    #: setting that would allow it, for operators
    setting: Optional[str] = None

    #: seconds until a retry can succeed, if known
    retry_after: Optional[int] = None
