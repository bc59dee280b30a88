# SPDX-License-Identifier: Apache-2.0
#
# Code generated from relay/openapi.json by UPDATE=1 go test ./clients. DO NOT EDIT.

"""What boxd is asked for: dictionaries, whose keys a type checker knows."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, TypedDict, Union

#: number of bytes, or text with a unit
Size = Union[int, str]

DurationText = str

#: text such as 30s, or a number of seconds
Duration = Union[DurationText, float]

#: Variables by name. Their values do not appear in answers, records, logs or errors.
Environment = Dict[str, str]

#: Labels, chosen by the caller. Names and values have at most 256 bytes.
Labels = Dict[str, str]

#: Texts by name that boxd keeps with the session and does not interpret. Names have at most 256 bytes, all
#: names and values together at most 64 KiB.
Metadata = Dict[str, str]

#: Resource limits of every process (getrlimit(2)) by name, SOFT:HARD or one value for both: as, core, cpu
#: (seconds), data, fsize, memlock, msgqueue, nice, nofile, nproc, sigpending, stack. At most the hard limits
#: of the profile.
Rlimits = Dict[str, str]

#: Variables of the template. Others are ignored.
Variables = Dict[str, str]

#: Metadata, chosen by the author.
SkillMetadata = Dict[str, str]

#: Extended attributes by whole name, values in base64.
Xattrs = Dict[str, str]


class LimitsPatch(TypedDict, total=False):
    """Requested limits of a session."""

    #: number of CPUs
    cpus: float

    #: memory of all programs together
    memory: Size

    #: memory at which programs are throttled; 0 disables it
    memory_high: Size

    swap: Size

    #: what is killed when memory runs out; one of process, program, session
    oom: Literal["process", "program", "session"]

    #: processes and threads
    pids: int

    #: relative CPU share, 1 to 10000
    cpu_weight: int

    #: relative disk share, 1 to 10000
    io_weight: int

    #: bytes per second; 0 is unlimited
    io_read: Size

    #: bytes per second; 0 is unlimited
    io_write: Size

    #: size limit of the workspace; 0 is unlimited
    workspace_quota: Size

    #: files and directories in the workspace
    workspace_inodes: int

    #: idle timeout; 0 is never
    ttl: Duration

    #: maximum age; 0 is never
    max_lifetime: Duration

    #: concurrent connections with egress; 0, the default, is the maximum, that of the profile; existing
    #: connections stay
    network_connections: int

    #: bytes per second and direction with egress; 0, the default, is the maximum, that of the profile
    network_bandwidth: Size


class SessionRequest(TypedDict, total=False):
    """Omitted fields have the values of the profile."""

    #: number of CPUs
    cpus: float

    #: memory of all programs together
    memory: Size

    #: memory at which programs are throttled; 0 disables it
    memory_high: Size

    swap: Size

    #: what is killed when memory runs out; one of process, program, session
    oom: Literal["process", "program", "session"]

    #: processes and threads
    pids: int

    #: relative CPU share, 1 to 10000
    cpu_weight: int

    #: relative disk share, 1 to 10000
    io_weight: int

    #: bytes per second; 0 is unlimited
    io_read: Size

    #: bytes per second; 0 is unlimited
    io_write: Size

    #: size limit of the workspace; 0 is unlimited
    workspace_quota: Size

    #: files and directories in the workspace
    workspace_inodes: int

    #: idle timeout; 0 is never
    ttl: Duration

    #: maximum age; 0 is never
    max_lifetime: Duration

    #: concurrent connections with egress; 0, the default, is the maximum, that of the profile; existing
    #: connections stay
    network_connections: int

    #: bytes per second and direction with egress; 0, the default, is the maximum, that of the profile
    network_bandwidth: Size

    #: 1 to 256 bytes without control characters; default a random one, or one from the template
    id: str

    #: template for the id: per_chat, per_user, per_conversation, per_message, global, or text such as
    #: {chat}_{user:nobody}; default the configured one
    template: str

    variables: Variables

    #: answer with a Plan and create nothing
    dry_run: bool

    #: name of a profile (/v1/profiles); default the configured one
    profile: str

    #: root filesystem: `host`, or the name or digest of an image
    image: str

    #: egress needs IP forwarding on the host; host is only for profiles that have it; one of off, egress,
    #: host
    network: Literal["off", "egress", "host"]

    #: allowed destinations: CIDR or host name, optionally protocol (tcp, udp or any; default tcp) and ports
    #: (default all), for example 203.0.113.0/24 tcp 443 8000-8100; empty allows none, default those of the
    #: profile
    network_rules: List[str]

    #: with egress and host name rules: check the host name (TLS SNI, HTTP Host) of TCP connections to ports
    #: 80 and 443 against the rules; default that of the profile
    network_strict: bool

    #: names of configured secrets. Programs get a placeholder in their environment; the value is inserted
    #: into the headers of HTTPS requests to the hosts of each secret. Needs egress and host name rules that
    #: allow these hosts; the session is strict
    secrets: List[str]

    #: BUCKET or BUCKET/PREFIX: a configured bucket, and a path there, by default the id of the session. The
    #: output directory of every execution with output_version is pushed to BUCKET/PREFIX/VERSION when it has
    #: ended; see pushed of the session and the events push.done and push.failed
    push: str

    #: false lets programs change the root filesystem, for this session only and within workspace_quota;
    #: beside a named workspace, that quota is for these changes alone
    read_only_root: bool

    #: true keeps the home directory on disk, within workspace_quota, instead of in memory; a stopped session
    #: keeps it
    home_on_disk: bool

    #: name of the user that programs run as (uid 1000): in /etc/passwd and /etc/group, and in USER and
    #: LOGNAME unless [env] of box.toml says otherwise; neither root nor nobody; default: the profile's, which
    #: is box unless configured
    user_name: str

    #: home directory of that user, in the box, and HOME unless [env] of box.toml says otherwise: writable,
    #: with /tmp within its limit; under a read-only root it covers what an image has in /home, unless the
    #: image has that directory; default: the profile's, which is /home/box unless configured
    home: str

    rlimits: Rlimits

    #: size of /tmp, /run, /dev/shm and the home directory together
    tmp: Size

    #: named workspace to mount at /workspace, which outlives the session; default a new one that is removed
    #: with it
    workspace: str

    #: named workspaces to mount read-only
    inputs: List[Input]

    mounts: List[Mount]

    #: skills to mount; those that do not exist are reported as missing, without an error
    skills: List[str]

    #: drives to mount, NAME or NAME@VERSION
    drives: List[str]

    env: Environment

    labels: Labels

    metadata: Metadata

    #: maximum wait for room, at most queue.wait
    wait: Duration

    #: entries of env that are not UTF-8
    base64: InBase64


class SessionChange(TypedDict, total=False):
    """Omitted fields do not change."""

    #: number of CPUs
    cpus: float

    #: memory of all programs together
    memory: Size

    #: memory at which programs are throttled; 0 disables it
    memory_high: Size

    swap: Size

    #: what is killed when memory runs out; one of process, program, session
    oom: Literal["process", "program", "session"]

    #: processes and threads
    pids: int

    #: relative CPU share, 1 to 10000
    cpu_weight: int

    #: relative disk share, 1 to 10000
    io_weight: int

    #: bytes per second; 0 is unlimited
    io_read: Size

    #: bytes per second; 0 is unlimited
    io_write: Size

    #: size limit of the workspace; 0 is unlimited
    workspace_quota: Size

    #: files and directories in the workspace
    workspace_inodes: int

    #: idle timeout; 0 is never
    ttl: Duration

    #: maximum age; 0 is never
    max_lifetime: Duration

    #: concurrent connections with egress; 0, the default, is the maximum, that of the profile; existing
    #: connections stay
    network_connections: int

    #: bytes per second and direction with egress; 0, the default, is the maximum, that of the profile
    network_bandwidth: Size

    #: with egress, as at creation: connections that the new rules forbid are closed, and host names must be
    #: resolved again; empty allows none
    network_rules: List[str]

    labels: Labels

    #: replaces all metadata of the session; an empty object removes it
    metadata: Metadata


class InBase64(TypedDict, total=False):
    """Fields that are not UTF-8, in base64; each replaces the field of the same name."""
    argv: List[str]

    command: str

    code: str

    cwd: str

    #: entries NAME=value, in addition to the other field
    env: List[str]


class _Mount(TypedDict):

    #: host directory
    source: str

    #: any path in the box that it does not need itself; missing directories are created
    target: str


class Mount(_Mount, total=False):
    """A host directory in the box. The allowed directories are configured (mounts.allow)."""

    #: the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then
    source_base64: str

    #: the path in base64, if it is not UTF-8: in a request in place of target, which is empty then
    target_base64: str

    #: default that of the profile; one of ro, rw, none
    mode: Literal["ro", "rw", "none"]

    #: root only: host uid that owns files created by the box
    owner: int

    #: do not follow symbolic links in the directory
    nosymfollow: bool


class _MountRequest(TypedDict):

    #: host directory
    source: str

    #: path in the box
    target: str


class MountRequest(_MountRequest, total=False):
    """The object MountRequest of the API."""

    #: the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then
    source_base64: str

    #: the path in base64, if it is not UTF-8: in a request in place of target, which is empty then
    target_base64: str

    #: default that of the profile; one of ro, rw, none
    mode: Literal["ro", "rw", "none"]

    #: root only: host uid that owns files created by the box
    owner: int

    #: do not follow symbolic links in the directory
    nosymfollow: bool

    #: replace another mount at the target
    replace: bool


class SessionStart(TypedDict, total=False):
    """The object SessionStart of the API."""

    #: maximum wait for room, at most queue.wait
    wait: Duration


class ExecRequest(TypedDict, total=False):
    """Set exactly one of argv, command and code."""

    #: makes it a process with this id: it outlives the caller until its timeout, and never runs twice
    id: str

    #: answer without waiting for the end; needs an id
    detach: bool

    #: answer with a Plan and run nothing
    dry_run: bool

    #: program and arguments
    argv: List[str]

    #: shell command
    command: str

    #: code in `language`
    code: str

    #: configured language (languages)
    language: str

    env: Environment

    #: any directory that the box user can enter; created if it does not exist and is below the home
    #: directory, /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: default that of the profile; lowered to its max_timeout, see clamped
    timeout: Duration

    #: for this execution, within those of the session
    cpus: float

    #: for this execution, within that of the session
    memory: Size

    #: for this execution, within those of the session
    pids: int

    rlimits: Rlimits

    #: root: run it with the rights of root over the files of the box, in a session whose root can be written
    #: to (read_only_root false); otherwise the name of the box user, which is the default
    user: str

    #: data for standard input; not in a stream
    stdin: str

    #: one of utf-8, base64
    stdin_encoding: Literal["utf-8", "base64"]

    #: maximum wait for another execution of the session to end, at most queue.wait
    wait: Duration

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with a terminal
    merge_output: bool

    #: maximum bytes kept of each stream, from its start and its end
    output_limit: Size

    #: with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
    #: quota, to be read from the logs of the process; the answer has no more than output_limit
    spool: Size

    #: encoding of stdout and stderr in the answer; one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    #: fields that are not UTF-8
    base64: InBase64

    #: creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
    #: starting with a letter, a digit or _
    output_version: str

    #: list created, changed and removed files of the workspace in the answer; not with detach. A request that
    #: joins an existing execution gets unknown
    changes: bool

    #: filter for these changes
    changes_with: ChangesWith


class ChangesWith(TypedDict, total=False):
    """Filter for changes. Globs match paths in the workspace, or names if they contain no slash."""

    #: list only matching paths
    include: List[str]

    #: skip matching paths, and everything below matching directories
    exclude: List[str]

    #: maximum size of listed files; 0, the default, is unlimited
    max_size: Size

    #: maximum number of listed changes, at most 20000; default 1000
    limit: int

    #: include digests of the listed files, within files.max_search
    digest: bool


class _OneShotRequest(TypedDict):
    exec: ExecRequest


class OneShotRequest(_OneShotRequest, total=False):
    """The object OneShotRequest of the API."""
    session: SessionRequest


class RootDiff(TypedDict, total=False):
    """The object RootDiff of the API."""

    #: maximum number of listed changes; default 1000
    limit: int


class RootDiscard(TypedDict, total=False):
    """The object RootDiscard of the API."""

    #: absolute paths to revert; default all
    paths: List[str]


class ArchiveRequest(TypedDict, total=False):
    """All paths, or a problem."""

    #: directory; default /workspace
    path: str

    path_base64: str

    #: paths relative to it
    paths: List[str]

    #: paths that are not UTF-8
    paths_base64: List[str]


class ProcessRequest(TypedDict, total=False):
    """Set exactly one of argv, command and code."""
    argv: List[str]

    command: str

    code: str

    language: str

    env: Environment

    #: as for an execution
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: timeout of each start; default none
    timeout: Duration

    #: fields that are not UTF-8
    base64: InBase64

    cpus: float

    memory: Size

    pids: int

    rlimits: Rlimits

    #: root, or the name of the box user (default), as for an execution
    user: str

    #: use a terminal instead of pipes
    terminal: Terminal

    #: open standard input for clients of its stream
    stdin: bool

    #: direct: pass the file descriptors of standard input, output and error to a client, see …/stdio. boxd
    #: does not see the data, so terminal, stdin, merge_output, output, spool, ready.line and restart are
    #: refused. ; one of direct
    stdio: Literal["direct"]

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with terminal or stdio
    merge_output: bool

    #: default never
    restart: Restart

    #: default: ready when it runs
    ready: Ready

    stop: Stop

    #: Stops the process after this time without an attached client or a renewal; default never. With stdio
    #: direct it starts when the descriptors are taken, and only renewals count.
    lease: Duration

    #: minimum size of output kept of each stream; default 1 MiB
    output: Size

    #: instead of output: maximum size of output kept of each stream on the disk of the workspace, within its
    #: quota and processes.max_spool. Where the disk is full, the oldest output of the stream is dropped, then
    #: new output; the program goes on, and readers get gaps
    spool: Size

    labels: Labels


class PortTokenRequest(TypedDict, total=False):
    """The object PortTokenRequest of the API."""

    #: at most sessions.preview_max; default 15m, or that
    lifetime: str


class Terminal(TypedDict):
    """Size of a terminal in characters."""
    rows: int

    cols: int


class Restart(TypedDict, total=False):
    """Restart policy."""

    #: on-failure: any end but exit code 0 or a stop; one of no, on-failure, always
    policy: Literal["no", "on-failure", "always"]

    #: delay before the first restart, doubled for each further one; default 100ms
    delay: Duration

    #: default 30s
    max_delay: Duration

    #: this many restarts within window are a crash loop, which ends the restarts; default 5; 0 is unlimited
    limit: int

    #: default 1m
    window: Duration


class Ready(TypedDict, total=False):
    """Readiness check: one of line, port and command."""

    #: ready when an output line matches this regular expression (RE2)
    line: str

    #: ready when this TCP port on the loopback of the box accepts connections
    port: int

    #: ready when this command exits with 0; tried every second
    command: List[str]

    #: end the program if it is not ready in time; default 1m
    timeout: Duration


class Stop(TypedDict, total=False):
    """How to stop the program."""

    #: signal to its process group; default SIGTERM
    signal: str

    #: time before it is killed; default 10s
    grace: Duration


class SignalRequest(TypedDict):
    """The object SignalRequest of the API."""
    signal: str


class ClientControl(TypedDict, total=False):
    """A control message from the client, with one field."""
    start: StreamStart

    attach: StreamAttach

    signal: str

    resize: Terminal

    #: with the subprotocol boxd.forget, after the client has read exit
    forget: bool


class _StreamStart(TypedDict):
    exec: ExecRequest


class StreamStart(_StreamStart, total=False):
    """The first message of an execution."""

    #: for /v1/exec/stream
    session: SessionRequest

    #: standard input will follow
    stdin: bool

    #: use a terminal instead of pipes; all its output is stdout
    terminal: Terminal

    #: how long a program with an id runs without a client; default until its timeout
    lease: Duration


class StreamAttach(TypedDict, total=False):
    """The first message to a process."""

    #: number of bytes the client has; without stdout and stderr only new output is sent
    stdout: int

    stderr: int

    #: start with the oldest output kept
    replay: bool

    #: become the writer of standard input
    write: bool

    #: replace another writer
    take_over: bool

    #: a word of the client's own, by which it becomes the writer again after it has lost its connection;
    #: replaces a writer of the same id
    writer_id: str

    #: number of bytes of standard input sent in earlier streams; by default all input is new
    stdin: int

    #: make the program wait for this client while it accepts data; default true for the writer
    lossless: bool

    #: messages of stdout and stdin are single lines without their end
    lines: bool


class DrainRequest(TypedDict, total=False):
    """The object DrainRequest of the API."""

    #: reason, for people
    reason: str


class _ImageCommit(TypedDict):

    #: name; an existing image of this name loses it
    name: str


class ImageCommit(_ImageCommit, total=False):
    """Omitted fields have the values of the session's image."""
    env: Environment

    working_dir: str

    #: `[]` for none
    entrypoint: List[str]

    #: `[]` for none
    cmd: List[str]


