// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
)

// Sessions prints a table of sessions.
func Sessions(out io.Writer, list []api.Session, now time.Time) error {
	w, style, highlight := newTable(), styleOf(out), map[int]func(string) string{}
	fmt.Fprintln(w, "ID\tOWNER\tPROFILE\tSTATE\tRUNNING\tMEMORY\tCPUS\tPIDS\tLAST USED\tEXPIRES IN")
	for i, s := range list {
		switch s.State {
		case "frozen":
			highlight[i+1] = style.warn
		case "unhealthy":
			highlight[i+1] = style.bad
		}
		left := "-"
		if s.ExpiresAt != nil {
			left = Roughly(s.ExpiresAt.Sub(now))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%g\t%d\t%s ago\t%s\n", Printable(s.ID), Person(s.Owner), s.Profile, s.State, s.Running,
			s.Memory, s.CPUs, s.Pids, Roughly(now.Sub(s.LastUsedAt)), left)
	}
	return w.print(out, style.headed("STATE", highlight))
}

// Person returns a readable name of a principal: the user name, if uid:N is a user of this host.
func Person(principal string) string {
	if uid, ok := strings.CutPrefix(principal, "uid:"); ok {
		if u, err := user.LookupId(uid); err == nil {
			return u.Username
		}
	}
	return Printable(principal)
}

// Processes prints a table of processes.
func Processes(out io.Writer, list []api.Process, now time.Time) error {
	w, style, highlight := newTable(), styleOf(out), map[int]func(string) string{}
	fmt.Fprintln(w, "NAME\tSTATE\tREADY\tPID\tSTARTS\tCLIENTS\tUPTIME\tCOMMAND")
	for i, p := range list {
		switch {
		case failed(&p):
			highlight[i+1] = style.bad
		case p.State == "waiting":
			highlight[i+1] = style.warn
		}
		state := p.State
		switch {
		case p.Reason != "":
			state += " (" + p.Reason + ")"
		case p.Result != nil && state == "ended":
			state = how(p.Result)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", Printable(p.ID), state, yesNo(p.Ready), orDash(pidOf(&p)), p.Starts, p.Readers, uptime(&p, now), commandLine(p.Argv))
	}
	return w.print(out, style.headed("STATE", highlight))
}

// failed reports whether a process has ended unintentionally.
func failed(p *api.Process) bool {
	if p.State != "ended" || p.Reason == "stopped" || p.Reason == "shutdown" {
		return false
	}
	r := p.Result
	return p.Reason != "" || r != nil && (r.Status != "exited" || r.ExitCode == nil || *r.ExitCode != 0)
}

// how describes how a program has ended, in a word or two.
func how(r *api.ExecResult) string {
	switch {
	case r.Status == "exited" && r.ExitCode != nil:
		return fmt.Sprintf("exited %d", *r.ExitCode)
	case r.Status == "signaled" && r.Signal != "":
		return r.Signal
	}
	return r.Status
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// pidOf returns the PID of a running program, 0 for an ended one: its PID may be another's by now.
func pidOf(p *api.Process) uint32 {
	if p.State == "ended" || p.State == "waiting" {
		return 0
	}
	return p.PID
}

func orDash(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// uptime returns how long a process has lived.
func uptime(p *api.Process, now time.Time) string {
	if p.EndedAt != nil {
		now = *p.EndedAt
	}
	return Roughly(now.Sub(p.StartedAt))
}

// commandLine formats a program with its arguments on one line, cut if it is long.
func commandLine(argv []string) string {
	const limit = 60
	line := []rune(Printable(strings.Join(argv, " ")))
	if len(line) > limit {
		return string(line[:limit-3]) + "..."
	}
	return string(line)
}
