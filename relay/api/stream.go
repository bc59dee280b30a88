// SPDX-License-Identifier: Apache-2.0

package api

import "github.com/boxd-dev/boxd/quantity"

// A stream is a WebSocket of binary messages. The first byte of each names its channel:
//
//	client                                     boxd
//	control {"start": …} ───────────────────►
//	            ◄───────────────────────────── control {"started": …}
//	stdin bytes, an empty message is its end ►
//	            ◄───────────────────────────── control {"stdin_taken": n}
//	control {"signal": "SIGINT"} ───────────►
//	            ◄───────────────────────────── stdout bytes, stderr bytes
//	            ◄───────────────────────────── control {"exit": …}    or {"error": …}
//
// A stream that ends without exit or error has failed. Closing it ends the program. Output is never
// cut: a program waits while its client does not read. At most StdinWindow bytes of standard input
// may be under way that boxd has not confirmed by stdin_taken, which counts all of them.
const (
	ChannelStdin   byte = 0
	ChannelStdout  byte = 1
	ChannelStderr  byte = 2
	ChannelControl byte = 3
)

// The stream of a process, GET /v1/sessions/{id}/processes/{p}/stream, has other first messages:
//
//	control {"attach": …} ──────────────────►
//	            ◄───────────────────────────── control {"attached": …}, then output from there
//	control {"resize": …} ──────────────────►  also in a stream of an execution with a terminal
//	            ◄───────────────────────────── control {"gap": …}: output that is not kept any more
//	            ◄───────────────────────────── control {"writer_lost": true}: another writes now
//
// Closing it leaves the process alone; so does breaking the rules, which closes it with status 1008. boxd
// pings every 30 seconds and drops a client that does not answer within a minute. One that does not read is
// behind, for as long as it likes to be if it takes anything within ten minutes: nothing is kept for it but
// what the process keeps anyway, and what it is too late for is a gap. Output is counted by stream from the first byte the process has
// ever written, so a client that has been cut off goes on at the bytes it has; and so is input. An exec
// stream whose start has an id is a stream of the process of that id, from the first byte of output and of
// input, and can be gone on with as such.
//
// A client may offer the subprotocol StreamForget. Where boxd selects it, the client answers the exit of a process
// with control {"forget": true}, and boxd forgets the process before it closes the stream: as by DELETE, without
// another request. A stream that is cut off before that can be gone on with as any other.
//
// In lines, only whole lines of at most MaxLine bytes are messages of stdout; what is none, as its beginning
// or its end is missing or it is longer, is a gap that says which. Bytes are counted with the ends of lines.

// Bounds of a stream, in bytes.
const (
	StdinWindow = 256 << 10
	MaxFrame    = 64<<10 + 1  // of stdin
	MaxOutput   = 256<<10 + 1 // of stdout and stderr
	MaxStart    = 16 << 20    // of the first message
	MaxLine     = 16 << 20    // of a line without its end, where messages are lines
	MaxWriterID = 64
)

// StreamForget is the WebSocket subprotocol of a stream whose client says when boxd may forget its process.
const StreamForget = "boxd.forget"

// ClientControl is a control message from the client; one field is set.
type ClientControl struct {
	Start  *StreamStart  `json:"start,omitempty"`
	Attach *StreamAttach `json:"attach,omitempty"`
	Signal string        `json:"signal,omitempty"`
	Resize *Terminal     `json:"resize,omitempty"`
	// Forget is for a stream of the subprotocol StreamForget: the client has read the exit of the process.
	Forget bool `json:"forget,omitempty"`
}

// StreamStart is the first message. Session is for /v1/exec/stream, which makes one for the purpose.
type StreamStart struct {
	Session *SessionRequest `json:"session,omitempty"`
	Exec    ExecRequest     `json:"exec"`
	Stdin   bool            `json:"stdin,omitempty"` // frames of standard input will follow
	// Terminal gives the program a terminal instead of pipes. Its output is all stdout.
	Terminal *Terminal `json:"terminal,omitempty"`
	// Lease is how long a program with an id lives on without a client: with 0s it ends when its client goes.
	// Left out, only its timeout ends it.
	Lease *quantity.Duration `json:"lease,omitempty"`
}

// StreamAttach is the first message to a process.
type StreamAttach struct {
	// Stdout and Stderr are where output begins: the bytes the client has of each. Both left out, it
	// begins with what comes from now on.
	Stdout *int64 `json:"stdout,omitempty"`
	Stderr *int64 `json:"stderr,omitempty"`
	Replay bool   `json:"replay,omitempty"` // begin with the oldest that is kept
	// Write asks to be the one client that sends standard input; TakeOver, to be it instead of another.
	Write    bool `json:"write,omitempty"`
	TakeOver bool `json:"take_over,omitempty"`
	// WriterID is a word of the client's own, at most 64 bytes, by which it becomes the writer again after its connection was
	// lost: boxd may take longer than the client to notice that. It replaces a writer of the same id, and no other.
	WriterID string `json:"writer_id,omitempty"`
	// Stdin is how many bytes of standard input the client has sent before, in earlier streams, so that
	// boxd knows which of the bytes that follow it has already. Left out, they are all new.
	Stdin *int64 `json:"stdin,omitempty"`
	// Lossless makes the program wait for this client, as long as it is there and takes anything. Left out, it waits for the one
	// that writes.
	Lossless *bool `json:"lossless,omitempty"`
	// Lines makes every message of stdout one whole line without its end, and adds that to every message
	// of stdin: the stdio transport of MCP.
	Lines bool `json:"lines,omitempty"`
}

// ServerControl is a control message from boxd; one field is set.
type ServerControl struct {
	Started    *StreamStarted  `json:"started,omitempty"`
	StdinTaken uint64          `json:"stdin_taken,omitempty"`
	Attached   *StreamAttached `json:"attached,omitempty"`
	Gap        *StreamGap      `json:"gap,omitempty"`
	WriterLost bool            `json:"writer_lost,omitempty"`
	Exit       *ExecResult     `json:"exit,omitempty"`
	Error      *Problem        `json:"error,omitempty"`
}

// StreamStarted says that the program runs.
type StreamStarted struct {
	Session string  `json:"session"`
	Clamped []Clamp `json:"clamped,omitempty"`
}

// StreamAttached says what a stream of a process begins with.
type StreamAttached struct {
	Process Process `json:"process"`
	Stdout  int64   `json:"stdout"` // offset of the next byte of it that will come, or be in a gap
	Stderr  int64   `json:"stderr"`
	// Stdin is how many bytes of standard input the process has ever been given. While another client writes, the last of
	// its bytes may be missing.
	Stdin  int64 `json:"stdin"`
	Writer bool  `json:"writer"`
}

// StreamGap says that output is missing: the next byte of the stream is behind it.
type StreamGap struct {
	Stream string `json:"stream"` // "stdout" or "stderr"
	Bytes  int64  `json:"bytes"`
	// Reason is why, "" being that the bytes are not kept any more.
	Reason string `json:"reason,omitempty"`
}

// Reasons of gaps in streams of lines.
const (
	GapLongLine = "long_line"       // a line of more than MaxLine bytes, with its end
	GapHalfLine = "unfinished_line" // the program has ended within a line
)