class _Input(TypedDict):

    #: its name
    workspace: str


class Input(_Input, total=False):
    """A named workspace that a session may read only. Mounted ro, nosuid, nodev and nosymfollow."""

    #: any path in the box, outside /workspace, that the box does not need itself; default /mnt/NAME
    target: str

    #: the path in base64, if it is not UTF-8
    target_base64: str


class _WorkspaceRequest(TypedDict):

    #: 1 to 64 of a-z, A-Z, 0-9, ., _ and -, starting with a letter, a digit or _
    name: str


class WorkspaceRequest(_WorkspaceRequest, total=False):
    """The object WorkspaceRequest of the API."""
    quota: Size

    #: maximum files and directories; default that of the default profile
    inodes: int


class SnapshotRequest(TypedDict):
    """The object SnapshotRequest of the API."""

    #: New name, which no other snapshot of the session has: 1 to 64 of a-z, A-Z, 0-9, ., _ and -, the first a
    #: letter, a digit or _.
    name: str


class WorkspaceKept(TypedDict):
    """The object WorkspaceKept of the API."""

    #: New name, which no other workspace of the owner has.
    workspace: str


class WorkspaceChange(TypedDict, total=False):
    """Omitted fields do not change."""
    quota: Size

    inodes: int


class DriveChange(TypedDict, total=False):
    """Omitted fields do not change."""
    keep_versions: int

    keep_age: Duration

    push: bool


