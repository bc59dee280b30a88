// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Not parallel: it depends on the environment.
func TestColoursAreForTerminalsOfPeopleWhoWantThem(t *testing.T) {
	screen, line, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer line.Close()
	for _, tc := range []struct {
		out           any
		term, noColor string
		want          bool
	}{
		{line, "xterm-256color", "", true},
		{line, "linux", "", true},
		{line, "xterm", "1", false},
		{line, "xterm", "0", false}, // any value
		{line, "dumb", "", false},
		{line, "", "", false},
		{&bytes.Buffer{}, "xterm", "", false},
		{io.Discard, "xterm", "", false},
		{nil, "xterm", "", false},
	} {
		t.Setenv("TERM", tc.term)
		t.Setenv("NO_COLOR", tc.noColor)
		s := styleOf(tc.out)
		if got := s.bold("a") == "\x1b[1ma\x1b[0m" && s.bad("a") == "\x1b[31ma\x1b[0m" && s.warn("a") == "\x1b[33ma\x1b[0m"; got != tc.want {
			t.Errorf(`%T, TERM=%s, NO_COLOR=%s: s.bold("a") = %q, want got == tc.want`,
				tc.out, tc.term, tc.noColor, s.bold("a"))
		}
		if plain := s.bold("a")+s.bad("a")+s.warn("a") == "aaa"; plain == tc.want {
			t.Errorf("%T, TERM=%s, NO_COLOR=%s: neither with colours nor without", tc.out, tc.term, tc.noColor)
		}
		if s.bold("") != "" {
			t.Error("an empty text got colour codes")
		}
	}
}

func TestFailedRowsOfATableAreHighlighted(t *testing.T) {
	t.Parallel()
	style := palette{on: true}
	w := newTable()
	fmt.Fprintln(w, "NAME\tSTATE\tCOMMAND")
	fmt.Fprintln(w, "running\trunning\ttrue")
	fmt.Fprintln(w, "日本 exited 1\texited 1\tfalse")
	fmt.Fprintln(w, "last\twaiting\t")
	var out bytes.Buffer
	if err := w.print(&out, style.headed("STATE", map[int]func(string) string{2: style.bad, 3: style.warn})); err != nil {
		t.Fatal(err)
	}
	const want = "\x1b[1mNAME         STATE     COMMAND\x1b[0m\n" +
		"running      running   true\n" +
		"日本 exited 1  \x1b[31mexited 1\x1b[0m  false\n" +
		"last         \x1b[33mwaiting\x1b[0m   \n"
	if out.String() != want {
		t.Error(cmp.Diff(want, out.String()))
	}
}

func TestAStoppedProcessIsNotShownAsFailed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p    api.Process
		want bool
	}{
		{api.Process{State: "running"}, false},
		{api.Process{State: "waiting", Result: &api.ExecResult{Status: "exited", ExitCode: new(1)}}, false},
		{api.Process{State: "ended"}, false}, // its result is not shown here
		{api.Process{State: "ended", Result: &api.ExecResult{Status: "exited", ExitCode: new(0)}}, false},
		{api.Process{State: "ended", Reason: "stopped", Result: &api.ExecResult{Status: "signaled", Signal: "SIGTERM"}}, false},
		{api.Process{State: "ended", Result: &api.ExecResult{Status: "exited", ExitCode: new(3)}}, true},
		{api.Process{State: "ended", Result: &api.ExecResult{Status: "oom_killed"}}, true},
		{api.Process{State: "ended", Reason: "crash loop"}, true},
	} {
		if got := failed(&tc.p); got != tc.want {
			t.Errorf("%+v: got %v, want %v", tc.p, got, tc.want)
		}
	}
}

func TestAStatusFitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	s := api.Status{
		Version: "1.2.3", StartedAt: now.Add(-3 * time.Hour), Sessions: 3, MaxSessions: 256, Processes: 2, MaxProcesses: 64, Running: 5, Executed: 42,
		ControlGroups: "unified", Enforced: map[string]string{"memory": "cgroup2", "cpu": "cgroup2", "pids": "cgroup2", "io": "none", "workspace": "project-quota", "tmp": "tmpfs"},
	}
	var out bytes.Buffer
	if err := Status(&out, &s, now); err != nil {
		t.Fatal(err)
	}
	want := `boxd            1.2.3, up 3h
state           ready
boxes           3 of 256
processes       2, at most 64 per box
executions      3 running, 42 since boxd started
cgroups         unified
limits          memory by cgroup2, cpu by cgroup2, pids by cgroup2, io by none,
                workspace by project-quota, tmp by tmpfs
`
	if out.String() != want {
		t.Error(cmp.Diff(want, out.String()))
	}
	out.Reset()
	s.Degraded = []string{"boxkeeper is not running: boxes keep running, but none can start", "no box can start: " + strings.Repeat("long ", 30)}
	s.Unenforced = []string{"memory", "cpu", "pids", "io", "workspace"}
	if err := Status(&out, &s, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nstate           degraded\n", "\nDEGRADED        boxkeeper is not running: ", "\nDEGRADED        no box can start: long ",
		"\n                long ", "\nNOT ENFORCED    memory, cpu, pids, io, workspace: allowed by limits.best_effort\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("longer than 80 columns: line = %q, want len(line) <= 81", line)
		}
	}
}

func TestFoldedTextIsAllThere(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"one", []string{"one"}},
		{"one two three", []string{"one", "two", "three"}},
		{"a b c d e f", []string{"a b c", "d e f"}},
		{"much-too-long a", []string{"much-too-long", "a"}},
		{"日本語 日", []string{"日本語 日"}},
	} {
		if got := fold(tc.text, 5); !slices.Equal(got, tc.want) {
			t.Errorf("%q: got %q, want %q", tc.text, got, tc.want)
		}
	}
}

func TestDistributionsHaveFamilies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		release string
		want    Family
	}{
		{"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n", familyDebian},
		{"ID=ubuntu\nID_LIKE=debian\n", familyDebian},
		{"NAME=\"Fedora Linux\"\nID=fedora\n", familyFedora},
		{"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", familyFedora},
		{"ID=\"centos\"\n", familyFedora},
		{"VARIANT_ID=fedora\nID=x\n", familyDebian},
		{"", familyDebian},
	} {
		if got := FamilyOf(tc.release); got != tc.want {
			t.Errorf("%q is like %s", tc.release, got)
		}
	}
}

