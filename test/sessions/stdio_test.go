// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// direct returns a request for a process of a shell line whose stdio descriptors are passed to its client.
func direct(line string) *api.ProcessRequest {
	return &api.ProcessRequest{Command: &line, Stdio: "direct"}
}

// take fetches the stdio descriptors of a process.
func take(t *testing.T, d *boxtest.Daemon, p string) [3]*os.File {
	t.Helper()
	files, err := d.Stdio(t.Context(), "s1", p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return files
}

// forStdio returns the header of a request for descriptors.
func forStdio() []string { return []string{"Upgrade: boxd-stdio", "Connection: Upgrade"} }

// chat sends lines to a program that echoes them.
func chat(t *testing.T, files [3]*os.File, out *bufio.Reader, lines int) {
	t.Helper()
	for i := range lines {
		line := fmt.Sprintf("line %d\n", i)
		if _, err := files[0].WriteString(line); err != nil {
			t.Fatal(err)
		}
		if got, err := out.ReadString('\n'); got != line || err != nil {
			t.Fatalf("got %q, err = %v, want got == %q and no error", got, err, line)
		}
	}
}

func TestStdioIsTheClientsAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	state := d.NewProcess(t, "s1", "p", direct("cat; echo the end >&2; exit 8"))
	if state.Stdio != "direct" || state.Stdin || state.State != "running" {
		t.Errorf(`state = %+v, want state.Stdio == "direct" and state.Stdin == false and state.State == "running"`,
			state)
	}
	if again, isNew, err := d.StartProcess(t.Context(), "s1", "p", direct("cat; echo the end >&2; exit 8")); err != nil || isNew || again.PID != state.PID {
		t.Errorf("again = %+v, isNew = %v, err = %v, want no error and isNew == false and again.PID == %v",
			again, isNew, err, state.PID)
	}
	_, _, err := d.StartProcess(t.Context(), "s1", "p", boxtest.ShellProcess("cat; echo the end >&2; exit 8"))
	boxtest.Refused(t, err, http.StatusConflict, "stdio")

	files := take(t, d, "p")
	out := bufio.NewReader(files[1])
	chat(t, files, out, 100)
	_, err = d.Stdio(t.Context(), "s1", "p")
	if e := boxtest.Refused(t, err, http.StatusConflict, ""); !strings.Contains(e.Detail, "have been taken") {
		t.Errorf(`e = %+v, want e.Detail containing "have been taken"`, e)
	}
	chat(t, files, out, 1)

	// The program has these three descriptors and no others, and no other process has their other ends.
	children := boxtest.Children(t, int(s.PID))
	if len(children) != 1 {
		t.Fatalf("PID 1 has %d children", len(children))
	}
	has := descriptors(t, children[0])
	if len(has) != 3 || !strings.HasPrefix(has["0"], "pipe:") || !strings.HasPrefix(has["1"], "pipe:") || !strings.HasPrefix(has["2"], "pipe:") {
		t.Errorf(`the program has %v, want len(has) == 3 and has["0"] starting with "pipe:" and has["1"] starting with "pipe:" and has["2"] starting with "pipe:"`,
			has)
	}
	ours := descriptors(t, os.Getpid())
	for fd, link := range has {
		if !slices.Contains(values(ours), link) {
			t.Errorf("the client does not have the other end of %s", fd)
		}
		for name, pid := range map[string]int{"boxd": d.PID(), "the keeper": d.Keeper(), "PID 1": int(s.PID)} {
			boxtest.Eventually(t, name+" has closed the end of "+fd+" that it has sent", func() bool {
				return !slices.Contains(values(descriptors(t, pid)), link)
			})
		}
	}

	files[0].Close()
	for i, want := range []string{"", "the end\n"} {
		if got, err := io.ReadAll([]io.Reader{out, files[2]}[i]); string(got) != want || err != nil {
			t.Errorf("got %q, err = %v, want got == want and no error", got, err)
		}
	}
	if end := d.Ended(t, "s1", "p"); *end.Result.ExitCode != 8 || end.Result.Stdout+end.Result.Stderr != "" || end.Stdio != "direct" {
		t.Errorf(`end = %+v, want *end.Result.ExitCode == 8 and end.Result.Stdout + end.Result.Stderr == "" and end.Stdio == "direct"`,
			end)
	}
}