class DrivePushed(TypedDict):
    """The object DrivePushed of the API."""
    version: int


class SkillEnvironmentRequest(TypedDict, total=False):
    """The object SkillEnvironmentRequest of the API."""

    #: variables for pip, in addition to those of the session: PIP_INDEX_URL, PIP_FIND_LINKS and others
    env: Environment

    #: default: longest timeout of the profile
    timeout: Duration


class _SkillRequest(TypedDict):

    #: 1 to 64 of a-z, 0-9 and single hyphens inside
    name: str

    #: 1 to 1024 characters: what it does and when to use it
    description: str


class SkillRequest(_SkillRequest, total=False):
    """The object SkillRequest of the API."""
    display_name: str

    license: str

    #: at most 500 characters
    compatibility: str

    allowed_tools: str

    metadata: SkillMetadata

    #: Markdown
    instructions: str


class SkillChange(TypedDict, total=False):
    """Omitted fields do not change; "" removes a text."""
    display_name: str

    description: str

    license: str

    compatibility: str

    allowed_tools: str

    #: replaces all metadata
    metadata: SkillMetadata

    instructions: str

    #: required digest of the skill
    if_match: str


class SkillIndexRequest(TypedDict, total=False):
    """The object SkillIndexRequest of the API."""

    #: default all
    names: List[str]

    #: directory in which they are mounted
    location: str


