// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Size is the size of a terminal, in characters.
type Size struct{ Rows, Cols uint16 }

// Restart is a restart policy. Nil stands for the default; a resolved Spec has no nil.
type Restart struct {
	Policy          string
	Delay, MaxDelay *time.Duration // before the first restart; it doubles up to MaxDelay
	Limit           *int           // restarts within Window; 0: any number
	Window          *time.Duration
}

// Values of Restart.Policy.
const (
	RestartNo        = "no"
	RestartOnFailure = "on-failure"
	RestartAlways    = "always"
)

// Ready is how a process shows that it is ready: one of the first three.
type Ready struct {
	Line    *string  // a line of its output matches (RE2)
	Port    *int     // something listens on it (TCP, loopback of the box)
	Command []string // exits with 0
	Timeout *time.Duration
}

// Stop is how a process is asked to end.
type Stop struct {
	Signal string // sent to its process group
	Grace  *time.Duration
}

// Spec is what a process is made from. Its Command has the environment, so no log has it, and only a stopped session's record.
type Spec struct {
	ID       string
	Command  isolation.Command // for every start
	Script   []byte            `json:",omitempty"` // the contents that Command.ScriptArg refers to
	Input    []byte            `json:",omitempty"` // with isolation.StdinFile
	EnvNames []string
	Restart  Restart
	Ready    *Ready
	Stop     Stop
	Lease    *time.Duration // nil: none
	Labels   map[string]string
	Clamped  []policy.Clamp
	Rlimits  map[string]string `json:",omitempty"` // its own, as requested; Command.Argv has what follows from them
	Managed  bool              // it counts as a process; otherwise as an execution
	// Unlisted makes it private to its caller, which ends it with RequestStop: at once, whatever Stop says. It waits for its
	// lossless readers as long as they are attached, and is not adopted by a later boxd.
	Unlisted bool `json:"-"`
	// Answer is how much of each stream goes into a response, if more is kept because that is on disk.
	Answer *isolation.Output `json:",omitempty"`
	// Request is the fields of the request, in a form that can be compared.
	Request map[string]string
}

// Spooled is how many bytes of its output may be on disk.
func (s *Spec) Spooled() quantity.Size {
	c := &s.Command
	switch {
	case !c.Spool:
		return 0
	case c.Merged || c.Terminal != nil:
		return quantity.Size(c.Output.Head + c.Output.Tail)
	}
	return quantity.Size(2 * (c.Output.Head + c.Output.Tail))
}

// Defaults of a Spec.
const (
	defaultDelay    = 100 * time.Millisecond
	defaultMaxDelay = 30 * time.Second
	defaultLimit    = 5
	defaultWindow   = time.Minute
	defaultReady    = time.Minute
	defaultGrace    = 10 * time.Second
)

// Limits of a Spec.
const (
	maxLimit   = 10_000
	maxPattern = 1 << 10
	longest    = 365 * 24 * time.Hour
)

// Resolve fills in defaults, and validates the Spec.
func (s *Spec) Resolve() error {
	r := &s.Restart
	r.Policy = cmp.Or(r.Policy, RestartNo)
	r.Delay, r.MaxDelay, r.Window = or(r.Delay, defaultDelay), or(r.MaxDelay, max(defaultMaxDelay, *or(r.Delay, 0))), or(r.Window, defaultWindow)
	if r.Limit == nil {
		r.Limit = new(defaultLimit)
	}
	s.Stop.Signal, s.Stop.Grace = cmp.Or(s.Stop.Signal, "SIGTERM"), or(s.Stop.Grace, defaultGrace)
	if s.Ready != nil {
		ready := *s.Ready
		ready.Timeout = or(ready.Timeout, defaultReady)
		s.Ready = &ready
	}
	return s.validate()
}

func or(d *time.Duration, builtIn time.Duration) *time.Duration {
	if d != nil {
		return d
	}
	return &builtIn
}

