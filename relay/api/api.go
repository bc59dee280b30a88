// SPDX-License-Identifier: Apache-2.0

// Package api is the wire contract of boxd: the JSON of /v1, the frames of its streams.
//
// Sizes are bytes, given as a number or as text such as "512MiB"; durations are text such as "30s",
// and a number of seconds is accepted. A request with a field that is not here is refused, and so is a
// list or map of more elements than its tag max says.
package api

import (
	"time"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
)

// SessionRequest asks for a session: the body of POST /v1/sessions. What is left out takes the
// profile's value.
type SessionRequest struct {
	ID string `json:"id,omitempty"`
	// Template makes the id of Variables: a preset such as "per_chat", or a text such as "{chat}_{user:nobody}".
	Template  string            `json:"template,omitempty"`
	Variables map[string]string `json:"variables,omitempty" max:"64"`
	// DryRun answers with a Plan, and makes nothing.
	DryRun        bool     `json:"dry_run,omitempty"`
	Profile       string   `json:"profile,omitempty"`
	Image         *string  `json:"image,omitempty"`
	Network       *string  `json:"network,omitempty"`
	NetworkRules  []string `json:"network_rules,omitzero" max:"64"` // where programs may connect to; [] is nowhere
	NetworkStrict *bool    `json:"network_strict,omitempty"`        // what connects to names is looked at
	Secrets       []string `json:"secrets,omitempty" max:"8"`       // names; programs have placeholders, and only strict sessions have any
	Push          string   `json:"push,omitempty"`                  // BUCKET/PREFIX: results of executions with an output_version go there
	ReadOnlyRoot  *bool    `json:"read_only_root,omitempty"`
	HomeOnDisk    *bool    `json:"home_on_disk,omitempty"` // within workspace_quota; a session that is stopped keeps it then
	UserName      *string  `json:"user_name,omitempty"`    // of the user of its programs
	Home          *string  `json:"home,omitempty"`         // of that user, in the box: /root or /home/NAME
	limits.Patch
	Rlimits   map[string]string  `json:"rlimits,omitempty" max:"16"` // "SOFT:HARD" or one for both, by name: {"stack": "64MiB"}
	Tmp       *quantity.Size     `json:"tmp,omitempty"`
	Workspace string             `json:"workspace,omitempty"` // name of one that is lent to it; "": one of its own
	Inputs    []Input            `json:"inputs,omitempty" max:"16"`
	Mounts    []Mount            `json:"mounts,omitempty" max:"249"`
	Skills    []string           `json:"skills,omitzero" max:"128"` // names; one that is not there is told in the answer
	Drives    []string           `json:"drives,omitempty" max:"16"` // names, or NAME@VERSION
	Env       map[string]string  `json:"env,omitempty" max:"256"`
	Labels    map[string]string  `json:"labels,omitempty" max:"32"`
	Metadata  map[string]string  `json:"metadata,omitempty" max:"1024"` // kept for its caller, at most 64 KiB in all
	Wait      *quantity.Duration `json:"wait,omitempty"`                // for room, at most; less than the configured time
	Base64    *InBase64          `json:"base64,omitempty"`              // of env, what is no UTF-8
}

// SessionChange asks for other limits, times and rules of a living session: the body of PATCH
// /v1/sessions/{id}. What is left out stays as it is; all of the rest is changed, or nothing.
type SessionChange struct {
	NetworkRules []string `json:"network_rules,omitzero" max:"64"` // connections they do not let through are cut; [] is nowhere
	limits.Patch
	Labels   map[string]string `json:"labels,omitempty" max:"32"`
	Metadata map[string]string `json:"metadata,omitzero" max:"1024"` // instead of what it has; {} is none
}

// SessionStart is the body of POST /v1/sessions/{id}/start.
type SessionStart struct {
	Wait *quantity.Duration `json:"wait,omitempty"` // for room, at most; less than the configured time
}