class _SkillFileWrite(TypedDict):
    path: str

    content: str


class SkillFileWrite(_SkillFileWrite, total=False):
    """The object SkillFileWrite of the API."""

    #: one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    executable: bool

    #: required digest of the skill
    if_match: str


GrantRequest = TypedDict(
    "GrantRequest",
    {
        # table `[principals.NAME]` of box.toml, or a user, `uid:1000`
        "principal": "str",
        # one of viewer, user, operator, admin
        "role": "Literal[\"viewer\", \"user\", \"operator\", \"admin\"]",
        # 1s to 168h
        "for": "Duration",
    },
    total=False,
)


class FileRead(TypedDict, total=False):
    """Part of a file to read: lines, or bytes if byte_offset is set."""
    path: str

    path_base64: str

    #: first line, starting at 1; default 1
    offset: int

    #: number of lines; default 2000
    limit: int

    #: first byte, starting at 0
    byte_offset: int

    #: maximum bytes, at most files.max_content; default 51200
    max_bytes: int

    #: "utf-8" (default; text only) or "base64"
    encoding: str

    #: include the digest of the whole file, up to files.max_content
    digest: bool


class _FileWrite(TypedDict):
    content: str


class FileWrite(_FileWrite, total=False):
    """Content to write to a file."""
    path: str

    path_base64: str

    #: encoding of content: "utf-8" (default) or "base64"
    encoding: str

    #: "overwrite" (default, atomic), "append" or "create"
    mode: str

    #: do not create missing directories
    no_parents: bool

    #: octal; default those of the existing file, "0644" for a new one
    permissions: str

    #: required digest of the existing file
    if_match: str

    #: begins with user.; the extended attributes with this prefix become those of xattrs
    xattrs_prefix: str

    xattrs: Xattrs


