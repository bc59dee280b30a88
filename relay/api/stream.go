// SPDX-License-Identifier: Apache-2.0

package api

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

// Bounds of a stream, in bytes.
const (
	StdinWindow = 256 << 10
	MaxFrame    = 64<<10 + 1 // of stdin; outputs keep to it too
	MaxStart    = 16 << 20   // of the first message
)

// ClientControl is a control message from the client; one field is set.
type ClientControl struct {
	Start  *StreamStart `json:"start,omitempty"`
	Signal string       `json:"signal,omitempty"`
}

// StreamStart is the first message. Session is for /v1/exec/stream, which makes one for the purpose.
type StreamStart struct {
	Session *SessionRequest `json:"session,omitempty"`
	Exec    ExecRequest     `json:"exec"`
	Stdin   bool            `json:"stdin,omitempty"` // frames of standard input will follow
}

// ServerControl is a control message from boxd; one field is set.
type ServerControl struct {
	Started    *StreamStarted `json:"started,omitempty"`
	StdinTaken uint64         `json:"stdin_taken,omitempty"`
	Exit       *ExecResult    `json:"exit,omitempty"`
	Error      *Problem       `json:"error,omitempty"`
}

// StreamStarted says that the program runs.
type StreamStarted struct {
	Session string  `json:"session"`
	Clamped []Clamp `json:"clamped,omitempty"`
}
