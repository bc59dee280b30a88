// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// ProcessRequest asks for a process: the body of PUT /v1/sessions/{id}/processes/{p}. Exactly one of
// Argv, Command and Code is given.
type ProcessRequest struct {
	Argv     []string           `json:"argv,omitempty" max:"16384"`
	Command  *string            `json:"command,omitempty"` // for the shell
	Code     *string            `json:"code,omitempty"`    // in Language
	Language string             `json:"language,omitempty"`
	Env      map[string]string  `json:"env,omitempty" max:"256"`
	Cwd      string             `json:"cwd,omitempty"`     // default /workspace
	Timeout  *quantity.Duration `json:"timeout,omitempty"` // of each start; left out: none
	Base64   *InBase64          `json:"base64,omitempty"`  // what is no UTF-8
	CPUs     *float64           `json:"cpus,omitempty"`
	Memory   *quantity.Size     `json:"memory,omitempty"`
	Pids     *int               `json:"pids,omitempty"`
	Rlimits  map[string]string  `json:"rlimits,omitempty" max:"16"` // of it alone, within those of its session
	// CwdMustExist refuses to start it where Cwd is missing. Otherwise that is made, where that can be.
	CwdMustExist bool `json:"cwd_must_exist,omitempty"`
	// User is who it runs as, as in an ExecRequest.
	User string `json:"user,omitempty"`
	// Terminal gives it a terminal instead of pipes.
	Terminal *Terminal `json:"terminal,omitempty"`
	// Stdin gives it a standard input that clients of its stream write to.
	Stdin bool `json:"stdin,omitempty"`
	// MergeOutput makes its standard error the pipe of its standard output, as in an ExecRequest.
	MergeOutput bool `json:"merge_output,omitempty"`
	// Stdio "direct" hands the program's standard input, output and error themselves to a client on the same
	// host, see below. Nothing of what goes through them is kept or seen by boxd: terminal, stdin, output, spool,
	// merge_output, ready.line and restarts are refused. Left out: boxd has them, and keeps the output.
	Stdio   string   `json:"stdio,omitempty"`
	Restart *Restart `json:"restart,omitempty"` // left out: no
	Ready   *Ready   `json:"ready,omitempty"`   // left out: ready when it runs
	Stop    *Stop    `json:"stop,omitempty"`    // left out: SIGTERM, 10s
	// Lease is how long it lives without a client: it is stopped when nobody has been attached to its
	// stream, nor renewed it, for so long. Nobody is attached to one with stdio direct: its lease begins
	// when its descriptors are taken, and counts by renewals alone. Before the first client has come, and
	// after boxd was started anew, it is 30 seconds at least. Left out: for ever.
	Lease *quantity.Duration `json:"lease,omitempty"`
	// Output is how much of the end of each stream is kept, at least; left out: 1 MiB.
	Output *quantity.Size `json:"output,omitempty"`
	// Spool is the same on disk, in the quota of the workspace, instead of in memory.
	Spool  *quantity.Size    `json:"spool,omitempty"`
	Labels map[string]string `json:"labels,omitempty" max:"32"`
}

// Terminal is the size of a terminal in characters.
type Terminal struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Restart says what follows the end of a process's program.
type Restart struct {
	Policy string `json:"policy,omitempty"` // "no" (left out), "on-failure" (any end but exit code 0 and a stop) or "always"
	// Delay before the first restart; it doubles up to MaxDelay with each that follows, and begins anew
	// when the program has run for Window. Left out: 100ms and 30s.
	Delay    *quantity.Duration `json:"delay,omitempty"`
	MaxDelay *quantity.Duration `json:"max_delay,omitempty"`
	// Limit restarts within Window are a crash loop, after which it is not started again. Left out: 5
	// within 1m; 0 is no limit.
	Limit  *int               `json:"limit,omitempty"`
	Window *quantity.Duration `json:"window,omitempty"`
}

// Ready says when a process is ready: one of Line, Port and Command.
type Ready struct {
	Line    *string  `json:"line,omitempty"`                // a regular expression (RE2) that a line of its output matches
	Port    *int     `json:"port,omitempty"`                // a TCP port of the box's loopback accepts connections
	Command []string `json:"command,omitempty" max:"16384"` // exits with 0; tried every second
	// Timeout ends a program that is not ready by then; left out: 1m.
	Timeout *quantity.Duration `json:"timeout,omitempty"`
}

// Stop says how a process is asked to end.
type Stop struct {
	Signal string             `json:"signal,omitempty"` // to its process group; left out: SIGTERM
	Grace  *quantity.Duration `json:"grace,omitempty"`  // before it is killed; left out: 10s
}