class FileMkdir(TypedDict, total=False):
    """Directory to create."""
    path: str

    path_base64: str

    #: octal; default "0755"
    mode: str

    #: do not create missing parents
    no_parents: bool

    #: leave an existing directory as it is instead of failing
    exist_ok: bool


class _FileEdit(TypedDict):
    edits: List[FileReplacement]


class FileEdit(_FileEdit, total=False):
    """Edits of a text file: all of them in order, or none."""
    path: str

    path_base64: str

    if_match: str


class _FileReplacement(TypedDict):
    old: str

    new: str


class FileReplacement(_FileReplacement, total=False):
    """One edit: old must occur exactly once, or with all at least once."""
    all: bool


class _FileGlob(TypedDict):

    #: glob with *, **, ?, [a-z] and {a,b}
    pattern: str


class FileGlob(_FileGlob, total=False):
    """Files to find by name pattern, newest first."""
    path: str

    path_base64: str

    #: default 100
    limit: int

    #: include files ignored by .gitignore, and .git, node_modules, dist and others
    no_ignore: bool

    #: "time" (default) or "name"
    sort: str


class FileList(TypedDict, total=False):
    """Directory to list, by name."""

    #: default /workspace
    path: str

    path_base64: str

    #: default 1: the directory only
    depth: int

    #: default 1000
    limit: int

    #: include extended attributes
    xattrs: bool


class _FileGrep(TypedDict):

    #: regular expression (RE2)
    pattern: str


class FileGrep(_FileGrep, total=False):
    """Pattern to search for in text files."""
    path: str

    path_base64: str

    #: pattern is plain text
    literal: bool

    ignore_case: bool

    #: globs; those without a slash match names
    include: List[str]

    exclude: List[str]

    #: as in FileGlob
    no_ignore: bool

    #: lines of context before
    before: int

    after: int

    names_only: bool

    #: maximum lines, or names; default 200
    limit: int


class FileStat(TypedDict, total=False):
    """Path to describe."""
    path: str

    path_base64: str

    #: describe a symbolic link itself
    no_follow: bool

    digest: bool

    #: include extended attributes
    xattrs: bool


#: Rename a file or directory.
FileMove = TypedDict(
    "FileMove",
    {
        "from": "str",
        "from_base64": "str",
        "to": "str",
        "to_base64": "str",
        "overwrite": "bool",
        "no_parents": "bool",
    },
    total=False,
)