// Session describes a session.
type Session struct {
	ID            string   `json:"id"`
	Owner         string   `json:"owner"`
	OwnerUID      uint32   `json:"owner_uid"`
	State         string   `json:"state"`
	Profile       string   `json:"profile"`
	Image         string   `json:"image"`
	Hostname      string   `json:"hostname"`
	Network       string   `json:"network"`
	NetworkRules  []string `json:"network_rules,omitempty"`
	NetworkStrict bool     `json:"network_strict,omitempty"`
	Secrets       []string `json:"secrets,omitempty"` // names
	Push          string   `json:"push,omitempty"`    // where results go
	ReadOnlyRoot  bool     `json:"read_only_root"`
	HomeOnDisk    bool     `json:"home_on_disk,omitempty"`
	UserName      string   `json:"user_name"` // of the user of its programs
	Home          string   `json:"home"`      // of that user, in the box
	limits.Limits
	limits.Lifetime
	WorkspaceName string            `json:"workspace_name,omitempty"` // of the one that is lent to it
	Inputs        []Input           `json:"inputs,omitempty"`
	Mounts        []Mount           `json:"mounts"`
	Skills        []SessionSkill    `json:"skills,omitempty"`
	Drives        []SessionDrive    `json:"drives,omitempty"`
	Env           []string          `json:"env"` // names only
	Labels        map[string]string `json:"labels,omitempty"`
	// Metadata is there in answers about one session, and in lists if they were asked for it.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Enforcement says what keeps each limit on this host: "cgroup2", "project-quota", "store", "tmpfs",
	// "rlimit", "host" (a workspace of the host, bounded by its own filesystem) or "none".
	Enforcement map[string]string `json:"enforcement"`
	CreatedAt   time.Time         `json:"created_at"`
	LastUsedAt  time.Time         `json:"last_used_at"`
	ExpiresAt   *time.Time        `json:"expires_at,omitempty"` // when it ends if nobody uses it, or is removed if it stays stopped
	StoppedAt   *time.Time        `json:"stopped_at,omitempty"` // since when it is stopped
	Running     int               `json:"running"`              // executions under way
	Executions  int               `json:"executions"`
	PID         uint32            `json:"pid,omitempty"`     // of its PID 1, on the host
	IDBase      uint32            `json:"id_base,omitempty"` // first of its host ids
	Group       string            `json:"group,omitempty"`   // path of its cgroup, on the host
	// Clamped is what it has less of than its profile or its caller wanted, by a policy.
	Clamped []Clamp `json:"clamped,omitempty"`
	// Usage is there in the answer about one session, and in lists if they were asked for it, if it has cgroups.
	Usage *SessionUsage `json:"usage,omitempty"`
	// Workspace is there where Usage is, if the session has a quota.
	Workspace *Quota `json:"workspace,omitempty"`
	// Pushed is there in answers about one session, if that has Push.
	Pushed *Pushed `json:"pushed,omitempty"`
	// Traffic is there in the answer about one session, if that has a network.
	Traffic *Traffic `json:"traffic,omitempty"`

	NetworkConnections int           `json:"network_connections,omitempty"` // at a time, of egress; left out: any number
	NetworkBandwidth   quantity.Size `json:"network_bandwidth,omitempty"`   // bytes a second in each direction, of egress; left out: any
}

// Pushed is what has become of results that go to a bucket, by the versions of outputs.
type Pushed struct {
	Waiting int    `json:"waiting"` // to be read, to be sent, or to be sent again
	Done    int    `json:"done"`
	GivenUp int    `json:"given_up"`
	Error   string `json:"error,omitempty"` // of the last try of one that is not there
}

// Traffic is what has gone over the network of a session, headers counted in.
type Traffic struct {
	Addresses       []string      `json:"addresses"` // of the box
	Received        quantity.Size `json:"received"`
	ReceivedPackets uint64        `json:"received_packets"`
	Sent            quantity.Size `json:"sent"`
	SentPackets     uint64        `json:"sent_packets"`
	DeniedPackets   uint64        `json:"denied_packets"` // that no rule let out
}

// Quota is how full a place is. Kind is "workspace" or "tmp"; Hit says that nothing more fits.
type Quota struct {
	Kind       string        `json:"kind"`
	Used       quantity.Size `json:"used"`
	Limit      quantity.Size `json:"limit"`
	Files      uint64        `json:"files"`
	FilesLimit uint64        `json:"files_limit"`
	Hit        bool          `json:"hit"`
}

// SessionUsage is what the programs of a session use and have used, all of them together.
type SessionUsage struct {
	CPUMS       float64       `json:"cpu_ms"`
	ThrottledMS float64       `json:"throttled_ms"` // that they waited for processor time because of the limit
	Memory      quantity.Size `json:"memory"`
	MemoryPeak  quantity.Size `json:"memory_peak"`
	Swap        quantity.Size `json:"swap"`
	Pids        int           `json:"pids"`
	Read        quantity.Size `json:"io_read"`
	Written     quantity.Size `json:"io_write"`
	OOMKills    int           `json:"oom_kills"`
	// Pressure is the share of the last ten seconds, in percent, in which some program waited for it.
	Pressure Pressure `json:"pressure"`
}