// descriptors returns the open descriptors of a process, with their targets.
func descriptors(t *testing.T, pid int) map[string]string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, e := range entries {
		if link, err := os.Readlink(dir + "/" + e.Name()); err == nil { // otherwise it has been closed meanwhile
			list[e.Name()] = link
		}
	}
	return list
}

func values(m map[string]string) (list []string) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

func TestStdioGoesOnWithoutBoxd(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "taken", direct("cat; exit 8"))
	d.NewProcess(t, "s1", "left", direct("cat; exit 9"))
	files := take(t, d, "taken")
	out := bufio.NewReader(files[1])
	chat(t, files, out, 10)
	d.Kill()
	chat(t, files, out, 10)
	d.Restart()
	chat(t, files, out, 10)
	boxtest.Eventually(t, "the next boxd has restored the process", func() bool {
		state, err := d.Process(t.Context(), "s1", "taken", 0)
		return err == nil && state.State == "running" && state.Stdio == "direct"
	})
	for _, p := range []string{"taken", "left"} {
		_, err := d.Stdio(t.Context(), "s1", p)
		if e := boxtest.Refused(t, err, http.StatusConflict, ""); !strings.Contains(e.Detail, "earlier boxd") {
			t.Errorf(`%s: e = %+v, want e.Detail containing "earlier boxd"`, p, e)
		}
	}
	if end := d.Ended(t, "s1", "left"); *end.Result.ExitCode != 9 { // it has seen EOF on its input
		t.Errorf("end = %+v, want *end.Result.ExitCode == 9", end)
	}
	if err := d.SignalProcess(t.Context(), "s1", "taken", "SIGCONT"); err != nil {
		t.Error(err)
	}
	chat(t, files, out, 10)
	files[0].Close()
	if end := d.Ended(t, "s1", "taken"); *end.Result.ExitCode != 8 {
		t.Errorf("end = %+v, want *end.Result.ExitCode == 8", end)
	}
}