class FileRemove(TypedDict, total=False):
    """Remove a file or directory."""
    path: str

    path_base64: str

    #: remove a directory with its content
    recursive: bool

    #: succeed if it does not exist
    missing_ok: bool


class _FileChmod(TypedDict):

    #: octal number up to 777
    mode: str


class FileChmod(_FileChmod, total=False):
    """Change the mode of a file or directory."""
    path: str

    path_base64: str


class SessionOptions(TypedDict, total=False):
    """What else a SessionRequest may have."""

    #: number of CPUs
    cpus: float

    #: memory of all programs together
    memory: Size

    #: memory at which programs are throttled; 0 disables it
    memory_high: Size

    swap: Size

    #: what is killed when memory runs out; one of process, program, session
    oom: Literal["process", "program", "session"]

    #: processes and threads
    pids: int

    #: relative CPU share, 1 to 10000
    cpu_weight: int

    #: relative disk share, 1 to 10000
    io_weight: int

    #: bytes per second; 0 is unlimited
    io_read: Size

    #: bytes per second; 0 is unlimited
    io_write: Size

    #: size limit of the workspace; 0 is unlimited
    workspace_quota: Size

    #: files and directories in the workspace
    workspace_inodes: int

    #: idle timeout; 0 is never
    ttl: Duration

    #: maximum age; 0 is never
    max_lifetime: Duration

    #: concurrent connections with egress; 0, the default, is the maximum, that of the profile; existing
    #: connections stay
    network_connections: int

    #: bytes per second and direction with egress; 0, the default, is the maximum, that of the profile
    network_bandwidth: Size

    #: 1 to 256 bytes without control characters; default a random one, or one from the template
    id: str

    #: template for the id: per_chat, per_user, per_conversation, per_message, global, or text such as
    #: {chat}_{user:nobody}; default the configured one
    template: str

    variables: Variables

    #: name of a profile (/v1/profiles); default the configured one
    profile: str

    #: root filesystem: `host`, or the name or digest of an image
    image: str

    #: egress needs IP forwarding on the host; host is only for profiles that have it; one of off, egress,
    #: host
    network: Literal["off", "egress", "host"]

    #: allowed destinations: CIDR or host name, optionally protocol (tcp, udp or any; default tcp) and ports
    #: (default all), for example 203.0.113.0/24 tcp 443 8000-8100; empty allows none, default those of the
    #: profile
    network_rules: List[str]

    #: with egress and host name rules: check the host name (TLS SNI, HTTP Host) of TCP connections to ports
    #: 80 and 443 against the rules; default that of the profile
    network_strict: bool

    #: names of configured secrets. Programs get a placeholder in their environment; the value is inserted
    #: into the headers of HTTPS requests to the hosts of each secret. Needs egress and host name rules that
    #: allow these hosts; the session is strict
    secrets: List[str]

    #: BUCKET or BUCKET/PREFIX: a configured bucket, and a path there, by default the id of the session. The
    #: output directory of every execution with output_version is pushed to BUCKET/PREFIX/VERSION when it has
    #: ended; see pushed of the session and the events push.done and push.failed
    push: str

    #: false lets programs change the root filesystem, for this session only and within workspace_quota;
    #: beside a named workspace, that quota is for these changes alone
    read_only_root: bool

    #: true keeps the home directory on disk, within workspace_quota, instead of in memory; a stopped session
    #: keeps it
    home_on_disk: bool

    #: name of the user that programs run as (uid 1000): in /etc/passwd and /etc/group, and in USER and
    #: LOGNAME unless [env] of box.toml says otherwise; neither root nor nobody; default: the profile's, which
    #: is box unless configured
    user_name: str

    #: home directory of that user, in the box, and HOME unless [env] of box.toml says otherwise: writable,
    #: with /tmp within its limit; under a read-only root it covers what an image has in /home, unless the
    #: image has that directory; default: the profile's, which is /home/box unless configured
    home: str

    rlimits: Rlimits

    #: size of /tmp, /run, /dev/shm and the home directory together
    tmp: Size

    #: named workspace to mount at /workspace, which outlives the session; default a new one that is removed
    #: with it
    workspace: str

    #: named workspaces to mount read-only
    inputs: List[Input]

    mounts: List[Mount]

    #: skills to mount; those that do not exist are reported as missing, without an error
    skills: List[str]

    #: drives to mount, NAME or NAME@VERSION
    drives: List[str]

    env: Environment

    labels: Labels

    metadata: Metadata

    #: maximum wait for room, at most queue.wait
    wait: Duration

    #: entries of env that are not UTF-8
    base64: InBase64


