// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/output"
)

// Intervals between checks of a port and runs of a command, and the timeout of one run.
const (
	portInterval    = 100 * time.Millisecond
	commandInterval = time.Second
	commandTimeout  = 30 * time.Second
)

// awaitReady checks whether the program that runs becomes ready in time. waits is false if there is nothing to check; otherwise
// exactly one result is sent on result, even after the end of ctx.
func (p *Process) awaitReady(ctx context.Context) (result <-chan bool, waits bool) {
	r := p.spec.Ready
	p.mu.Lock()
	at, run := p.at, p.holder == p.now
	p.mu.Unlock()
	if r == nil || at.Ready || !run {
		return nil, false
	}
	ready := make(chan bool, 1)
	go func() { // ends with ctx; attend receives the result
		in, cancel := context.WithDeadline(ctx, at.Began.Add(*r.Timeout))
		defer cancel()
		var is bool
		switch {
		case r.Line != nil:
			is = awaitLine(in, p.log, at.From, regexp.MustCompile(*r.Line)) // compiled before
		case r.Port != nil:
			is = every(in, portInterval, func() bool { return listens(p.hooks.Box.PID, *r.Port) })
		default:
			is = every(in, commandInterval, func() bool { return p.try(in, r.Command) })
		}
		ready <- is
	}()
	return ready, true
}

// every calls is until it returns true, or ctx ends.
func every(ctx context.Context, interval time.Duration, is func() bool) bool {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if is() {
			return true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// maxLine is how much of a line is examined.
const maxLine = 64 << 10

// awaitLine reads output until a line matches.
func awaitLine(ctx context.Context, log *output.Log, from [2]int64, pattern *regexp.Regexp) bool {
	reader, buf, lines := log.NewReader(from, false), make([]byte, 16<<10), [2]line{}
	for {
		changed := log.Changed()
		c, err := reader.Next(buf)
		switch {
		case err != nil:
			return false
		case c.Gap > 0:
			lines[c.Stream].reset()
		case lines[c.Stream].add(c.Data, pattern):
			return true
		}
		if c.Len() > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// line assembles lines from pieces of a stream.
type line struct {
	text []byte
	skip bool // until the end of the line: it is too long, or its beginning is missing
}

func (l *line) reset() { l.text, l.skip = l.text[:0], true }

// add reports whether data completes a line that matches.
func (l *line) add(data []byte, pattern *regexp.Regexp) bool {
	for len(data) > 0 {
		piece, rest, whole := bytes.Cut(data, []byte("\n"))
		if l.skip = l.skip || len(l.text)+len(piece) > maxLine; !l.skip {
			l.text = append(l.text, piece...)
		}
		if whole {
			if !l.skip && pattern.Match(bytes.TrimSuffix(l.text, []byte("\r"))) {
				return true
			}
			l.text, l.skip = l.text[:0], false
		}
		data = rest
	}
	return false
}

// listens reports whether a program in the box with that PID 1 listens on a TCP port. A connection would tell more, but boxd
// cannot make one, as the box has its own network. The kernel's list of its sockets is as good (proc(5), /proc/net/tcp).
func listens(pid uint32, port int) bool {
	for _, list := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/net/" + list)
		if err == nil && listening(string(text), port) {
			return true
		}
	}
	return false
}

// listening looks for a socket of a port in state LISTEN (0A).
func listening(text string, port int) bool {
	for l := range strings.Lines(text) {
		fields := strings.Fields(l)
		if len(fields) < 4 || fields[3] != "0A" {
			continue
		}
		i := strings.LastIndexByte(fields[1], ':')
		if n, err := strconv.ParseUint(fields[1][i+1:], 16, 16); err == nil && int(n) == port {
			return true
		}
	}
	return false
}

// try runs a command in the box and reports whether it exited with 0.
func (p *Process) try(ctx context.Context, argv []string) bool {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	c := &p.spec.Command
	t, err := p.hooks.Box.Start(&isolation.Command{Argv: argv, Env: c.Env, Dir: c.Dir, ScriptArg: -1, Timeout: commandTimeout, Limits: c.Limits}, client.Files{})
	if err != nil {
		return false
	}
	defer t.Close()
	exit, err := t.Wait(ctx)
	if err == nil {
		return exit.Reason == isolation.ReasonExited && exit.Code == 0
	}
	_ = t.Kill() // fails without a box: then it has ended
	<-t.Exited() // returns: otherwise the box is given up
	return false
}
