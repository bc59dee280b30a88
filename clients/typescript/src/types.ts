// SPDX-License-Identifier: Apache-2.0
//
// Code generated from relay/openapi.json by UPDATE=1 go test ./clients. DO NOT EDIT.

// What boxd is asked for, and what it answers.

/** number of bytes */
export type Bytes = number;

/** number of bytes, or text with a unit */
export type Size = number | string;

export type DurationText = string;

/** text such as 30s, or a number of seconds */
export type Duration = DurationText | number;

/** Limits of a session. */
export interface Limits {
  cpus: number;
  memory: Bytes;
  memory_high: Bytes;
  swap: Bytes;
  /** one of process, program, session */
  oom: "process" | "program" | "session" | (string & {});
  pids: number;
  /** resource limits that differ from the defaults */
  rlimits?: Record<string, string>;
  cpu_weight: number;
  io_weight: number;
  io_read: Bytes;
  io_write: Bytes;
  tmp: Bytes;
  workspace_quota: Bytes;
  workspace_inodes: number;
}

/** Timeouts of a session. */
export interface Lifetime {
  ttl: DurationText;
  max_lifetime: DurationText;
}

/** Requested limits of a session. */
export interface LimitsPatch {
  /** number of CPUs */
  cpus?: number;
  /** memory of all programs together */
  memory?: Size;
  /** memory at which programs are throttled; 0 disables it */
  memory_high?: Size;
  swap?: Size;
  /** what is killed when memory runs out; one of process, program, session */
  oom?: "process" | "program" | "session";
  /** processes and threads */
  pids?: number;
  /** relative CPU share, 1 to 10000 */
  cpu_weight?: number;
  /** relative disk share, 1 to 10000 */
  io_weight?: number;
  /** bytes per second; 0 is unlimited */
  io_read?: Size;
  /** bytes per second; 0 is unlimited */
  io_write?: Size;
  /** size limit of the workspace; 0 is unlimited */
  workspace_quota?: Size;
  /** files and directories in the workspace */
  workspace_inodes?: number;
  /** idle timeout; 0 is never */
  ttl?: Duration;
  /** maximum age; 0 is never */
  max_lifetime?: Duration;
  /**
   * concurrent connections with egress; 0, the default, is the maximum, that of the profile; existing
   * connections stay
   */
  network_connections?: number;
  /** bytes per second and direction with egress; 0, the default, is the maximum, that of the profile */
  network_bandwidth?: Size;
}

/** Omitted fields have the values of the profile. */
export interface SessionRequest extends LimitsPatch {
  /** 1 to 256 bytes without control characters; default a random one, or one from the template */
  id?: string;
  /**
   * template for the id: per_chat, per_user, per_conversation, per_message, global, or text such as
   * {chat}_{user:nobody}; default the configured one
   */
  template?: string;
  variables?: Variables;
  /** answer with a Plan and create nothing */
  dry_run?: boolean;
  /** name of a profile (/v1/profiles); default the configured one */
  profile?: string;
  /** root filesystem: `host`, or the name or digest of an image */
  image?: string;
  /** egress needs IP forwarding on the host; host is only for profiles that have it; one of off, egress, host */
  network?: "off" | "egress" | "host";
  /**
   * allowed destinations: CIDR or host name, optionally protocol (tcp, udp or any; default tcp) and ports
   * (default all), for example 203.0.113.0/24 tcp 443 8000-8100; empty allows none, default those of the
   * profile
   */
  network_rules?: string[];
  /**
   * with egress and host name rules: check the host name (TLS SNI, HTTP Host) of TCP connections to ports 80
   * and 443 against the rules; default that of the profile
   */
  network_strict?: boolean;
  /**
   * names of configured secrets. Programs get a placeholder in their environment; the value is inserted into
   * the headers of HTTPS requests to the hosts of each secret. Needs egress and host name rules that allow
   * these hosts; the session is strict
   */
  secrets?: string[];
  /**
   * BUCKET or BUCKET/PREFIX: a configured bucket, and a path there, by default the id of the session. The
   * output directory of every execution with output_version is pushed to BUCKET/PREFIX/VERSION when it has
   * ended; see pushed of the session and the events push.done and push.failed
   */
  push?: string;
  /**
   * false lets programs change the root filesystem, for this session only and within workspace_quota; beside
   * a named workspace, that quota is for these changes alone
   */
  read_only_root?: boolean;
  /**
   * true keeps the home directory on disk, within workspace_quota, instead of in memory; a stopped session
   * keeps it
   */
  home_on_disk?: boolean;
  /**
   * name of the user that programs run as (uid 1000): in /etc/passwd and /etc/group, and in USER and LOGNAME
   * unless [env] of box.toml says otherwise; neither root nor nobody; default: the profile's, which is box
   * unless configured
   */
  user_name?: string;
  /**
   * home directory of that user, in the box, and HOME unless [env] of box.toml says otherwise: writable, with
   * /tmp within its limit; under a read-only root it covers what an image has in /home, unless the image has
   * that directory; default: the profile's, which is /home/box unless configured
   */
  home?: string;
  rlimits?: Rlimits;
  /** size of /tmp, /run, /dev/shm and the home directory together */
  tmp?: Size;
  /**
   * named workspace to mount at /workspace, which outlives the session; default a new one that is removed
   * with it
   */
  workspace?: string;
  /** named workspaces to mount read-only */
  inputs?: Input[];
  mounts?: Mount[];
  /** skills to mount; those that do not exist are reported as missing, without an error */
  skills?: string[];
  /** drives to mount, NAME or NAME@VERSION */
  drives?: string[];
  env?: Environment;
  labels?: Labels;
  metadata?: Metadata;
  /** maximum wait for room, at most queue.wait */
  wait?: Duration;
  /** entries of env that are not UTF-8 */
  base64?: InBase64;
}

/** Omitted fields do not change. */
export interface SessionChange extends LimitsPatch {
  /**
   * with egress, as at creation: connections that the new rules forbid are closed, and host names must be
   * resolved again; empty allows none
   */
  network_rules?: string[];
  labels?: Labels;
  /** replaces all metadata of the session; an empty object removes it */
  metadata?: Metadata;
}

/** Variables by name. Their values do not appear in answers, records, logs or errors. */
export type Environment = Record<string, string>;

/** Labels, chosen by the caller. Names and values have at most 256 bytes. */
export type Labels = Record<string, string>;

/**
 * Texts by name that boxd keeps with the session and does not interpret. Names have at most 256 bytes, all
 * names and values together at most 64 KiB.
 */
export type Metadata = Record<string, string>;

/** Fields that are not UTF-8, in base64; each replaces the field of the same name. */
export interface InBase64 {
  argv?: string[];
  command?: string;
  code?: string;
  cwd?: string;
  /** entries NAME=value, in addition to the other field */
  env?: string[];
}

/**
 * Resource limits of every process (getrlimit(2)) by name, SOFT:HARD or one value for both: as, core, cpu
 * (seconds), data, fsize, memlock, msgqueue, nice, nofile, nproc, sigpending, stack. At most the hard limits
 * of the profile.
 */
export type Rlimits = Record<string, string>;

/** Variables of the template. Others are ignored. */
export type Variables = Record<string, string>;