// Pressure is what programs wait for, in percent of the time.
type Pressure struct {
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	IO     float64 `json:"io"`
}

// UsageHistory is what a session has used lately, as far as this boxd has seen it. A session without cgroups has only samples
// of its workspace, and one without a quota of that either has none.
type UsageHistory struct {
	Interval quantity.Duration `json:"interval"` // between two samples, about
	Kept     quantity.Duration `json:"kept"`     // how long samples are kept; 0s: none are taken (usage.history of box.toml)
	Samples  []UsageSample     `json:"samples"`  // oldest first
}

// UsageSample is what a session used at a time.
type UsageSample struct {
	At        time.Time       `json:"at"`
	Usage     *SampledUsage   `json:"usage,omitempty"`     // if it has cgroups
	Workspace *WorkspaceUsage `json:"workspace,omitempty"` // if that has a quota
}

// SampledUsage is what the programs of a session used and had used at a time, in the words of SessionUsage.
type SampledUsage struct {
	CPUMS float64 `json:"cpu_ms"`
	// CPUPercent is of one processor, since the sample before or, in the first, since the session was created.
	CPUPercent float64       `json:"cpu_percent"`
	Memory     quantity.Size `json:"memory"`
	Swap       quantity.Size `json:"swap"`
	Pids       int           `json:"pids"`
	Read       quantity.Size `json:"io_read"`
	Written    quantity.Size `json:"io_write"`
	Pressure   Pressure      `json:"pressure"`
}

// WorkspaceUsage is how full a workspace was.
type WorkspaceUsage struct {
	Used  quantity.Size `json:"used"`
	Files uint64        `json:"files"`
}

// SessionList is the answer of GET /v1/sessions.
type SessionList struct {
	Sessions []Session `json:"sessions"`
	// Next is there if there are more: the value of after that continues the list.
	Next string `json:"next,omitempty"`
}

// ExecRequest asks for one execution: exactly one of Argv, Command and Code.
type ExecRequest struct {
	// ID makes it a process of that id, which outlives its client until its timeout: a request of the same
	// id joins it or gets its result, and it never runs twice.
	ID string `json:"id,omitempty"`
	// Detach answers 202 with the Process at once instead of waiting. It needs an ID.
	Detach bool `json:"detach,omitempty"`
	// DryRun answers with a Plan, and runs nothing.
	DryRun        bool               `json:"dry_run,omitempty"`
	Argv          []string           `json:"argv,omitempty" max:"16384"`
	Command       *string            `json:"command,omitempty"`  // for the shell
	Code          *string            `json:"code,omitempty"`     // in Language
	Language      string             `json:"language,omitempty"` // "python", "node", …: [languages] of box.toml
	Env           map[string]string  `json:"env,omitempty" max:"256"`
	Cwd           string             `json:"cwd,omitempty"`            // default /workspace; "output": that of OutputVersion
	CwdMustExist  bool               `json:"cwd_must_exist,omitempty"` // or it is made if missing, where that can be
	Timeout       *quantity.Duration `json:"timeout,omitempty"`
	OutputVersion string             `json:"output_version,omitempty"` // has /workspace/output/VERSION made, for $OUTPUT_DIR
	Base64        *InBase64          `json:"base64,omitempty"`         // what is no UTF-8
	// CPUs, Memory and Pids are limits of this execution alone, within those of its session.
	CPUs   *float64       `json:"cpus,omitempty"`
	Memory *quantity.Size `json:"memory,omitempty"`
	Pids   *int           `json:"pids,omitempty"`
	// Rlimits are resource limits of this execution alone, within those of its session: SOFT:HARD or one for both, by name.
	Rlimits map[string]string `json:"rlimits,omitempty" max:"16"`
	// User is "root" in a session whose root can be written to (read_only_root false): with the rights of root over the files of the
	// box, and over nothing else. Default: the box user.
	User string `json:"user,omitempty"`
	// Stdin is what the program reads. In a stream it is left out and sent as frames instead.
	Stdin string `json:"stdin,omitempty" show:"never"`
	// StdinEncoding of Stdin: "utf-8" (the default) or "base64", for input that is not text.
	StdinEncoding string `json:"stdin_encoding,omitempty"`
	// MergeOutput makes its standard error the pipe of its standard output, as 2>&1 does in a shell: all that it writes is stdout, in
	// the order in which it writes, and stderr is empty. A terminal does that anyway.
	MergeOutput bool `json:"merge_output,omitempty"`
	// OutputLimit is how many bytes of each stream are kept: beginning and end of a longer one.
	OutputLimit *quantity.Size `json:"output_limit,omitempty"`
	// Spool keeps up to so many bytes of each stream of an execution with an ID on disk, where OutputLimit keeps less in memory: in the
	// quota of the workspace, to be read by GET /v1/sessions/{id}/processes/{p}/logs. The answer has no more than OutputLimit.
	Spool *quantity.Size `json:"spool,omitempty"`
	// Wait is how long it waits at most for another one of its session to end, if there are as many as may be.
	Wait *quantity.Duration `json:"wait,omitempty"`
	// Encoding of stdout and stderr in the answer: "utf-8" (the default; bytes that are none become
	// U+FFFD) or "base64".
	Encoding string `json:"encoding,omitempty"`
	// Changes lists in the answer what it has created, changed and removed in the workspace.
	// Not with Detach; whoever joins an execution of an ID that another request has begun is told that nobody knows.
	Changes     bool         `json:"changes,omitempty"`
	ChangesWith *ChangesWith `json:"changes_with,omitempty"` // what of them
}

