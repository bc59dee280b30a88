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
	argvDigest = "digest" // its SHA-256: who knows the command can prove that it was this one
	argvNone   = "none"
)

// What becomes of calls while no record can be written.
const (
	onErrorRefuse   = "refuse"   // they are refused, but for what only ends things
	onErrorContinue = "continue" // they are served, and records that do not fit into memory are lost
)

// Bounds of the files.
const (
	leastSize = 64 * quantity.KiB
	mostSize  = quantity.GiB
	mostFiles = 10000
)

// DefaultConfig is what holds where nothing is said.
func DefaultConfig() Config {
	return Config{Argv: argvFull, OnError: onErrorRefuse, MaxSize: 16 * quantity.MiB, MaxFiles: 16}
}

// Validate names the key that is wrong, and what is allowed.
func (c *Config) Validate() error {
	switch {
	case !slices.Contains([]string{argvFull, argvDigest, argvNone}, c.Argv):
		return fmt.Errorf("audit.argv = %q: must be %q, %q or %q", c.Argv, argvFull, argvDigest, argvNone)
	case c.OnError != onErrorRefuse && c.OnError != onErrorContinue:
		return fmt.Errorf("audit.on_error = %q: must be %q or %q", c.OnError, onErrorRefuse, onErrorContinue)
	case c.MaxSize < leastSize || c.MaxSize > mostSize:
		return fmt.Errorf("audit.max_size = %v: must be %v to %v", c.MaxSize, leastSize, mostSize)
	case c.MaxFiles < 2 || c.MaxFiles > mostFiles:
		return fmt.Errorf("audit.max_files = %d: must be 2 to %d", c.MaxFiles, mostFiles)
	}
	return nil
}

// The kinds of records, but for those that package chain has of the log itself.
const (
	KindCall    = "call"    // a request that has been answered
	KindUnder   = "running" // one that has not, and takes long; its call follows under the same request
	kindStarted = "started" // a boxd that has begun to write
)

// Record is one of them. What is empty does not apply. Values of environment variables are in none.
type Record struct {
	Seq       uint64    `json:"seq,omitempty"` // set where it is read
	Kind      string    `json:"kind"`
	Time      time.Time `json:"time"`
	Request   string    `json:"request,omitempty"`
	Parent    string    `json:"traceparent,omitempty"`
	Principal string    `json:"principal,omitempty"`
	UID       *uint32   `json:"uid,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Via       string    `json:"via,omitempty"` // "socket", or "token:" and its name
	Route     string    `json:"route,omitempty"`
	Session   string    `json:"session,omitempty"`
	Owner     string    `json:"owner,omitempty"` // of the session, where that is another
	Process   string    `json:"process,omitempty"`
	What      *What     `json:"what,omitempty"`
	Status    int       `json:"status,omitempty"`  // of the answer
	Outcome   string    `json:"outcome,omitempty"` // "done", "failed", or the status of what was run
	Error     string    `json:"error,omitempty"`   // the end of the problem's type
	Detail    string    `json:"detail,omitempty"`
	TookMS    float64   `json:"took_ms,omitempty"`
	Last      uint64    `json:"last,omitempty"`    // see hashchain.Note
	LastAt    string    `json:"last_at,omitempty"` // see hashchain.Note
	Records   uint64    `json:"records,omitempty"` // see hashchain.Note
}

// What is what was asked for.
type What struct {
	Argv    []string `json:"argv,omitempty"`
	SHA256  string   `json:"argv_sha256,omitempty"`
	Argc    int      `json:"argc,omitempty"`
	Env     []string `json:"env,omitempty"` // names
	Mounts  []string `json:"mounts,omitempty"`
	Profile string   `json:"profile,omitempty"`
	Changes []string `json:"changes,omitempty"` // names of the fields given
}

// mostNames and mostArgv bound a record, which must fit into a line however it is escaped.
const (
	mostNames = 256
	mostName  = 256
	mostArgv  = 64 << 10
)

// shaped is the record as the configuration wants it, within its bounds.
func (c *Config) shaped(r *Record) *Record {
	copied := *r
	for _, text := range []*string{&copied.Detail, &copied.Session, &copied.Owner, &copied.Process} {
		*text = cut(*text) // of a call that was refused they are whatever its caller has sent
	}
	if r.What == nil {
		return &copied
	}
	copied.What = c.shape(r.What)
	return &copied
}

// Shape is what of a request a record will have. It refers to nothing of the request that is long.
func (l *Log) Shape(w *What) *What {
	if l == nil || w == nil {
		return nil
	}
	return l.cfg.shape(w)
}

func (c *Config) shape(asked *What) *What {
	w := *asked
	w.Env, w.Mounts, w.Changes, w.Profile = names(w.Env), names(w.Mounts), names(w.Changes), cut(w.Profile)
	if len(w.Argv) > 0 { // or that has been done
		w.Argc = len(w.Argv)
		total := 0
		for _, a := range w.Argv {
			total += len(a) + 1
		}
		switch {
		case c.Argv == argvNone:
			w.Argv = nil
		case c.Argv == argvDigest || total > mostArgv || w.Argc > mostArgv/64 || slices.ContainsFunc(w.Argv, func(a string) bool { return !utf8.ValidString(a) }): // a record is text
			w.SHA256, w.Argv = Digest(w.Argv), nil
		}
	}
	return &w
}

// Digest is the SHA-256 of a command: of its arguments, each with a zero byte behind it.
func Digest(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		_, _ = h.Write(append([]byte(a), 0)) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

func names(list []string) []string {
	list = slices.Clone(list[:min(len(list), mostNames)])
	for i := range list {
		list[i] = cut(list[i])
	}
	return list
}

func cut(s string) string {
	if len(s) > mostName {
		return strings.ToValidUTF8(s[:mostName], "") + "…"
	}
	return s
}

// parse reads the record of a line.
func parse(line *hashchain.Line) (*Record, error) {
	var r Record
	if err := json.Unmarshal(line.Text, &r); err != nil {
		return nil, err
	}
	return &r, nil
}