/** A host directory in the box. The allowed directories are configured (mounts.allow). */
export interface Mount {
  /** host directory */
  source: string;
  /** the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then */
  source_base64?: string;
  /** any path in the box that it does not need itself; missing directories are created */
  target: string;
  /** the path in base64, if it is not UTF-8: in a request in place of target, which is empty then */
  target_base64?: string;
  /** default that of the profile; one of ro, rw, none */
  mode?: "ro" | "rw" | "none" | (string & {});
  /** root only: host uid that owns files created by the box */
  owner?: number;
  /** do not follow symbolic links in the directory */
  nosymfollow?: boolean;
}

export interface MountRequest {
  /** host directory */
  source: string;
  /** the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then */
  source_base64?: string;
  /** path in the box */
  target: string;
  /** the path in base64, if it is not UTF-8: in a request in place of target, which is empty then */
  target_base64?: string;
  /** default that of the profile; one of ro, rw, none */
  mode?: "ro" | "rw" | "none";
  /** root only: host uid that owns files created by the box */
  owner?: number;
  /** do not follow symbolic links in the directory */
  nosymfollow?: boolean;
  /** replace another mount at the target */
  replace?: boolean;
}

export interface Instructions {
  /** id of an existing session */
  session?: string;
  profile: string;
  /** one fact per line */
  instructions: string;
}

export interface MountList {
  mounts: SessionMount[];
}

export interface SessionMount {
  /** host directory */
  source: string;
  /** the directory in base64, if it is not UTF-8: in a request in place of source, which is empty then */
  source_base64?: string;
  /** path in the box */
  target: string;
  /** the path in base64, if it is not UTF-8: in a request in place of target, which is empty then */
  target_base64?: string;
  /** default that of the profile; one of ro, rw, none */
  mode: "ro" | "rw" | "none" | (string & {});
  /** root only: host uid that owns files created by the box */
  owner?: number;
  /** do not follow symbolic links in the directory */
  nosymfollow?: boolean;
  /** added to the running session, and removable */
  live: boolean;
  since?: string;
  /** mount attributes reported by the kernel, if live */
  attributes?: ("ro" | "rw" | "nosuid" | "nodev" | "noexec" | "nosymfollow" | (string & {}))[];
}

/** A user of a busy mount. */
export interface MountUser {
  /** pid in the box; absent if the user is another mount */
  pid?: number;
  /** program name, as reported by the program itself */
  program?: string;
  /** cwd, root, exe, map, mount, or a file descriptor number */
  how: string;
  /** path in the box */
  path: string;
}

export interface SessionDefinition {
  /** a SessionRequest with every setting; max_lifetime is what is left of it */
  session: Record<string, unknown>;
  /**
   * digest of its image, which can have another one under its name elsewhere; absent if the box has the
   * programs of the host
   */
  image_digest?: string;
  /**
   * a ProcessRequest by id, for processes with the restart policy `always`, which a stopped session has when
   * it starts again
   */
  processes: Record<string, Record<string, unknown>>;
  /** directories in the box whose files are on disk and the session's own: get an archive of each */
  paths: string[];
  /** what the session has besides, in words: for example changes to the root filesystem, and snapshots */
  left_out: string[];
}

export interface SessionStart {
  /** maximum wait for room, at most queue.wait */
  wait?: Duration;
}

export interface Session extends Limits, Lifetime {
  id: string;
  owner: string;
  owner_uid: number;
  /** one of starting, ready, stopping, stopped, frozen, unhealthy, ending, ended */
  state: "starting" | "ready" | "stopping" | "stopped" | "frozen" | "unhealthy" | "ending" | "ended" | (string & {});
  profile: string;
  image: string;
  hostname: string;
  network: string;
  network_rules?: string[];
  network_strict?: boolean;
  /** concurrent connections with egress; absent if unlimited or set by the configuration */
  network_connections?: number;
  /** bytes per second and direction; absent if unlimited */
  network_bandwidth?: Bytes;
  /** names of its secrets */
  secrets?: string[];
  /** bucket and path that results go to; absent if none */
  push?: string;
  read_only_root: boolean;
  /** absent if false */
  home_on_disk?: boolean;
  /** name of the user that programs run as */
  user_name: string;
  /** home directory of that user */
  home: string;
  mounts: Mount[];
  /** named workspaces mounted read-only; absent if none */
  inputs?: Input[];
  /** its named workspace; absent if it has one of its own */
  workspace_name?: string;
  /** its skills, and requested ones that do not exist; absent if none */
  skills?: SessionSkill[];
  /** its drives; absent if none */
  drives?: SessionDrive[];
  /** names only */
  env: string[];
  labels?: Record<string, string>;
  /** absent if none; in lists only if asked for */
  metadata?: Record<string, string>;
  /**
   * What enforces each limit on this host; "host" is a host directory as workspace, limited by its filesystem
   * only.
   */
  enforcement: Record<string, "cgroup2" | "project-quota" | "store" | "tmpfs" | "rlimit" | "host" | "none" | (string & {})>;
  created_at: string;
  last_used_at: string;
  /** end of its idle timeout, or removal of a stopped session */
  expires_at?: string;
  /** only if it is stopped */
  stopped_at?: string;
  /** running executions */
  running: number;
  executions: number;
  /** host pid of its PID 1 */
  pid?: number;
  /** first of its host uids */
  id_base?: number;
  /** path of its cgroup on the host */
  group?: string;
  /** values lowered by a policy */
  clamped?: Clamp[];
  /** in the answer about one session and in lists on request, if it has cgroups */
  usage?: SessionUsage;
  /** in the answer about one session, if it has push */
  pushed?: Pushed;
  /** in the answer about one session, if it has a network */
  traffic?: Traffic;
  /** in the answer about one session and in lists on request, if it has a quota */
  workspace?: Quota;
}

/** Usage of a filesystem or directory. */
export interface Quota {
  /** one of workspace, tmp */
  kind: "workspace" | "tmp" | (string & {});
  used: Bytes;
  limit: Bytes;
  files: number;
  files_limit: number;
  /** it is full */
  hit: boolean;
}

/** Results of a session that go to a bucket, counted by versions of outputs. */
export interface Pushed {
  /** to be read, sent, or sent again */
  waiting: number;
  done: number;
  /** not sent for three days; they stay in the drive push/BUCKET */
  given_up: number;
  /** error of the last try of one that is not there */
  error?: string;
}

/** Network traffic of a session since its creation, headers included. */
export interface Traffic {
  /** addresses of the box */
  addresses: string[];
  received: Bytes;
  received_packets: number;
  sent: Bytes;
  sent_packets: number;
  /** packets that no rule allowed; events of type denied have the destinations */
  denied_packets: number;
}

/** Resource usage of all programs of a session. */
export interface SessionUsage {
  cpu_ms: number;
  /** time throttled by the CPU limit */
  throttled_ms: number;
  memory: Bytes;
  memory_peak: Bytes;
  swap: Bytes;
  pids: number;
  io_read: Bytes;
  io_write: Bytes;
  oom_kills: number;
  pressure: Pressure;
}

/** PSI some avg10: percentage of the last ten seconds in which a program waited for the resource. */
export interface Pressure {
  cpu: number;
  memory: number;
  io: number;
}

/**
 * What a session has used lately. A session without cgroups has only samples of its workspace, and none
 * without a quota of that either.
 */
export interface UsageHistory {
  /** approximate time between two samples */
  interval: DurationText;
  /** how long samples are kept; `0s`: no samples are taken (`usage.history` of box.toml) */
  kept: DurationText;
  /** oldest first */
  samples: UsageSample[];
}

export interface UsageSample {
  at: string;
  /** if the session has cgroups */
  usage?: SampledUsage;
  /** if the workspace has a quota */
  workspace?: WorkspaceUsage;
}