// InBase64 has what of a program is no UTF-8, which JSON cannot carry: each in the place of the field of its name. Env has
// variables beside those of the other field.
type InBase64 struct {
	Argv    []string `json:"argv,omitempty" max:"16384"`
	Command *string  `json:"command,omitempty"`
	Code    *string  `json:"code,omitempty"`
	Cwd     string   `json:"cwd,omitempty"`
	Env     []string `json:"env,omitempty" max:"256"` // each NAME=value
}

// OneShotRequest is the body of POST /v1/exec: a session made for one execution.
type OneShotRequest struct {
	Session SessionRequest `json:"session,omitzero"`
	Exec    ExecRequest    `json:"exec"`
}

// ExecResult is what an execution came to.
type ExecResult struct {
	Session string `json:"session"`
	// Status is one of exited, signaled, timed_out, oom_killed, canceled, lost, start_failed.
	Status   string   `json:"status"`
	ExitCode *int     `json:"exit_code,omitempty"` // with status exited
	Signal   string   `json:"signal,omitempty"`    // "SIGKILL"
	PID      uint32   `json:"pid,omitempty"`       // that it had in the box, if it has an id or a stream
	Stdout   string   `json:"stdout"`
	Stderr   string   `json:"stderr"`
	Output   [2]Total `json:"output"` // of stdout and stderr
	// DurationMS is wall time in milliseconds, with fractions.
	DurationMS float64 `json:"duration_ms"`
	Usage      Usage   `json:"usage"`
	// LeftoversKilled counts processes the command had left running.
	LeftoversKilled int               `json:"leftovers_killed"`
	Timeout         quantity.Duration `json:"timeout"`
	Clamped         []Clamp           `json:"clamped,omitempty"`
	Failure         *StartFailure     `json:"failure,omitempty"` // with status start_failed
	// OOM is there if the kernel has killed any of its processes for want of memory, whatever the status, or if it looks as if
	// it had ended for that.
	OOM *OOM `json:"oom,omitempty"`
	// Quota lists the places of the box that it has left full, whatever the status.
	Quota []Quota `json:"quota,omitempty"`
	// Changes is there if they were asked for.
	Changes *Changes `json:"changes,omitempty"`
}

// OOM tells of processes killed for want of memory.
type OOM struct {
	Kills int           `json:"kills"`
	Limit quantity.Size `json:"limit"`             // that was reached
	Of    string        `json:"of"`                // whose limit that is: "execution", "session", "owner" for all its sessions together, or "process" where there are no cgroups
	Peak  quantity.Size `json:"peak,omitempty"`    // most memory the execution has had, if the kernel tells
	Names []string      `json:"victims,omitempty"` // of the processes the kernel chose, if its log tells
	Sign  string        `json:"sign,omitempty"`    // of "process": nobody was killed, but its calls for memory failed, as this tells: "MemoryError"
}

// Total says how much a program wrote to one stream.
type Total struct {
	Bytes   uint64 `json:"bytes"`
	Omitted uint64 `json:"omitted,omitempty"` // of them not in the answer
}