func TestStdioIsRefused(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for field, change := range map[string]func(r *api.ProcessRequest){
		"stdio":          func(r *api.ProcessRequest) { r.Stdio = "kept" },
		"terminal":       func(r *api.ProcessRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} },
		"stdin":          func(r *api.ProcessRequest) { r.Stdin = true },
		"output":         func(r *api.ProcessRequest) { r.Output = new(quantity.MiB) },
		"ready.line":     func(r *api.ProcessRequest) { r.Ready = &api.Ready{Line: new("up")} },
		"restart.policy": func(r *api.ProcessRequest) { r.Restart = &api.Restart{Policy: "always"} },
	} {
		req := direct("cat")
		change(req)
		_, _, err := d.StartProcess(t.Context(), "s1", "none", req)
		boxtest.Refused(t, err, http.StatusBadRequest, field)
	}
	req := direct("cat")
	req.Restart, req.Ready = &api.Restart{Policy: "no"}, &api.Ready{Command: []string{"true"}}
	d.NewProcess(t, "s1", "p", req)
	d.NewProcess(t, "s1", "kept", boxtest.ShellProcess("sleep 1000"))
	d.NewProcess(t, "s1", "ended", direct("exit 0"))
	d.Ended(t, "s1", "ended")
	for p, want := range map[string]int{"kept": http.StatusConflict, "ended": http.StatusConflict, "none": http.StatusNotFound} {
		_, err := d.Stdio(t.Context(), "s1", p)
		boxtest.Refused(t, err, want, "")
	}
	_, err := d.Stdio(t.Context(), "none", "p")
	boxtest.Refused(t, err, http.StatusNotFound, "")

	// A request that is malformed, or not allowed, has taken no descriptors.
	const path = "/v1/sessions/s1/processes/p/stdio"
	ask := func(text string) boxtest.Answer {
		t.Helper()
		a, err := boxtest.Ask(t.Context(), d.Socket, text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	plain := func(method string, header ...string) string {
		return method + " " + path + " HTTP/1.1\r\nHost: boxd\r\n" + strings.Join(append(header, ""), "\r\n") + "\r\n"
	}
	for field, text := range map[string]string{
		"Upgrade": plain("GET"), "Connection": plain("GET", "Upgrade: boxd-stdio"), "method": plain("POST", forStdio()...),
		"body": plain("GET", append(forStdio(), "Content-Length: 1")...) + "x",
	} {
		if p := ask(text); p.Code/100 != 4 || p.Problem(t).Field != field {
			t.Errorf("%s: p.Code = %d, p.Body = %s, want p.Code / 100 == 4 and p.Problem(t).Field == field",
				field, p.Code, p.Body)
		}
	}
	if p := ask(plain("GET", boxtest.Upgrade()...)); p.Problem(t).Field != "Upgrade" {
		t.Errorf(`p.Code = %d, p.Body = %s, want p.Problem(t).Field == "Upgrade"`, p.Code, p.Body)
	}
	for code, query := range map[int]string{http.StatusNotFound: "", http.StatusForbidden: "?owner=uid:0"} {
		if a := d.AsUser(t, boxtest.OtherUID, boxtest.Request("GET", path+query, "", forStdio()...)); a[0].Code != code {
			t.Errorf("another user: a[0].Code = %d, a[0].Body = %s, want a[0].Code == %v", a[0].Code, a[0].Body, code)
		}
	}
	// boxd has no output of it to show.
	_, err = d.Logs(t.Context(), "s1", "p", client.LogOptions{})
	boxtest.Refused(t, err, http.StatusConflict, "")
	_, err = d.Attach(t.Context(), "s1", "p", client.AttachOptions{Write: true}, client.Stdio{Stdin: strings.NewReader("")}, nil)
	boxtest.Refused(t, err, http.StatusConflict, "")

	files := take(t, d, "p")
	chat(t, files, bufio.NewReader(files[1]), 1)
	if state, err := d.StopProcess(t.Context(), "s1", "p"); err != nil || state.Reason != "stopped" || state.Result.Signal != "SIGTERM" {
		t.Errorf(`state = %+v, err = %v, want no error and state.Reason == "stopped" and state.Result.Signal == "SIGTERM"`,
			state, err)
	}
}

// A client may disconnect at any moment: its program sees that, and boxd keeps nothing of it.
func TestStdioOfAClientThatGoes(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	const head = "GET /v1/sessions/s1/processes/p/stdio HTTP/1.1\r\nHost: boxd\r\nUpgrade: boxd-stdio\r\nConnection: Upgrade\r\n\r\n"
	for _, read := range []int{0, 1, 12, 4 << 10} { // a plain read drops descriptors
		for range 5 {
			d.NewProcess(t, "s1", "p", direct("cat; exit 8"))
			conn, err := net.Dial("unix", d.Socket)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, head); err != nil {
				t.Fatal(err)
			}
			if read > 0 {
				if _, err := conn.Read(make([]byte, read)); err != nil {
					t.Error(err)
				}
			}
			conn.Close()
			if read == 0 { // it may have closed before boxd accepted the connection
				files, err := d.Stdio(t.Context(), "s1", "p")
				for _, f := range files {
					if err == nil {
						f.Close()
					}
				}
			}
			if end := d.Ended(t, "s1", "p"); *end.Result.ExitCode != 8 {
				t.Errorf("end = %+v, want *end.Result.ExitCode == 8", end)
			}
			if err := d.DeleteProcess(t.Context(), "s1", "p"); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Nor does boxd keep anything of a process whose descriptors no client has ever fetched.
	d.NewProcess(t, "s1", "p", direct("cat"))
	if err := d.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	d.NothingLeft(before)
}