// Process describes a process. An execution with an id is one too.
type Process struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	// State is "starting", "running", "waiting" (for its next start), "stopping" or "ended".
	State   string   `json:"state"`
	Ready   bool     `json:"ready"`
	PID     uint32   `json:"pid,omitempty"` // in the box, of its program or of the last one, whose number may be another's by now
	Starts  int      `json:"starts"`        // of its program, ever
	Argv    []string `json:"argv"`
	Cwd     string   `json:"cwd"`
	Env     []string `json:"env"` // names only
	Stdin   bool     `json:"stdin"`
	Stdio   string   `json:"stdio,omitempty"` // "direct", or left out
	Readers int      `json:"readers"`         // clients of its stream
	Writer  bool     `json:"writer"`          // one of them may write to it

	Terminal *Terminal          `json:"terminal,omitempty"`
	Timeout  *quantity.Duration `json:"timeout,omitempty"`
	Restart  Restart            `json:"restart"`
	Stop     Stop               `json:"stop"`
	Lease    *quantity.Duration `json:"lease,omitempty"`
	Labels   map[string]string  `json:"labels,omitempty"`

	Output    [2]StreamState `json:"output"`          // of stdout and stderr
	Spool     *quantity.Size `json:"spool,omitempty"` // how much of each is kept on disk; left out: they are in memory
	StartedAt time.Time      `json:"started_at"`
	EndedAt   *time.Time     `json:"ended_at,omitempty"`
	NextStart *time.Time     `json:"next_start,omitempty"` // in state waiting
	ExpiresAt *time.Time     `json:"expires_at,omitempty"` // when its lease ends
	// Reason is why it ended, if that was not its program's own doing: "stopped", "lease", "revoked", "crash loop",
	// "not ready", "shutdown".
	Reason  string  `json:"reason,omitempty"`
	Clamped []Clamp `json:"clamped,omitempty"`
	// Result is what it has come to, when it has ended; output is in it in the answer about this process alone.
	Result *ExecResult `json:"result,omitempty"`
}

// StreamState says how far a stream has come and how far back it can be read.
type StreamState struct {
	Bytes int64 `json:"bytes"` // ever written
	From  int64 `json:"from"`  // the oldest of the last ones that are all kept
}

// ProcessList is the answer of GET /v1/sessions/{id}/processes.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// SignalRequest is the body of POST /v1/sessions/{id}/processes/{p}/signal.
type SignalRequest struct {
	Signal string `json:"signal"` // "SIGHUP"
}

// StdioProtocol is what GET /v1/sessions/{id}/processes/{p}/stdio asks its connection to become, by
// "Connection: Upgrade" and "Upgrade: boxd-stdio". It has to be one to the Unix socket. After the head of the
// answer, 101, comes one byte, and with it by SCM_RIGHTS (unix(7)) three descriptors: the ends of pipes that are
// written to for the program's standard input, and read for its output and its error, in this order. Then boxd
// closes the connection, and has no part in the three any more: they go on if it ends.
//
// They are handed out once, by the boxd that has started the program. If nobody has come for them within 30s,
// or before the program has ended, they are closed, and so are those that could not be sent: the program then
// reads the end of its input, and its output is lost.
const StdioProtocol = "boxd-stdio"

// The output of a process, GET /v1/sessions/{id}/processes/{p}/logs, is all that is kept, in the order it was
// written, or what these say:
//
//	follow=true        goes on until the process has ended
//	stdout=N&stderr=N  begins at these bytes of the streams
//	tail=N             begins at most N bytes before the end of each stream; "64KiB" is a number too
//	lines=N            begins N lines before the end
//	since=TIME         begins with what was written at that time (RFC 3339) or later; with lines=N, the last N lines of that
//	stream=stderr      only that one
//	format=text        the bytes (the default), what is not kept any more being a line that says so;
//	                   with timestamps=true every line begins with the time
//	format=ndjson      LogLines, each in a line of its own
//	format=sse         LogLines as events, whose ids a client sends back as Last-Event-ID to go on behind
//	                   them; the last one is "event: end"
//
// An answer of text or ndjson that is cut off has no end, by the rules of HTTP.

// LogLine is one line of GET …/logs with format=ndjson or sse: a piece of a stream as it was written.
type LogLine struct {
	Stream string    `json:"stream"` // "stdout" or "stderr"
	Offset int64     `json:"offset"` // of its first byte in the stream
	Time   time.Time `json:"time"`   // about when it was written
	Data   string    `json:"data,omitempty"`
	Base64 bool      `json:"base64,omitempty"` // Data is, as it is not UTF-8
	Gap    int64     `json:"gap,omitempty"`    // this many bytes are not kept any more; without Data
}