/** Resource usage of all programs of a session at a time. A session that was stopped begins again with zero. */
export interface SampledUsage {
  cpu_ms: number;
  /** percentage of one CPU since the previous sample; in the first, since the session was created */
  cpu_percent: number;
  memory: Bytes;
  swap: Bytes;
  pids: number;
  io_read: Bytes;
  io_write: Bytes;
  pressure: Pressure;
}

export interface WorkspaceUsage {
  used: Bytes;
  files: number;
}

export interface SessionList {
  sessions: Session[];
  /** if there are more: the value of `after` for the next page */
  next?: string;
}

/** Set exactly one of argv, command and code. */
export interface ExecRequest {
  /** makes it a process with this id: it outlives the caller until its timeout, and never runs twice */
  id?: string;
  /** answer without waiting for the end; needs an id */
  detach?: boolean;
  /** answer with a Plan and run nothing */
  dry_run?: boolean;
  /** program and arguments */
  argv?: string[];
  /** shell command */
  command?: string;
  /** code in `language` */
  code?: string;
  /** configured language (languages) */
  language?: string;
  env?: Environment;
  /**
   * any directory that the box user can enter; created if it does not exist and is below the home directory,
   * /workspace, /tmp, /mnt, /data, /srv, /opt, /media, /app, /work, /src or /code
   */
  cwd?: string;
  /** do not make a missing cwd, but answer with the status start_failed */
  cwd_must_exist?: boolean;
  /** default that of the profile; lowered to its max_timeout, see clamped */
  timeout?: Duration;
  /** for this execution, within those of the session */
  cpus?: number;
  /** for this execution, within that of the session */
  memory?: Size;
  /** for this execution, within those of the session */
  pids?: number;
  rlimits?: Rlimits;
  /**
   * root: run it with the rights of root over the files of the box, in a session whose root can be written to
   * (read_only_root false); otherwise the name of the box user, which is the default
   */
  user?: string;
  /** data for standard input; not in a stream */
  stdin?: string;
  /** one of utf-8, base64 */
  stdin_encoding?: "utf-8" | "base64";
  /** maximum wait for another execution of the session to end, at most queue.wait */
  wait?: Duration;
  /**
   * make standard error the pipe of standard output: all output arrives as stdout, in the order of the
   * writes, and stderr stays empty; not with a terminal
   */
  merge_output?: boolean;
  /** maximum bytes kept of each stream, from its start and its end */
  output_limit?: Size;
  /**
   * with an id only: keep up to this many bytes of each stream on the disk of the workspace, within its
   * quota, to be read from the logs of the process; the answer has no more than output_limit
   */
  spool?: Size;
  /** encoding of stdout and stderr in the answer; one of utf-8, base64 */
  encoding?: "utf-8" | "base64";
  /** fields that are not UTF-8 */
  base64?: InBase64;
  /**
   * creates /workspace/output/VERSION and sets OUTPUT_DIR to it. 1 to 64 of a-z, A-Z, 0-9, ., _ and -,
   * starting with a letter, a digit or _
   */
  output_version?: string;
  /**
   * list created, changed and removed files of the workspace in the answer; not with detach. A request that
   * joins an existing execution gets unknown
   */
  changes?: boolean;
  /** filter for these changes */
  changes_with?: ChangesWith;
}

/** Filter for changes. Globs match paths in the workspace, or names if they contain no slash. */
export interface ChangesWith {
  /** list only matching paths */
  include?: string[];
  /** skip matching paths, and everything below matching directories */
  exclude?: string[];
  /** maximum size of listed files; 0, the default, is unlimited */
  max_size?: Size;
  /** maximum number of listed changes, at most 20000; default 1000 */
  limit?: number;
  /** include digests of the listed files, within files.max_search */
  digest?: boolean;
}

export interface OneShotRequest {
  session?: SessionRequest;
  exec: ExecRequest;
}

export interface ExecResult {
  session: string;
  /**
   * canceled: it was killed because its caller disconnected or its grace period was over; lost: its box is
   * gone and the result unknown; start_failed: it never ran, see failure. ; one of exited, signaled,
   * timed_out, oom_killed, canceled, lost, start_failed
   */
  status: "exited" | "signaled" | "timed_out" | "oom_killed" | "canceled" | "lost" | "start_failed" | (string & {});
  /** with exited */
  exit_code?: number;
  /** with signaled */
  signal?: string;
  /**
   * pid that it had in the box; absent for executions without an id that are no stream, and for what has not
   * started
   */
  pid?: number;
  /** in utf-8, invalid bytes are replaced by U+FFFD */
  stdout: string;
  stderr: string;
  /** totals of stdout and stderr */
  output: Total[];
  duration_ms: number;
  usage: Usage;
  /** number of background processes killed */
  leftovers_killed: number;
  /** its timeout; 0s is none */
  timeout: DurationText;
  clamped?: Clamp[];
  /** with start_failed */
  failure?: StartFailure;
  /** if a process of it was killed for lack of memory, with any status */
  oom?: OOM;
  /** filesystems that were full at its end, with any status */
  quota?: Quota[];
  /** if requested */
  changes?: Changes;
}

/**
 * Changes of the workspace by an execution, from a scan before and after it. Files created and removed in
 * between are not included; a moved file is removed and created. Paths are relative to the workspace and
 * sorted. Of more than ten thousand files all are counted and the first ones listed, up to the limit.
 */
export interface Changes {
  created: File[];
  /** changed content or permissions, or replaced files */
  changed: File[];
  removed: RemovedFile[];
  /** counts of all changes, listed or not */
  counts: ChangeCounts;
  /** there are more than the limit; the first ones by path are listed */
  truncated?: boolean;
  /** number of files above max_size, which are not listed */
  too_large?: number;
  /** number of directories that the box user cannot read */
  unreadable?: number;
  /** nothing else ran in the session, and no other session uses the workspace: the execution made all changes */
  exact: boolean;
  /** why changes are unknown; the lists are then empty */
  unknown?: string;
}

export interface RootDiff {
  /** maximum number of listed changes; default 1000 */
  limit?: number;
}

export interface RootDiscard {
  /** absolute paths to revert; default all */
  paths?: string[];
}

/** A directory counts as one, with its content. */
export interface RootDiscarded {
  /** number of removed paths, which the image does not have */
  removed: number;
  /** number of paths restored from the image */
  restored: number;
}

/** All paths, or a problem. */
export interface ArchiveRequest {
  /** directory; default /workspace */
  path?: string;
  path_base64?: string;
  /** paths relative to it */
  paths?: string[];
  /** paths that are not UTF-8 */
  paths_base64?: string[];
}

export interface ChangeCounts {
  created: number;
  changed: number;
  removed: number;
}

/** State in the image. */
export interface RemovedFile {
  path: string;
  path_base64?: string;
  /** as in File */
  type: string;
  size: number;
}

export interface Total {
  /** bytes written */
  bytes: number;
  /** bytes omitted from the answer, at a line that says so */
  omitted?: number;
}

/** Peaks and io need cgroups. */
export interface Usage {
  user_ms: number;
  system_ms: number;
  /** of its largest process */
  max_rss: Bytes;
  memory_peak?: Bytes;
  pids_peak?: number;
  io_read?: Bytes;
  io_write?: Bytes;
}