class ExecOptions(TypedDict, total=False):
    """What else a ExecRequest may have."""

    #: makes it a process with this id: it outlives the caller until its timeout, and never runs twice
    id: str

    #: program and arguments
    argv: List[str]

    #: shell command
    command: str

    #: code in `language`
    code: str

    #: configured language (languages)
    language: str

    env: Environment

    #: any directory that the box user can enter; created if it does not exist and is below the home
    #: directory, /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: default that of the profile; lowered to its max_timeout, see clamped
    timeout: Duration

    #: for this execution, within those of the session
    cpus: float

    #: for this execution, within that of the session
    memory: Size

    #: for this execution, within those of the session
    pids: int

    rlimits: Rlimits

    #: root: run it with the rights of root over the files of the box, in a session whose root can be written
    #: to (read_only_root false); otherwise the name of the box user, which is the default
    user: str

    #: data for standard input; not in a stream
    stdin: str

    #: one of utf-8, base64
    stdin_encoding: Literal["utf-8", "base64"]

    #: maximum wait for another execution of the session to end, at most queue.wait
    wait: Duration

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with a terminal
    merge_output: bool

    #: maximum bytes kept of each stream, from its start and its end
    output_limit: Size

    #: with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
    #: quota, to be read from the logs of the process; the answer has no more than output_limit
    spool: Size

    #: encoding of stdout and stderr in the answer; one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    #: fields that are not UTF-8
    base64: InBase64

    #: creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
    #: starting with a letter, a digit or _
    output_version: str

    #: list created, changed and removed files of the workspace in the answer; not with detach. A request that
    #: joins an existing execution gets unknown
    changes: bool

    #: filter for these changes
    changes_with: ChangesWith


class DetachedOptions(TypedDict, total=False):
    """What else a ExecRequest may have."""

    #: program and arguments
    argv: List[str]

    #: shell command
    command: str

    #: code in `language`
    code: str

    #: configured language (languages)
    language: str

    env: Environment

    #: any directory that the box user can enter; created if it does not exist and is below the home
    #: directory, /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: default that of the profile; lowered to its max_timeout, see clamped
    timeout: Duration

    #: for this execution, within those of the session
    cpus: float

    #: for this execution, within that of the session
    memory: Size

    #: for this execution, within those of the session
    pids: int

    rlimits: Rlimits

    #: root: run it with the rights of root over the files of the box, in a session whose root can be written
    #: to (read_only_root false); otherwise the name of the box user, which is the default
    user: str

    #: data for standard input; not in a stream
    stdin: str

    #: one of utf-8, base64
    stdin_encoding: Literal["utf-8", "base64"]

    #: maximum wait for another execution of the session to end, at most queue.wait
    wait: Duration

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with a terminal
    merge_output: bool

    #: maximum bytes kept of each stream, from its start and its end
    output_limit: Size

    #: with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
    #: quota, to be read from the logs of the process; the answer has no more than output_limit
    spool: Size

    #: encoding of stdout and stderr in the answer; one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    #: fields that are not UTF-8
    base64: InBase64

    #: creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
    #: starting with a letter, a digit or _
    output_version: str

    #: list created, changed and removed files of the workspace in the answer; not with detach. A request that
    #: joins an existing execution gets unknown
    changes: bool

    #: filter for these changes
    changes_with: ChangesWith


class StreamOptions(TypedDict, total=False):
    """What else a ExecRequest may have."""

    #: makes it a process with this id: it outlives the caller until its timeout, and never runs twice
    id: str

    #: program and arguments
    argv: List[str]

    #: shell command
    command: str

    #: code in `language`
    code: str

    #: configured language (languages)
    language: str

    env: Environment

    #: any directory that the box user can enter; created if it does not exist and is below the home
    #: directory, /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: default that of the profile; lowered to its max_timeout, see clamped
    timeout: Duration

    #: for this execution, within those of the session
    cpus: float

    #: for this execution, within that of the session
    memory: Size

    #: for this execution, within those of the session
    pids: int

    rlimits: Rlimits

    #: root: run it with the rights of root over the files of the box, in a session whose root can be written
    #: to (read_only_root false); otherwise the name of the box user, which is the default
    user: str

    #: maximum wait for another execution of the session to end, at most queue.wait
    wait: Duration

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with a terminal
    merge_output: bool

    #: maximum bytes kept of each stream, from its start and its end
    output_limit: Size

    #: with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
    #: quota, to be read from the logs of the process; the answer has no more than output_limit
    spool: Size

    #: encoding of stdout and stderr in the answer; one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    #: fields that are not UTF-8
    base64: InBase64

    #: creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
    #: starting with a letter, a digit or _
    output_version: str

    #: list created, changed and removed files of the workspace in the answer; not with detach. A request that
    #: joins an existing execution gets unknown
    changes: bool

    #: filter for these changes
    changes_with: ChangesWith