func TestEveryFindingHasCommands(t *testing.T) {
	t.Parallel()
	check := func(level, name, detail, hint string) api.Check {
		return api.Check{Name: name, Level: level, Detail: detail, Hint: hint}
	}
	for _, tc := range []struct {
		check          api.Check
		debian, fedora string // in a command
	}{
		{check("fail", "kernel", "Linux 5.10 lacks something", ""), "apt-get full-upgrade", "dnf upgrade"},
		{check("fail", "user namespaces", "user.max_user_namespaces is 0", ""), "/etc/sysctl.d/60-boxd.conf", "sysctl --system"},
		{check("fail", "capabilities", "missing CAP_KILL", ""), "systemctl revert boxd-keeper.service", "systemctl restart boxd-keeper.service"},
		{check("fail", "id ranges", "/etc/subuid gives x the ids", ""), "base = NUMBER", "60-ids.toml"},
		{check("fail", "test box", "clone: no", ""), "journalctl ", "journalctl "},
		{check("warn", "cgroups", "hybrid: limits need cgroup v2", ""), "update-grub", "grubby "},
		{check("warn", "cgroups", "unified, but not available to boxes: x", ""), "systemctl start boxd-boxes.service", "systemctl start boxd-boxes.service"},
		{check("warn", "memory limit", "best effort", ""), "cgroup.controllers", "boxd-boxes.service"},
		{check("warn", "cpu limit", "best effort", ""), "cgroup.controllers", "boxd-boxes.service"},
		{check("warn", "pids limit", "best effort", ""), "cgroup.controllers", "boxd-boxes.service"},
		{check("warn", "io limit", "best effort", ""), "cgroup.controllers", "boxd-boxes.service"},
		{check("warn", "workspace limit", "x", "install e2fsprogs; or as the operator"), "apt-get install e2fsprogs", "dnf install e2fsprogs"},
		{check("warn", "workspace limit", "x", "install xfsprogs"), "apt-get install xfsprogs", "dnf install xfsprogs"},
		{check("warn", "workspace limit", "x", "modprobe loop, and"), "modprobe loop", "modules-load.d"},
		{check("warn", "workspace limit", "x", ""), `'[workspaces]' 'store_size = "16GiB"'`, "60-store.toml"},
		{check("warn", "huge pages", "transparent huge pages are on for shared memory (always)", ""), "echo advise >/sys/", "/etc/tmpfiles.d/boxd-output.conf"},
		{check("warn", "disk", "3 MiB free", ""), "boxctl rm BOX", "boxctl ls --all"},
		{check("warn", "box network", "x", "sysctl -w net.ipv4.ip_forward=1, and"), "60-boxd-network.conf", "sysctl --system"},
		{check("warn", "box network", "x", "modprobe -a nf_tables veth, or"), "modprobe -a nf_tables", "modules-load.d"},
		{check("warn", "box network", "x", "allow packets from and to interfaces bx* there"), "nft list chains", "interfaces bx*"},
		{check("warn", "box network", "x", "set network.ipv4 or"), "ip route", "60-network.toml"},
		{check("fail", "systemd scopes", "no bus", ""), "apt-get install dbus", "dnf install dbus-broker"},
	} {
		for family, want := range map[Family]string{familyDebian: tc.debian, familyFedora: tc.fedora} {
			fixes := Fixes(&api.Doctor{Checks: []api.Check{check("ok", tc.check.Name, "", ""), tc.check}}, family)
			if len(fixes) != 1 || fixes[0].Name != tc.check.Name || !strings.Contains(strings.Join(fixes[0].Commands, "\n"), want) {
				t.Errorf(`%+v on %s: fixes = %q, want len(fixes) == 1 and fixes[0].Name == tc.check.Name and strings.Join(fixes[0].Commands, "\n") containing %q`,
					tc.check, family, fixes, want)
			}
		}
	}
	// A list in a drop-in replaces the one before it, so it must include what is configured already.
	limits := []api.Check{check("fail", "memory limit", "", ""), check("fail", "pids limit", "", ""), check("warn", "cpu limit", "best effort: not enforced", ""), check("warn", "io limit", "it cannot be", "")}
	fixes := Fixes(&api.Doctor{Checks: limits}, familyDebian)
	if len(fixes) != 2 || fixes[0].Name != "memory limit, pids limit, cpu limit, io limit" ||
		!strings.Contains(fixes[1].Commands[0], `best_effort = ["memory", "pids", "cpu"]`) || fixes[1].Commands[1] != "systemctl reload boxd.service" {
		t.Errorf("fixes = %q", fixes)
	}
	fixes = Fixes(&api.Doctor{Checks: append([]api.Check{check("warn", "cgroups", "hybrid", "")}, limits[2:]...)}, familyDebian)
	if len(fixes) != 1 || fixes[0].Name != "cgroups, cpu limit, io limit" || fixes[0].Commands[1] != "reboot" {
		t.Errorf(`fixes = %q, want len(fixes) == 1 and fixes[0].Name == "cgroups, cpu limit, io limit" and fixes[0].Commands[1] == "reboot"`,
			fixes)
	}
	if fixes := Fixes(&api.Doctor{Checks: []api.Check{check("warn", "new", "", "do it")}}, familyDebian); fixes[0].Commands[0] != "# no command known: do it" {
		t.Errorf(`of a boxd with a newer check: fixes = %q, want fixes[0].Commands[0] == "# no command known: do it"`,
			fixes)
	}
	var out bytes.Buffer
	if err := PrintFixes(&out, nil); err != nil || out.String() != "# nothing to fix\n" {
		t.Errorf(`out = %q, err = %v, want no error and out.String() == "# nothing to fix\n"`, out.String(), err)
	}
	out.Reset()
	if err := PrintFixes(&out, []Fix{{"disk", []string{"a", "b"}}}); err != nil || out.String() != "\n# disk\na\nb\n" {
		t.Errorf(`out = %q, err = %v, want no error and out.String() == "\n# disk\na\nb\n"`, out.String(), err)
	}
}