/** The effect of a request, without doing it. Whether a mount source exists is only known at a start. */
export interface Plan {
  /** always true */
  dry_run: boolean;
  /** policy table of the caller in box.toml */
  policy?: string;
  /** a session with this id exists, and the request would get it */
  exists: boolean;
  /** the session after profile and policy are applied */
  session?: PlannedSession;
  exec?: PlannedExec;
  /** what enforces each limit */
  enforcement?: Record<string, string>;
  clamped?: Clamp[];
  /** the problem that would be the answer */
  refused?: Problem;
}

/** Settings of a planned session. */
export interface PlannedSession extends Limits, Lifetime {
  /** absent if it would be random */
  id?: string;
  profile: string;
  image: string;
  network: string;
  network_rules?: string[];
  network_strict?: boolean;
  network_connections?: number;
  network_bandwidth?: Bytes;
  /** names of its secrets */
  secrets?: string[];
  /** bucket and path that results go to; absent if none */
  push?: string;
  read_only_root: boolean;
  /** absent if false */
  home_on_disk?: boolean;
  /** name of the user that programs run as */
  user_name: string;
  /** home directory of that user */
  home: string;
  mounts: Mount[];
  skills?: string[];
  drives?: string[];
  /** names only */
  env: string[];
}

/** A planned execution, without input, and without code above the size of an argument. */
export interface PlannedExec {
  argv: string[];
  cwd: string;
  /** names only */
  env: string[];
  timeout: DurationText;
  output_limit: Bytes;
  /** maximum bytes of each stream on disk */
  spool?: Bytes;
  /** own limit; 0: that of the session */
  cpus: number;
  memory: Bytes;
  pids: number;
}

export interface UsageList {
  /** policy table of the caller in box.toml */
  policy?: string;
  /** current amounts of everything the policy limits */
  holdings: Holding[];
  days: UsageDays[];
}

export interface Holding {
  /** key of box.toml, for example policy.ci.sessions */
  rule: string;
  used: number;
  allowed: number;
}

/** Usage of one principal on one day. */
export interface UsageDays {
  /** day in UTC */
  day: string;
  principal: string;
  /** executions and process starts */
  executions: number;
  /** requests denied by policy */
  refused: number;
  /** sessions created */
  sessions: number;
  /** lifetime of all sessions together */
  session_seconds: number;
  cpu_seconds: number;
  /** memory limits of sessions, multiplied by time */
  memory_byte_hours: number;
  /** content of workspaces with a quota, multiplied by time */
  disk_byte_hours: number;
}

/** A value that was lowered. */
export interface Clamp {
  field: string;
  /** requested value, or that of the profile */
  asked: string;
  got: string;
  /** rule, a key of box.toml */
  by?: string;
}

export interface OOM {
  kills: number;
  /** limit that was reached */
  limit: Bytes;
  /**
   * whose limit: execution, session, owner (all sessions together), or process (without cgroups); one of
   * execution, session, owner, process
   */
  of: "execution" | "session" | "owner" | "process" | (string & {});
  /** with process: no process was killed, but allocations seem to have failed (MemoryError, or a signal) */
  sign?: string;
  /** peak memory, if known */
  peak?: Bytes;
  /** processes killed by the kernel, if known from its log */
  victims?: string[];
}

/** The step of a failed start, its object and the error of the kernel. */
export interface StartFailure {
  step: string;
  item?: string;
  errno: string;
  text: string;
  /** what to do, if known */
  hint?: string;
}

/** Set exactly one of argv, command and code. */
export interface ProcessRequest {
  argv?: string[];
  command?: string;
  code?: string;
  language?: string;
  env?: Environment;
  /** as for an execution */
  cwd?: string;
  /** do not make a missing cwd, but answer with the status start_failed */
  cwd_must_exist?: boolean;
  /** timeout of each start; default none */
  timeout?: Duration;
  /** fields that are not UTF-8 */
  base64?: InBase64;
  cpus?: number;
  memory?: Size;
  pids?: number;
  rlimits?: Rlimits;
  /** root, or the name of the box user (default), as for an execution */
  user?: string;
  /** use a terminal instead of pipes */
  terminal?: Terminal;
  /** open standard input for clients of its stream */
  stdin?: boolean;
  /**
   * direct: pass the file descriptors of standard input, output and error to a client, see …/stdio. boxd
   * does not see the data, so terminal, stdin, merge_output, output, spool, ready.line and restart are
   * refused. ; one of direct
   */
  stdio?: "direct";
  /**
   * make standard error the pipe of standard output: all output arrives as stdout, in the order of the
   * writes, and stderr stays empty; not with terminal or stdio
   */
  merge_output?: boolean;
  /** default never */
  restart?: Restart;
  /** default: ready when it runs */
  ready?: Ready;
  stop?: Stop;
  /**
   * Stops the process after this time without an attached client or a renewal; default never. With stdio
   * direct it starts when the descriptors are taken, and only renewals count.
   */
  lease?: Duration;
  /** minimum size of output kept of each stream; default 1 MiB */
  output?: Size;
  /**
   * instead of output: maximum size of output kept of each stream on the disk of the workspace, within its
   * quota and processes.max_spool. Where the disk is full, the oldest output of the stream is dropped, then
   * new output; the program goes on, and readers get gaps
   */
  spool?: Size;
  labels?: Labels;
}

export interface PortTokenRequest {
  /** at most sessions.preview_max; default 15m, or that */
  lifetime?: string;
}

/** A token for a preview. */
export interface PortToken {
  token: string;
  /** host name of the preview */
  host: string;
  /** URL for a browser on this host; absent if boxd has no HTTP socket */
  url?: string;
  expires_at: string;
}

/** Size of a terminal in characters. */
export interface Terminal {
  rows: number;
  cols: number;
}

/** Restart policy. */
export interface Restart {
  /** on-failure: any end but exit code 0 or a stop; one of no, on-failure, always */
  policy?: "no" | "on-failure" | "always" | (string & {});
  /** delay before the first restart, doubled for each further one; default 100ms */
  delay?: Duration;
  /** default 30s */
  max_delay?: Duration;
  /** this many restarts within window are a crash loop, which ends the restarts; default 5; 0 is unlimited */
  limit?: number;
  /** default 1m */
  window?: Duration;
}

/** Readiness check: one of line, port and command. */
export interface Ready {
  /** ready when an output line matches this regular expression (RE2) */
  line?: string;
  /** ready when this TCP port on the loopback of the box accepts connections */
  port?: number;
  /** ready when this command exits with 0; tried every second */
  command?: string[];
  /** end the program if it is not ready in time; default 1m */
  timeout?: Duration;
}

/** How to stop the program. */
export interface Stop {
  /** signal to its process group; default SIGTERM */
  signal?: string;
  /** time before it is killed; default 10s */
  grace?: Duration;
}

export interface SignalRequest {
  signal: string;
}