func (s *Spec) validate() error {
	if err := policy.ValidateID(s.ID); err != nil {
		return err
	}
	r := &s.Restart
	switch {
	case r.Policy != RestartNo && r.Policy != RestartOnFailure && r.Policy != RestartAlways:
		return fault.Field("restart.policy", r.Policy, fault.OneOf(RestartNo, RestartOnFailure, RestartAlways))
	case *r.Limit < 0 || *r.Limit > maxLimit:
		return fault.Field("restart.limit", *r.Limit, fmt.Sprintf("0 to %d", maxLimit))
	case unix.SignalNum(s.Stop.Signal) == 0:
		return fault.Field("stop.signal", s.Stop.Signal, "the name of a signal, such as SIGTERM")
	}
	switch t := s.Command.Terminal; {
	case t != nil && t.Rows == 0:
		return fault.Field("terminal.rows", t.Rows, "1 to 65535")
	case t != nil && t.Cols == 0:
		return fault.Field("terminal.cols", t.Cols, "1 to 65535")
	case t != nil && s.Command.Merged:
		return fault.Field("merge_output", true, "left out with a terminal, whose output is one stream anyway")
	}
	if err := s.validateDirect(); err != nil {
		return err
	}
	times := []struct {
		field        string
		value        *time.Duration
		minimum, max time.Duration
	}{
		{"restart.delay", r.Delay, 10 * time.Millisecond, time.Hour},
		{"restart.max_delay", r.MaxDelay, *r.Delay, 24 * time.Hour},
		{"restart.window", r.Window, time.Second, longest},
		{"stop.grace", s.Stop.Grace, 0, time.Hour},
		{"lease", s.Lease, 0, longest},
	}
	if s.Ready != nil {
		if err := s.Ready.validate(); err != nil {
			return err
		}
		times = append(times, struct {
			field        string
			value        *time.Duration
			minimum, max time.Duration
		}{"ready.timeout", s.Ready.Timeout, time.Millisecond, 24 * time.Hour})
	}
	for _, t := range times {
		if t.value != nil && (*t.value < t.minimum || *t.value > t.max) {
			return fault.Field(t.field, quantity.Duration(*t.value), fmt.Sprintf("%v to %v", quantity.Duration(t.minimum), quantity.Duration(t.max)))
		}
	}
	return policy.CheckLabels(s.Labels)
}

func (r *Ready) validate() error {
	given := 0
	for _, is := range []bool{r.Line != nil, r.Port != nil, r.Command != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return fault.Field("ready", fault.Word(fmt.Sprintf("%d of line, port and command", given)), "one of line, port and command")
	case r.Port != nil && (*r.Port < 1 || *r.Port > 65535):
		return fault.Field("ready.port", *r.Port, "1 to 65535")
	case r.Command != nil && (len(r.Command) == 0 || r.Command[0] == "" || strings.Contains(strings.Join(r.Command, ""), "\x00")):
		return fault.Field("ready.command", strings.Join(r.Command, " "), "a program and its arguments, without NUL")
	case r.Line == nil:
		return nil
	}
	if _, err := regexp.Compile(*r.Line); err != nil || len(*r.Line) > maxPattern {
		return fault.Field("ready.line", *r.Line, fmt.Sprintf("a regular expression (RE2) of at most %d bytes", maxPattern))
	}
	return nil
}

// Differences names the fields in which two Requests differ.
func Differences(a, b map[string]string) (names []string) {
	for _, name := range sortedKeys(a, b) {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	return names
}

// Files creates the memory files that are passed with the command of one start. Close them with CloseFiles.
func (s *Spec) Files() (f client.Files, err error) {
	if s.Command.ScriptArg >= 0 {
		if f.Script, err = MemoryFile("script", s.Script); err != nil {
			return f, err
		}
	}
	if s.Command.Stdin == isolation.StdinFile {
		if f.Stdin, err = MemoryFile("stdin", s.Input); err != nil {
			CloseFiles(&f)
			return f, err
		}
	}
	return f, nil
}

// CloseFiles closes the files that Files has created.
func CloseFiles(f *client.Files) {
	closeFile(f.Script)
	closeFile(f.Stdin)
}

// MemoryFile returns a memory file with data that cannot be modified.
func MemoryFile(name string, data []byte) (*os.File, error) {
	fd, err := fdpass.BytesFile(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func closeFile(f *os.File) {
	if f != nil {
		f.Close()
	}
}

// inBytes has the parts of a Spec that may be invalid UTF-8, which JSON cannot carry.
type inBytes struct {
	Argv, Env [][]byte
	Dir       []byte
}

// MarshalJSON writes those parts as bytes too, if one of them is invalid UTF-8.
func (s Spec) MarshalJSON() ([]byte, error) {
	type plain Spec
	invalid := func(text string) bool { return !utf8.ValidString(text) }
	if !slices.ContainsFunc(s.Command.Argv, invalid) && !slices.ContainsFunc(s.Command.Env, invalid) && !invalid(s.Command.Dir) {
		return json.Marshal(plain(s))
	}
	b := inBytes{Dir: []byte(s.Command.Dir)}
	for _, arg := range s.Command.Argv {
		b.Argv = append(b.Argv, []byte(arg))
	}
	for _, variable := range s.Command.Env {
		b.Env = append(b.Env, []byte(variable))
	}
	return json.Marshal(struct {
		plain
		InBytes inBytes
	}{plain(s), b})
}

// UnmarshalJSON reads what MarshalJSON has written.
func (s *Spec) UnmarshalJSON(data []byte) error {
	type plain Spec
	both := struct {
		*plain
		InBytes *inBytes
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &both); err != nil || both.InBytes == nil {
		return err
	}
	b := both.InBytes
	s.Command.Argv, s.Command.Env, s.Command.Dir = nil, nil, string(b.Dir)
	for _, arg := range b.Argv {
		s.Command.Argv = append(s.Command.Argv, string(arg))
	}
	for _, variable := range b.Env {
		s.Command.Env = append(s.Command.Env, string(variable))
	}
	return nil
}
