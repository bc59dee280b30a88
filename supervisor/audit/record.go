// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/quantity"
)

// Config is the table [audit].
type Config struct {
	Argv     string        `toml:"argv"`
	OnError  string        `toml:"on_error"`
	MaxSize  quantity.Size `toml:"max_size"`
	MaxFiles int           `toml:"max_files"`
}

// How much of a command is recorded.
const (
	argvFull   = "full"
	argvDigest = "digest" // its SHA-256: proves which command it was to one who knows it
	argvNone   = "none"
)

// What happens to calls while no record can be written.
const (
	onErrorRefuse   = "refuse"   // refused, except those that only end things
	onErrorContinue = "continue" // served; records that exceed the memory bound are lost
)

// Bounds of the files.
const (
	minSize  = 64 * quantity.KiB
	maxSize  = quantity.GiB
	maxFiles = 10000
)

// DefaultConfig returns the built-in configuration.
func DefaultConfig() Config {
	return Config{Argv: argvFull, OnError: onErrorRefuse, MaxSize: 16 * quantity.MiB, MaxFiles: 16}
}

// Validate names the invalid key and what is allowed.
func (c *Config) Validate() error {
	switch {
	case !slices.Contains([]string{argvFull, argvDigest, argvNone}, c.Argv):
		return fmt.Errorf("audit.argv = %q: must be %q, %q or %q", c.Argv, argvFull, argvDigest, argvNone)
	case c.OnError != onErrorRefuse && c.OnError != onErrorContinue:
		return fmt.Errorf("audit.on_error = %q: must be %q or %q", c.OnError, onErrorRefuse, onErrorContinue)
	case c.MaxSize < minSize || c.MaxSize > maxSize:
		return fmt.Errorf("audit.max_size = %v: must be %v to %v", c.MaxSize, minSize, maxSize)
	case c.MaxFiles < 2 || c.MaxFiles > maxFiles:
		return fmt.Errorf("audit.max_files = %d: must be 2 to %d", c.MaxFiles, maxFiles)
	}
	return nil
}

// The kinds of records, except those of package hashchain about the log itself.
const (
	KindCall    = "call"    // an answered request
	KindUnder   = "running" // a long request, not answered yet; its call record follows with the same request id
	kindStarted = "started" // a boxd began to write
)

// Record is one audit record. Empty fields do not apply. No record has values of environment variables.
type Record struct {
	Seq       uint64    `json:"seq,omitempty"` // set when it is read
	Kind      string    `json:"kind"`
	Time      time.Time `json:"time"`
	Request   string    `json:"request,omitempty"`
	Parent    string    `json:"traceparent,omitempty"`
	Principal string    `json:"principal,omitempty"`
	UID       *uint32   `json:"uid,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Via       string    `json:"via,omitempty"` // such as "socket", "tcp", "token:NAME" or "certificate:NAME"
	Route     string    `json:"route,omitempty"`
	Session   string    `json:"session,omitempty"`
	Owner     string    `json:"owner,omitempty"` // of the session, if not the caller
	Process   string    `json:"process,omitempty"`
	What      *What     `json:"what,omitempty"`
	Status    int       `json:"status,omitempty"`  // of the answer
	Outcome   string    `json:"outcome,omitempty"` // "done", "failed", or the status of the program
	Error     string    `json:"error,omitempty"`   // the end of the problem's type
	Detail    string    `json:"detail,omitempty"`
	TookMS    float64   `json:"took_ms,omitempty"`
	Last      uint64    `json:"last,omitempty"`    // see hashchain.Note
	LastAt    string    `json:"last_at,omitempty"` // see hashchain.Note
	Records   uint64    `json:"records,omitempty"` // see hashchain.Note
}

// What describes what a request asked for.
type What struct {
	Argv    []string `json:"argv,omitempty"`
	SHA256  string   `json:"argv_sha256,omitempty"`
	Argc    int      `json:"argc,omitempty"`
	Env     []string `json:"env,omitempty"` // names
	Mounts  []string `json:"mounts,omitempty"`
	Profile string   `json:"profile,omitempty"`
	Changes []string `json:"changes,omitempty"` // names of the fields given
}

// maxNames, maxName and maxArgv bound a record, which must fit into a line however it is escaped.
const (
	maxNames = 256
	maxName  = 256
	maxArgv  = 64 << 10
)

// shaped returns the record as configured and within its bounds.
func (c *Config) shaped(r *Record) *Record {
	copied := *r
	for _, text := range []*string{&copied.Detail, &copied.Session, &copied.Owner, &copied.Process} {
		*text = truncate(*text) // in a refused call these are arbitrary text from the caller
	}
	if r.What == nil {
		return &copied
	}
	copied.What = c.shape(r.What)
	return &copied
}

// Shape returns the part of a request that its record will have, without references to long data of the request.
func (l *Log) Shape(w *What) *What {
	if l == nil || w == nil {
		return nil
	}
	return l.cfg.shape(w)
}

func (c *Config) shape(what *What) *What {
	w := *what
	w.Env, w.Mounts, w.Changes, w.Profile = truncateNames(w.Env), truncateNames(w.Mounts), truncateNames(w.Changes), truncate(w.Profile)
	if len(w.Argv) > 0 { // not shaped yet
		w.Argc = len(w.Argv)
		total := 0
		for _, a := range w.Argv {
			total += len(a) + 1
		}
		switch {
		case c.Argv == argvNone:
			w.Argv = nil
		case c.Argv == argvDigest || total > maxArgv || w.Argc > maxArgv/64 || slices.ContainsFunc(w.Argv, func(a string) bool { return !utf8.ValidString(a) }): // records are text
			w.SHA256, w.Argv = Digest(w.Argv), nil
		}
	}
	return &w
}

// Digest is the SHA-256 of a command's arguments, each followed by a zero byte.
func Digest(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		_, _ = h.Write(append([]byte(a), 0)) // a hash accepts everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

func truncateNames(list []string) []string {
	list = slices.Clone(list[:min(len(list), maxNames)])
	for i := range list {
		list[i] = truncate(list[i])
	}
	return list
}

func truncate(s string) string {
	if len(s) > maxName {
		return strings.ToValidUTF8(s[:maxName], "") + "…"
	}
	return s
}

// parse decodes the record of a line.
func parse(line *hashchain.Line) (*Record, error) {
	var r Record
	if err := json.Unmarshal(line.Text, &r); err != nil {
		return nil, err
	}
	return &r, nil
}