/** A process. An execution with an id is one too. */
export interface Process {
  id: string;
  session: string;
  /** waiting: before its next start; one of starting, running, waiting, stopping, ended */
  state: "starting" | "running" | "waiting" | "stopping" | "ended" | (string & {});
  ready: boolean;
  /**
   * pid in the box of its program, or of the last one, whose number another may have by now; absent if none
   * has run
   */
  pid?: number;
  /** total number of starts */
  starts: number;
  argv: string[];
  cwd: string;
  /** names only */
  env: string[];
  stdin: boolean;
  /** one of direct */
  stdio?: "direct" | (string & {});
  /** attached clients */
  readers: number;
  /** one of them may write */
  writer: boolean;
  terminal?: Terminal;
  timeout?: DurationText;
  restart: Restart;
  stop: Stop;
  lease?: DurationText;
  labels?: Record<string, string>;
  /** state of stdout and stderr */
  output: StreamState[];
  /** maximum size of each on disk; absent if they are kept in memory */
  spool?: Bytes;
  started_at: string;
  ended_at?: string;
  /** in state waiting */
  next_start?: string;
  /** end of its lease */
  expires_at?: string;
  /**
   * reason of the end, if it was not the program itself; one of stopped, lease, revoked, crash loop, not
   * ready, shutdown
   */
  reason?: "stopped" | "lease" | "revoked" | "crash loop" | "not ready" | "shutdown" | (string & {});
  clamped?: Clamp[];
  /** when it has ended; with output in the answer about this process only */
  result?: ExecResult;
}

export interface StreamState {
  /** total bytes written */
  bytes: number;
  /** offset of the oldest byte kept */
  from: number;
}

export interface ProcessList {
  processes: Process[];
}

/** A chunk of a stream as it was written. */
export interface LogLine {
  /** one of stdout, stderr */
  stream: "stdout" | "stderr" | (string & {});
  /** offset of its first byte in the stream */
  offset: number;
  /** approximate time of writing */
  time: string;
  data?: string;
  /** data is base64, because it is not UTF-8 */
  base64?: boolean;
  /** number of bytes no longer kept; without data */
  gap?: number;
}

/** A control message from the client, with one field. */
export interface ClientControl {
  start?: StreamStart;
  attach?: StreamAttach;
  signal?: string;
  resize?: Terminal;
  /** with the subprotocol boxd.forget, after the client has read exit */
  forget?: boolean;
}

/** The first message of an execution. */
export interface StreamStart {
  /** for /v1/exec/stream */
  session?: SessionRequest;
  exec: ExecRequest;
  /** standard input will follow */
  stdin?: boolean;
  /** use a terminal instead of pipes; all its output is stdout */
  terminal?: Terminal;
  /** how long a program with an id runs without a client; default until its timeout */
  lease?: Duration;
}

/** The first message to a process. */
export interface StreamAttach {
  /** number of bytes the client has; without stdout and stderr only new output is sent */
  stdout?: number;
  stderr?: number;
  /** start with the oldest output kept */
  replay?: boolean;
  /** become the writer of standard input */
  write?: boolean;
  /** replace another writer */
  take_over?: boolean;
  /**
   * a word of the client's own, by which it becomes the writer again after it has lost its connection;
   * replaces a writer of the same id
   */
  writer_id?: string;
  /** number of bytes of standard input sent in earlier streams; by default all input is new */
  stdin?: number;
  /** make the program wait for this client while it accepts data; default true for the writer */
  lossless?: boolean;
  /** messages of stdout and stdin are single lines without their end */
  lines?: boolean;
}

/** A control message from boxd, with one field. */
export interface ServerControl {
  started?: StreamStarted;
  /** bytes of standard input accepted */
  stdin_taken?: number;
  attached?: StreamAttached;
  gap?: StreamGap;
  /** another client is the writer now */
  writer_lost?: boolean;
  /** the program has ended */
  exit?: ExecResult;
  /** nothing was started, or the stream has failed */
  error?: Problem;
}

export interface StreamStarted {
  session: string;
  clamped?: Clamp[];
}

export interface StreamAttached {
  process: Process;
  /** offset of the next byte to be sent, or in a gap */
  stdout: number;
  stderr: number;
  /** bytes of standard input the process has received */
  stdin: number;
  writer: boolean;
}

export interface StreamGap {
  /** one of stdout, stderr */
  stream: "stdout" | "stderr" | (string & {});
  /** number of missing bytes */
  bytes: number;
  /**
   * only with attach.lines: a line over 16 MiB, or one that the program did not finish; without it the bytes
   * are no longer kept; one of long_line, unfinished_line
   */
  reason?: "long_line" | "unfinished_line" | (string & {});
}

/** Limits and defaults of a session. */
export interface Profile extends Limits, Lifetime {
  image: string;
  /** one of off, egress, host */
  network: "off" | "egress" | "host" | (string & {});
  network_rules: string[];
  network_strict: boolean;
  /** 0: network.connections */
  network_connections: number;
  /** bytes per second and direction; 0: network.bandwidth */
  network_bandwidth: Bytes;
  read_only_root: boolean;
  home_on_disk: boolean;
  /** name of the user that programs run as */
  user_name: string;
  /** home directory of that user */
  home: string;
  /** one of ro, rw, none */
  mounts: "ro" | "rw" | "none" | (string & {});
  /** skills for sessions that request none */
  skills: string[];
  /** for executions that set none */
  timeout: DurationText;
  max_timeout: DurationText;
  /** what to do with background processes of a command; one of kill, keep */
  leftovers: "kill" | "keep" | (string & {});
  /** freeze the session after this time without use; 0 is never */
  freeze_after: DurationText;
  /** number of boxes started in advance */
  warm: number;
  /** up to this many, following how many were used at once in the last ten minutes; 0: no more than warm */
  warm_max: number;
  /** fields that requests cannot change */
  locked: string[];
}

export interface Configuration {
  settings: Setting[];
}

export interface Setting {
  key: string;
  /** as in box.toml */
  value: string;
  /** file and line, variable, or built-in */
  origin: string;
}

export interface ProfileList {
  /** for sessions that name none */
  default: string;
  profiles: Record<string, Profile>;
}

export interface Status {
  version: string;
  started_at: string;
  sessions: number;
  max_sessions: number;
  /** stopped sessions, which are not among sessions */
  stopped: number;
  /** running processes of all sessions */
  processes: number;
  /** limit per session */
  max_processes: number;
  /** executions and processes */
  running: number;
  /** since the start of boxd */
  executed: number;
  control_groups: string;
  /** limits that may be missing (limits.best_effort) */
  best_effort: string[];
  /** those that are missing on this host */
  unenforced: string[];
  /** what enforces each limit on this host */
  enforced: Record<string, "cgroup2" | "project-quota" | "store" | "tmpfs" | "rlimit" | "none" | (string & {})>;
  /** current problems, as text */
  degraded: string[];
  /** off: drained; failed: no session can start; one of ok, degraded, off, failed */
  state: "ok" | "degraded" | "off" | "failed" | (string & {});
  /** who drained boxd, and why */
  off?: string;
  queue: Queue;
  /** boxes started in advance */
  warm: Warm[];
}

/** The queue of requests that wait for room. */
export interface Queue {
  /** requests for a session, of all callers */
  waiting: number;
  /** executions that wait for their session */
  executions: number;
  /** limit for each of the two */
  length: number;
  /** maximum wait */
  wait: DurationText;
  /** requests of the caller, or all for root; next first */
  places: Place[];
}

/** A waiting request for a session. */
export interface Place {
  /** id of the session */
  id: string;
  owner: string;
  /** 1 is next */
  position: number;
  /** one of sessions, owner, starts, disk, memory, pressure */
  reason: "sessions" | "owner" | "starts" | "disk" | "memory" | "pressure" | (string & {});
  since: string;
}

/** Boxes of a profile that were started in advance. */
export interface Warm {
  profile: string;
  ready: number;
  want: number;
}

export interface DrainRequest {
  /** reason, for people */
  reason?: string;
}

/** Who drained boxd. */
export interface Drain {
  by: string;
  since: string;
  reason?: string;
}

export interface Doctor {
  /** no check failed */
  ok: boolean;
  checks: Check[];
}