// The generated command writes a drop-in that boxd can read: a table, and a line of it.
func TestADropInIsWrittenByTheShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := strings.ReplaceAll(dropIn("limits", "limits", `best_effort = ["memory", "io"]`), "/etc/boxd", dir)
	if out, err := shell(line); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(dir + "/box.toml.d/60-limits.toml")
	if err != nil || string(text) != "[limits]\nbest_effort = [\"memory\", \"io\"]\n" {
		t.Errorf(`text = %q, err = %v, want no error and text == "[limits]\nbest_effort = [\"memory\", \"io\"]\n"`,
			text, err)
	}
}

func TestWhoCannotConnectIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		closed deniedSocket
		want   string
	}{
		{deniedSocket{"/s", "ann", "boxd", false}, "ask for 'usermod -aG boxd ann' and log in again"},
		{deniedSocket{"/s", "ann", "boxd", true}, "log in again, or try 'newgrp boxd'"},
		{deniedSocket{"/s", "ann", "", false}, "only root can use /s: use sudo"},
	} {
		if got := deniedHint(tc.closed); !strings.Contains(got, tc.want) {
			t.Errorf("%+v: got %s, want got containing %q", tc.closed, got, tc.want)
		}
	}
	dir := t.TempDir()
	for _, tc := range []struct {
		err  error
		want string
	}{
		{syscall.ENOENT, "'systemctl start boxd.socket'"},
		{syscall.ECONNREFUSED, "'systemctl start boxd.socket'"},
		{syscall.EACCES, "'usermod -aG boxd "},
		{syscall.EMFILE, ""},
	} {
		if got := ConnectHint(&client.ConnectError{Socket: dir + "/none", Err: tc.err}); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf(`%v: got %s, want got containing %q and (got == "") == (tc.want == "")`, tc.err, got, tc.want)
		}
	}
	socket := dir + "/s"
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ConnectHint(&client.ConnectError{Socket: socket, Err: syscall.EACCES}); !strings.Contains(got, "only root can use") {
		t.Errorf(`of a socket without a group: got %s, want got containing "only root can use"`, got)
	}
}

func TestALineIsCutBeforeItIsPainted(t *testing.T) {
	t.Parallel()
	style := palette{on: true}
	for _, tc := range []struct {
		line topLine
		want string
	}{
		{topLine{Text: "abcdef  "}, "abcd"},
		{topLine{Text: "ab   x"}, "ab"},
		{topLine{Text: "abcdef", Heading: true}, "\x1b[1mabcd\x1b[0m"},
		{topLine{Text: "abcdef", Bad: true}, "\x1b[31mabcd\x1b[0m"},
		{topLine{}, ""},
	} {
		if got := tc.line.in(style, 4); got != tc.want || cutColumns(tc.line.in(palette{}, 4), 4) != tc.line.in(palette{}, 4) {
			t.Errorf("%+v: got %q, want got == %q and cutColumns(tc.line.in(palette{}, 4), 4) == tc.line.in(palette{}, 4)",
				tc.line, got, tc.want)
		}
	}
}

func shell(line string) (string, error) {
	out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput()
	return string(out), err
}

func TestAFindingOfManyLinesIsOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := api.Doctor{Checks: []api.Check{{Name: "disk", Level: "fail", Detail: "one\ntwo\tthree", Hint: "do\nit"}, {Name: "a long name", Level: "ok", Detail: "four"}}}
	const want = "FAIL  disk         one; two three\n                   hint: do; it\nOK    a long name  four\n"
	if err := Doctor(&out, &d); err != nil || out.String() != want {
		t.Errorf("err = %v, (-want +out.String()) %s, want no error and out.String() == want",
			err, cmp.Diff(want, out.String()))
	}
}