class RunStreamOptions(TypedDict, total=False):
    """What else a ExecRequest may have."""

    #: program and arguments
    argv: List[str]

    #: shell command
    command: str

    #: code in `language`
    code: str

    #: configured language (languages)
    language: str

    env: Environment

    #: any directory that the box user can enter; created if it does not exist and is below the home
    #: directory, /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
    cwd: str

    #: do not make a missing cwd, but answer with the status start_failed
    cwd_must_exist: bool

    #: default that of the profile; lowered to its max_timeout, see clamped
    timeout: Duration

    #: for this execution, within those of the session
    cpus: float

    #: for this execution, within that of the session
    memory: Size

    #: for this execution, within those of the session
    pids: int

    rlimits: Rlimits

    #: root: run it with the rights of root over the files of the box, in a session whose root can be written
    #: to (read_only_root false); otherwise the name of the box user, which is the default
    user: str

    #: maximum wait for another execution of the session to end, at most queue.wait
    wait: Duration

    #: make standard error the pipe of standard output: all output arrives as stdout, in the order of the
    #: writes, and stderr stays empty; not with a terminal
    merge_output: bool

    #: maximum bytes kept of each stream, from its start and its end
    output_limit: Size

    #: with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
    #: quota, to be read from the logs of the process; the answer has no more than output_limit
    spool: Size

    #: encoding of stdout and stderr in the answer; one of utf-8, base64
    encoding: Literal["utf-8", "base64"]

    #: fields that are not UTF-8
    base64: InBase64

    #: creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
    #: starting with a letter, a digit or _
    output_version: str

    #: list created, changed and removed files of the workspace in the answer; not with detach. A request that
    #: joins an existing execution gets unknown
    changes: bool

    #: filter for these changes
    changes_with: ChangesWith


class MountOptions(TypedDict, total=False):
    """What else a MountRequest may have."""

    #: the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then
    source_base64: str

    #: the path in base64, if it is not UTF-8: in a request in place of target, which is empty then
    target_base64: str

    #: default that of the profile; one of ro, rw, none
    mode: Literal["ro", "rw", "none"]

    #: root only: host uid that owns files created by the box
    owner: int

    #: do not follow symbolic links in the directory
    nosymfollow: bool

    #: replace another mount at the target
    replace: bool


class CommitOptions(TypedDict, total=False):
    """What else a ImageCommit may have."""
    env: Environment

    working_dir: str

    #: `[]` for none
    entrypoint: List[str]

    #: `[]` for none
    cmd: List[str]


class SkillOptions(TypedDict, total=False):
    """What else a SkillRequest may have."""
    display_name: str

    license: str

    #: at most 500 characters
    compatibility: str

    allowed_tools: str

    metadata: SkillMetadata

    #: Markdown
    instructions: str


class FileReadOptions(TypedDict, total=False):
    """What else a FileRead may have."""

    #: first line, starting at 1; default 1
    offset: int

    #: number of lines; default 2000
    limit: int

    #: first byte, starting at 0
    byte_offset: int

    #: maximum bytes, at most files.max_content; default 51200
    max_bytes: int

    #: "utf-8" (default; text only) or "base64"
    encoding: str

    #: include the digest of the whole file, up to files.max_content
    digest: bool


class FileWriteOptions(TypedDict, total=False):
    """What else a FileWrite may have."""

    #: "overwrite" (default, atomic), "append" or "create"
    mode: str

    #: do not create missing directories
    no_parents: bool

    #: octal; default those of the existing file, "0644" for a new one
    permissions: str

    #: required digest of the existing file
    if_match: str

    #: begins with user.; the extended attributes with this prefix become those of xattrs
    xattrs_prefix: str

    xattrs: Xattrs


class FileListOptions(TypedDict, total=False):
    """What else a FileList may have."""

    #: default 1: the directory only
    depth: int

    #: default 1000
    limit: int

    #: include extended attributes
    xattrs: bool


class FileStatOptions(TypedDict, total=False):
    """What else a FileStat may have."""

    #: describe a symbolic link itself
    no_follow: bool

    digest: bool

    #: include extended attributes
    xattrs: bool


class FileGlobOptions(TypedDict, total=False):
    """What else a FileGlob may have."""
    path: str

    path_base64: str

    #: default 100
    limit: int

    #: include files ignored by .gitignore, and .git, node_modules, dist and others
    no_ignore: bool

    #: "time" (default) or "name"
    sort: str


class FileGrepOptions(TypedDict, total=False):
    """What else a FileGrep may have."""
    path: str

    path_base64: str

    #: pattern is plain text
    literal: bool

    ignore_case: bool

    #: globs; those without a slash match names
    include: List[str]

    exclude: List[str]

    #: as in FileGlob
    no_ignore: bool

    #: lines of context before
    before: int

    after: int

    names_only: bool

    #: maximum lines, or names; default 200
    limit: int


class FileMkdirOptions(TypedDict, total=False):
    """What else a FileMkdir may have."""

    #: octal; default "0755"
    mode: str

    #: do not create missing parents
    no_parents: bool

    #: leave an existing directory as it is instead of failing
    exist_ok: bool