export interface Check {
  name: string;
  /** one of ok, warn, fail */
  level: "ok" | "warn" | "fail" | (string & {});
  detail: string;
  /** what to do */
  hint?: string;
}

/** A temporary role of a principal. */
export interface Grant {
  principal: string;
  /** one of viewer, user, operator, admin */
  role: "viewer" | "user" | "operator" | "admin" | (string & {});
  /** principal who granted it */
  by: string;
  created_at: string;
  until: string;
}

/** A root filesystem for sessions. */
export interface Image {
  name: string;
  /** digest of its manifest or equivalent: `sha256:…` */
  digest: string;
  /** format of the imported archive; `commit`: created from a session; one of oci, docker, rootfs, commit */
  form: "oci" | "docker" | "rootfs" | "commit" | (string & {});
  bytes: number;
  entries: number;
  /** number of devices and FIFOs that were skipped */
  left_out?: number;
  layers: number;
  /** number of sessions that use it */
  sessions: number;
  config: ImageConfig;
  /** time of the import */
  created_at: string;
}

/** Omitted fields have the values of the session's image. */
export interface ImageCommit {
  /** name; an existing image of this name loses it */
  name: string;
  env?: Environment;
  working_dir?: string;
  /** `[]` for none */
  entrypoint?: string[];
  /** `[]` for none */
  cmd?: string[];
}

/** Defaults of an image for programs. They always run as the box user, with its HOME, whatever `user` says. */
export interface ImageConfig {
  architecture?: string;
  env?: string[];
  working_dir?: string;
  user?: string;
  entrypoint?: string[];
  cmd?: string[];
}

export interface ImageList {
  images: Image[];
}

/** An instruction package for agents. */
export interface Skill {
  name: string;
  display_name: string;
  /** what it does and when to use it */
  description: string;
  license?: string;
  /** its requirements */
  compatibility?: string;
  allowed_tools?: string;
  metadata?: Record<string, string>;
  /** absent in lists */
  instructions?: string;
  /** SKILL.md or skill.md */
  entry_file: string;
  /** digest of all files: `sha256:…` */
  digest: string;
  /** source of the import */
  origin?: string;
  bytes: number;
  entries: number;
  python_project?: boolean;
  /** part of boxd */
  built_in?: boolean;
  created_at: string;
  updated_at: string;
  /** allowed, but not recommended */
  advice?: string[];
}

/** A named workspace that a session may read only. Mounted ro, nosuid, nodev and nosymfollow. */
export interface Input {
  /** its name */
  workspace: string;
  /** any path in the box, outside /workspace, that the box does not need itself; default /mnt/NAME */
  target?: string;
  /** the path in base64, if it is not UTF-8 */
  target_base64?: string;
}

export interface WorkspaceRequest {
  /** 1 to 64 of a-z, A-Z, 0-9, ., _ and -, starting with a letter, a digit or _ */
  name: string;
  quota?: Size;
  /** maximum files and directories; default that of the default profile */
  inodes?: number;
}

export interface Workspace {
  name: string;
  owner: string;
  created_at: string;
  quota: Bytes;
  /** 0: no quota */
  inodes: number;
  /** what enforces the quota; absent if it has none; one of project-quota, store, none */
  enforcement?: "project-quota" | "store" | "none" | (string & {});
  usage?: Quota;
  /** ids of sessions that use it */
  sessions: string[];
}

export interface SnapshotRequest {
  /**
   * New name, which no other snapshot of the session has: 1 to 64 of a-z, A-Z, 0-9, ., _ and -, the first a
   * letter, a digit or _.
   */
  name: string;
}

/** A snapshot of what a session has on disk. */
export interface Snapshot {
  name: string;
  created_at: string;
  /** how much of workspace_quota it uses */
  size: Bytes;
  /** files and directories */
  files: number;
}

export interface SnapshotList {
  snapshots: Snapshot[];
}

export interface WorkspaceKept {
  /** New name, which no other workspace of the owner has. */
  workspace: string;
}

/** Omitted fields do not change. */
export interface WorkspaceChange {
  quota?: Size;
  inodes?: number;
}

export interface WorkspaceList {
  workspaces: Workspace[];
}

export interface SkillList {
  skills: Skill[];
}

/** A versioned directory, newest version last. */
export interface Drive {
  /** owner/project */
  name: string;
  created_at: string;
  /** number of versions to keep; 0 is all; default drives.keep_versions */
  keep_versions?: number;
  /** maximum age of versions; 0 is any; default drives.keep_age */
  keep_age?: DurationText;
  /** keep versions until they are marked as pushed */
  push: boolean;
  versions: DriveVersion[];
}

export interface DriveVersion {
  version: number;
  /** digest of names, contents and executable bits */
  digest: string;
  /** session and directory of its files */
  origin?: string;
  bytes: number;
  entries: number;
  created_at: string;
  pushed_at?: string;
  /** number of sessions that use or have used it */
  sessions: number;
}

export interface DriveList {
  drives: Drive[];
}

/** Omitted fields do not change. */
export interface DriveChange {
  keep_versions?: number;
  keep_age?: Duration;
  push?: boolean;
}

export interface DrivePushed {
  version: number;
}

export interface DriveEntry {
  /** path in the drive */
  path: string;
  /** one of file, directory */
  type: "file" | "directory" | (string & {});
  size: number;
  sha256?: string;
  executable?: boolean;
}

export interface DriveIndex {
  version: DriveVersion;
  entries: DriveEntry[];
  /** offset of the next page; absent at the end */
  next?: number;
}

export interface DriveText {
  version: number;
  text: string;
}

/** A drive of a session. */
export interface SessionDrive {
  name: string;
  /** its path in the box */
  target: string;
  version: number;
  digest: string;
  since: string;
  /** mount attributes reported by the kernel */
  attributes?: string[];
  /** number of earlier versions, kept until the session ends */
  earlier?: number;
}

/** A skill of a session. A missing one was requested but does not exist; it has no target. */
export interface SessionSkill {
  name: string;
  /** its path in the box */
  target?: string;
  /** digest of the mounted version */
  digest?: string;
  since: string;
  /** mount attributes reported by the kernel */
  attributes?: string[];
  missing?: boolean;
}

export interface SkillEnvironmentRequest {
  /** variables for pip, in addition to those of the session: PIP_INDEX_URL, PIP_FIND_LINKS and others */
  env?: Environment;
  /** default: longest timeout of the profile */
  timeout?: Duration;
}

/** A Python virtual environment for a skill. */
export interface SkillEnvironment {
  /** its path in the box; the interpreter is bin/python */
  path: string;
  /** version of Python */
  python: string;
  /** created by this request; false if it existed */
  made: boolean;
}

export interface SkillRequest {
  /** 1 to 64 of a-z, 0-9 and single hyphens inside */
  name: string;
  display_name?: string;
  /** 1 to 1024 characters: what it does and when to use it */
  description: string;
  license?: string;
  /** at most 500 characters */
  compatibility?: string;
  allowed_tools?: string;
  metadata?: SkillMetadata;
  /** Markdown */
  instructions?: string;
}

/** Metadata, chosen by the author. */
export type SkillMetadata = Record<string, string>;

/** Omitted fields do not change; "" removes a text. */
export interface SkillChange {
  display_name?: string;
  description?: string;
  license?: string;
  compatibility?: string;
  allowed_tools?: string;
  /** replaces all metadata */
  metadata?: SkillMetadata;
  instructions?: string;
  /** required digest of the skill */
  if_match?: string;
}