// Usage is what an execution used. MaxRSS is that of its largest process, in bytes. The peaks and io are
// of all its processes together, and there only in a session with cgroups.
type Usage struct {
	UserMS   float64       `json:"user_ms"`
	SystemMS float64       `json:"system_ms"`
	MaxRSS   quantity.Size `json:"max_rss"`

	MemoryPeak quantity.Size `json:"memory_peak,omitempty"`
	PidsPeak   int           `json:"pids_peak,omitempty"`
	Read       quantity.Size `json:"io_read,omitempty"`
	Written    quantity.Size `json:"io_write,omitempty"`
}

// Clamp says that less was given than asked for.
type Clamp struct {
	Field string `json:"field"`
	Asked string `json:"asked"`
	Got   string `json:"got"`
	By    string `json:"by,omitempty"` // the rule: a key of box.toml
}

// StartFailure says at which step a start failed, about what, and the kernel's reason.
type StartFailure struct {
	Step  string `json:"step"`
	Item  string `json:"item,omitempty"`
	Errno string `json:"errno"` // "ENOENT"
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"`
}

// Problem is the body of every error (RFC 9457, application/problem+json). Type is stable; the texts
// may change in any release.
type Problem struct {
	Type    string        `json:"type"`
	Title   string        `json:"title"`
	Status  int           `json:"status"`
	Detail  string        `json:"detail"`
	Field   string        `json:"field,omitempty"`
	Value   string        `json:"value,omitempty"`
	Allowed string        `json:"allowed,omitempty"`
	Hint    string        `json:"hint,omitempty"`
	Denial  *Denial       `json:"denial,omitempty"` // where a rule has refused
	By      string        `json:"by,omitempty"`     // who has asked, where that was not allowed
	Failure *StartFailure `json:"failure,omitempty"`
	File    *FileFailure  `json:"file,omitempty"`  // what was wrong about a file
	Users   []MountUser   `json:"users,omitempty"` // of a mount that is in use, at most 16
}

// Denial says which rule has refused, and which setting of the operator's would allow it. Layer is "policy",
// "mount", "network", "quota", "seccomp" or "limit".
type Denial struct {
	Layer   string `json:"layer"`
	Rule    string `json:"rule"` // the key of box.toml: "policy.ci.sessions"
	Used    string `json:"used,omitempty"`
	Allowed string `json:"allowed,omitempty"`
	Setting string `json:"setting,omitempty"`
	// RetryAfter is how many seconds from now another outcome is possible, where that is known.
	RetryAfter int64 `json:"retry_after,omitempty"`
}

// ProblemType is the beginning of every Problem.Type; the kind of the problem follows.
const ProblemType = "urn:boxd:problem:"

// Configuration is what is in force of box.toml.
type Configuration struct {
	Settings []Setting `json:"settings"`
}

// Setting is one key that is in force.
type Setting struct {
	Key    string `json:"key"`    // "sessions.max"
	Value  string `json:"value"`  // as box.toml would have it
	Origin string `json:"origin"` // file and line, "variable NAME", or OriginBuiltIn
}

// OriginBuiltIn is the origin of what nobody has set.
const OriginBuiltIn = "built-in"

// Status is the answer of GET /v1/status.
type Status struct {
	Version       string    `json:"version"`
	StartedAt     time.Time `json:"started_at"`
	Sessions      int       `json:"sessions"`
	MaxSessions   int       `json:"max_sessions"`
	Stopped       int       `json:"stopped"`       // sessions that have no box, and are not among Sessions
	Processes     int       `json:"processes"`     // that live, of all sessions
	MaxProcesses  int       `json:"max_processes"` // of one session
	Running       int       `json:"running"`       // executions and processes
	Executed      uint64    `json:"executed"`      // since the start
	ControlGroups string    `json:"control_groups"`
	BestEffort    []string  `json:"best_effort"` // limits the operator lets go unenforced
	Unenforced    []string  `json:"unenforced"`  // of them, those that nothing keeps as a whole on this host
	// Enforced says what keeps each limit on this host: "cgroup2", "project-quota", "store", "tmpfs", "rlimit", "none".
	Enforced map[string]string `json:"enforced"`
	// Degraded says in words what is not as it should be.
	Degraded []string `json:"degraded"`
	// State is "ok"; "degraded", see there; "off", see there; or "failed", when no session can start.
	State string `json:"state"`
	Off   string `json:"off,omitempty"` // why boxd takes no new sessions, if somebody has switched it off
	Queue Queue  `json:"queue"`
	Warm  []Warm `json:"warm"`
}