export interface SkillIndexRequest {
  /** default all */
  names?: string[];
  /** directory in which they are mounted */
  location?: string;
}

export interface SkillIndex {
  text: string;
  /** requested, but not found */
  missing?: string[];
}

export interface SkillEntry {
  /** path in the skill */
  path: string;
  name: string;
  /** one of file, directory */
  type: "file" | "directory" | (string & {});
  size: number;
  executable?: boolean;
}

export interface SkillEntries {
  path: string;
  entries: SkillEntry[];
  truncated?: boolean;
}

export interface SkillFile {
  path: string;
  content: string;
  /** one of utf-8, base64 */
  encoding: "utf-8" | "base64" | (string & {});
  executable?: boolean;
  /** digest of the skill */
  digest: string;
}

export interface SkillFileWrite {
  path: string;
  content: string;
  /** one of utf-8, base64 */
  encoding?: "utf-8" | "base64";
  executable?: boolean;
  /** required digest of the skill */
  if_match?: string;
}

export interface SkillCandidates {
  candidates: SkillCandidate[];
}

export interface SkillCandidate {
  /** path in the archive, `.` for its root */
  path: string;
  skill: SkillDraft;
  /** errors that prevent the import */
  problems?: SkillProblem[];
}

export interface SkillDraft {
  name: string;
  description: string;
  instructions?: string;
  digest: string;
  bytes: number;
  entries: number;
  advice?: string[];
}

export interface SkillProblem {
  /** key of the front matter */
  key?: string;
  text: string;
}

export interface GrantList {
  grants: Grant[];
}

export interface GrantRequest {
  /** table `[principals.NAME]` of box.toml, or a user, `uid:1000` */
  principal: string;
  /** one of viewer, user, operator, admin */
  role: "viewer" | "user" | "operator" | "admin";
  /** 1s to 168h */
  for: Duration;
}

export interface Health {
  /** one of ok */
  status: "ok" | (string & {});
}

/** An event. Fields that do not apply are absent. */
export interface Event {
  /** position after the event */
  id: string;
  time: string;
  /**
   * one of session.started, session.failed, session.ended, session.frozen, session.thawed, session.stopped,
   * session.changed, session.adopted, session.unhealthy, exec.started, exec.ended, process.started,
   * process.ready, process.restarted, process.ended, denied, oom, quota, config.reloaded, config.refused,
   * daemon.started, daemon.stopping, audit.failed, audit.recovered, grant.changed, push.done, push.failed,
   * gap
   */
  type: "session.started" | "session.failed" | "session.ended" | "session.frozen" | "session.thawed" | "session.stopped" | "session.changed" | "session.adopted" | "session.unhealthy" | "exec.started" | "exec.ended" | "process.started" | "process.ready" | "process.restarted" | "process.ended" | "denied" | "oom" | "quota" | "config.reloaded" | "config.refused" | "daemon.started" | "daemon.stopping" | "audit.failed" | "audit.recovered" | "grant.changed" | "push.done" | "push.failed" | "gap" | (string & {});
  session?: string;
  /** owner of the session */
  owner?: string;
  /** principal of the request */
  principal?: string;
  process?: string;
  /** id of an execution, if it has one */
  exec?: string;
  profile?: string;
  /** one word: reason of the end, status, limit or layer */
  reason?: string;
  /** text for people; may change in any release */
  detail?: string;
  took_ms?: number;
  request?: string;
  traceparent?: string;
  /** only with type gap */
  gap?: Gap;
}

/** Reason for missing events. */
export interface Gap {
  /** boxd was restarted since the given id; events in between are unknown */
  restarted?: boolean;
  /** number of lost events, of all principals */
  missed?: number;
}

/** An error. Errors without a principal are of boxd itself. */
export interface RecentError {
  time: string;
  principal?: string;
  route?: string;
  session?: string;
  status?: number;
  /** last part of the problem type; warn or error for boxd itself */
  kind: string;
  detail: string;
  request?: string;
  traceparent?: string;
}

export interface ErrorList {
  errors: RecentError[];
}

/** A record of the audit log. Fields that do not apply are absent. */
export interface AuditRecord {
  seq: number;
  /** one of call, running, started, repaired, dropped, lost */
  kind: "call" | "running" | "started" | "repaired" | "dropped" | "lost" | (string & {});
  time: string;
  request?: string;
  traceparent?: string;
  principal?: string;
  uid?: number;
  /** process that connected, at that time */
  pid?: number;
  /** socket, tcp, or token: and its name */
  via?: string;
  route?: string;
  session?: string;
  /** owner of the session, if it is not the caller */
  owner?: string;
  process?: string;
  what?: AuditWhat;
  status?: number;
  /** done, failed, cut_off (the caller disconnected early), or the status of the program */
  outcome?: string;
  /** last part of the problem type */
  error?: string;
  detail?: string;
  took_ms?: number;
}

/** The request. Environment variables are names only. */
export interface AuditWhat {
  argv?: string[];
  /** digest of the arguments, each followed by a zero byte */
  argv_sha256?: string;
  argc?: number;
  env?: string[];
  mounts?: string[];
  profile?: string;
  /** other fields of the request */
  changes?: string[];
}

export interface AuditList {
  records: AuditRecord[];
  /** NUMBER:HASH of the last record */
  head: string;
  /** records are missing because of the limit of 16 MiB; filter by session, principal or request */
  cut?: boolean;
}

/** Part of a file to read: lines, or bytes if byte_offset is set. */
export interface FileRead {
  path?: string;
  path_base64?: string;
  /** first line, starting at 1; default 1 */
  offset?: number;
  /** number of lines; default 2000 */
  limit?: number;
  /** first byte, starting at 0 */
  byte_offset?: number;
  /** maximum bytes, at most files.max_content; default 51200 */
  max_bytes?: number;
  /** "utf-8" (default; text only) or "base64" */
  encoding?: string;
  /** include the digest of the whole file, up to files.max_content */
  digest?: boolean;
}

/** Part of a file. */
export interface FileContent {
  file: File;
  content: string;
  encoding: string;
  /** number of the first line, if any */
  start_line?: number;
  end_line?: number;
  /** next line; 0 at the end, or within a line */
  next_offset?: number;
  byte_offset: number;
  next_byte_offset: number;
  truncated?: boolean;
  /** "lines" or "bytes" */
  truncated_by?: string;
}

/** Metadata of a file, directory or other entry. */
export interface File {
  path: string;
  path_base64?: string;
  /** "file", "directory", "symlink", "fifo", "socket" or "device" */
  type: string;
  size: number;
  /** octal, for example "0644" */
  mode: string;
  modified_at: string;
  /** target of a symlink */
  target?: string;
  target_base64?: string;
  /** "sha256:…" */
  digest?: string;
  /** in answers of stat, list, mkdir, file and watch, as are all below */
  uid?: number;
  gid?: number;
  /** name of uid in the box's /etc/passwd */
  user?: string;
  /** name of gid in the box's /etc/group */
  group?: string;
  /**
   * what a symlink finally leads to: absolute, without symlinks; absent if that does not exist or is out of
   * reach
   */
  resolved?: string;
  resolved_base64?: string;
  /** type of what a symlink finally leads to */
  target_type?: string;
  target_mode?: string;
  /** extended attributes user.*, if requested; values in base64 */
  xattrs?: Record<string, string>;
  /** there are more than 64 KiB of them */
  xattrs_truncated?: boolean;
}

/** Content to write to a file. */
export interface FileWrite {
  path?: string;
  path_base64?: string;
  content: string;
  /** encoding of content: "utf-8" (default) or "base64" */
  encoding?: string;
  /** "overwrite" (default, atomic), "append" or "create" */
  mode?: string;
  /** do not create missing directories */
  no_parents?: boolean;
  /** octal; default those of the existing file, "0644" for a new one */
  permissions?: string;
  /** required digest of the existing file */
  if_match?: string;
  /** begins with user.; the extended attributes with this prefix become those of xattrs */
  xattrs_prefix?: string;
  xattrs?: Xattrs;
}

/** Extended attributes by whole name, values in base64. */
export type Xattrs = Record<string, string>;

/** Directory to create. */
export interface FileMkdir {
  path?: string;
  path_base64?: string;
  /** octal; default "0755" */
  mode?: string;
  /** do not create missing parents */
  no_parents?: boolean;
  /** leave an existing directory as it is instead of failing */
  exist_ok?: boolean;
}

/** Something that happened in a watched directory. */
export interface FileEvent {
  /** "watching", "create", "write", "remove", "rename", "chmod", "overflow" or "error" */
  event: string;
  /** relative to the watched directory; "." is the directory itself */
  path?: string;
  path_base64?: string;
  /** in create: former path, if it was renamed within the watched directories */
  from?: string;
  from_base64?: string;
  /** as in File; absent for a removed or renamed entry that is not a directory */
  type?: string;
  file?: File;
  problem?: Problem;
}

/** A file after writing, or a new directory. */
export interface FileWritten {
  file: File;
  created?: boolean;
}

/** Edits of a text file: all of them in order, or none. */
export interface FileEdit {
  path?: string;
  path_base64?: string;
  edits: FileReplacement[];
  if_match?: string;
}

/** One edit: old must occur exactly once, or with all at least once. */
export interface FileReplacement {
  old: string;
  new: string;
  all?: boolean;
}

/** A file after editing, with the result of each edit. */
export interface FileEdited {
  file: File;
  edits: FileReplaced[];
}

/** Number of replacements of an edit, and the line of the first. */
export interface FileReplaced {
  count: number;
  line: number;
}

/** Files to find by name pattern, newest first. */
export interface FileGlob {
  /** glob with *, **, ?, [a-z] and {a,b} */
  pattern: string;
  path?: string;
  path_base64?: string;
  /** default 100 */
  limit?: number;
  /** include files ignored by .gitignore, and .git, node_modules, dist and others */
  no_ignore?: boolean;
  /** "time" (default) or "name" */
  sort?: string;
}

/** Directory to list, by name. */
export interface FileList {
  /** default /workspace */
  path?: string;
  path_base64?: string;
  /** default 1: the directory only */
  depth?: number;
  /** default 1000 */
  limit?: number;
  /** include extended attributes */
  xattrs?: boolean;
}

/** Files, with paths relative to the requested one. */
export interface FileEntries {
  entries: File[];
  truncated?: boolean;
}

/** Pattern to search for in text files. */
export interface FileGrep {
  /** regular expression (RE2) */
  pattern: string;
  path?: string;
  path_base64?: string;
  /** pattern is plain text */
  literal?: boolean;
  ignore_case?: boolean;
  /** globs; those without a slash match names */
  include?: string[];
  exclude?: string[];
  /** as in FileGlob */
  no_ignore?: boolean;
  /** lines of context before */
  before?: number;
  after?: number;
  names_only?: boolean;
  /** maximum lines, or names; default 200 */
  limit?: number;
}

/** Matches by file, sorted by path. */
export interface FileMatches {
  files: FileMatch[];
  /** number of lines, or names */
  matches: number;
  /** number of files searched */
  searched: number;
  /** number of files skipped: binary, too large or unreadable */
  skipped: number;
  truncated?: boolean;
  /** "lines" (limit), "files" (files.max_entries) or "bytes" (files.max_search, or the answer) */
  truncated_by?: string;
}

/** Matches in one file. */
export interface FileMatch {
  path: string;
  path_base64?: string;
  lines?: FileLine[];
}

/** A line of a file, at most 500 bytes. Invalid UTF-8 is replaced by U+FFFD. */
export interface FileLine {
  line: number;
  /** byte position of the match, starting at 1; absent for context lines */
  column?: number;
  text: string;
  cut?: boolean;
}

/** Path to describe. */
export interface FileStat {
  path?: string;
  path_base64?: string;
  /** describe a symbolic link itself */
  no_follow?: boolean;
  digest?: boolean;
  /** include extended attributes */
  xattrs?: boolean;
}

/** Rename a file or directory. */
export interface FileMove {
  from?: string;
  from_base64?: string;
  to?: string;
  to_base64?: string;
  overwrite?: boolean;
  no_parents?: boolean;
}

/** Remove a file or directory. */
export interface FileRemove {
  path?: string;
  path_base64?: string;
  /** remove a directory with its content */
  recursive?: boolean;
  /** succeed if it does not exist */
  missing_ok?: boolean;
}

/** Change the mode of a file or directory. */
export interface FileChmod {
  path?: string;
  path_base64?: string;
  /** octal number up to 777 */
  mode: string;
}

/** Success without a result. */
export interface FileDone {
  ok: boolean;
}

/** An unpacked archive. */
export interface ArchiveDone {
  entries: number;
  bytes: number;
}

/** A file error. Kind is a word such as "not_found", "not_unique" or "binary". */
export interface FileFailure {
  kind: string;
  path?: string;
  path_base64?: string;
}

/** An error (RFC 9457). */
export interface Problem {
  /**
   * Stable, for programs; all types are listed here.; one of urn:boxd:problem:internal,
   * urn:boxd:problem:invalid, urn:boxd:problem:not_found, urn:boxd:problem:conflict, urn:boxd:problem:denied,
   * urn:boxd:problem:exhausted, urn:boxd:problem:unsupported, urn:boxd:problem:unauthenticated,
   * urn:boxd:problem:unavailable
   */
  type: "urn:boxd:problem:internal" | "urn:boxd:problem:invalid" | "urn:boxd:problem:not_found" | "urn:boxd:problem:conflict" | "urn:boxd:problem:denied" | "urn:boxd:problem:exhausted" | "urn:boxd:problem:unsupported" | "urn:boxd:problem:unauthenticated" | "urn:boxd:problem:unavailable" | (string & {});
  title: string;
  status: number;
  /** one sentence for people; may change in any release */
  detail: string;
  /** invalid field, as named in the request; several fields are separated by commas */
  field?: string;
  /** given value, shortened */
  value?: string;
  /** allowed values */
  allowed?: string;
  /** what to do next */
  hint?: string;
  /** rule that denied the request */
  denial?: Denial;
  /** caller, if the request was denied */
  by?: string;
  file?: FileFailure;
  /** users of a busy mount, at most 16 */
  users?: MountUser[];
  /** step of the start that failed */
  failure?: StartFailure;
}

/** The rule that denied a request, and the setting that would allow it. */
export interface Denial {
  /** one of policy, mount, network, quota, seccomp, limit */
  layer: "policy" | "mount" | "network" | "quota" | "seccomp" | "limit" | (string & {});
  /** key of box.toml, for example policy.ci.sessions */
  rule: string;
  /** current amount */
  used?: string;
  allowed?: string;
  /** setting that would allow it, for operators */
  setting?: string;
  /** seconds until a retry can succeed, if known */
  retry_after?: number;
}
