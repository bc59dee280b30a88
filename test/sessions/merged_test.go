// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// alternate is a shell line that writes to both streams in turn, a thousand times each, and halfway waits for a file; alternated
// is the expected output in order, the first half being what precedes the wait.
const alternate = `i=0; while [ $i -lt 1000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); if [ $i = 500 ]; then until [ -e go ]; do sleep 0.01; done; fi; done`

func alternated(from, to int) string {
	var all strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&all, "out %d\nerr %d\n", i, i)
	}
	return all.String()
}

// An execution with merged output writes both streams into one pipe, by whichever way its output is read.
func TestBothStreamsComeInTheOrderOfTheWrites(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "touch go")
	want := alternated(0, 1000)
	for name, change := range map[string]func(*api.ExecRequest){
		"plain":       func(*api.ExecRequest) {},
		"with an id":  func(r *api.ExecRequest) { r.ID = "once" },
		"directory":   func(r *api.ExecRequest) { r.CwdMustExist = true },
		"limits":      func(r *api.ExecRequest) { r.Rlimits = map[string]string{"nofile": "1024"} },
		"in a script": func(r *api.ExecRequest) { r.Command = new(alternate + "\n#" + strings.Repeat("x", 200<<10)) },
	} {
		req := boxtest.Shell(alternate)
		req.MergeOutput = true
		change(&req)
		r := d.Result(t, "s1", req)
		if r.Status != "exited" || r.Stdout != want || r.Stderr != "" || r.Output[0].Bytes != uint64(len(want)) || r.Output[1].Bytes != 0 {
			t.Errorf(`%s: r = %s, want r.Status == "exited" and r.Stdout == %v and r.Stderr == "" and r.Output[0].Bytes == uint64(len(want)) and r.Output[1].Bytes == 0`,
				name, boxtest.Show(r), want)
		}
		if req.ID != "" {
			req.ID = "streamed"
		}
		var out, err bytes.Buffer
		streamed, failed := d.ExecStream(t.Context(), "s1", &req, client.Stdio{Stdout: &out, Stderr: &err}, nil)
		if failed != nil || streamed.Status != "exited" || out.String() != want || err.Len() > 0 {
			t.Errorf(`%s, streamed: out = %q and err = %q, streamed = %+v, failed = %v, want failed == nil and streamed.Status == "exited" and out.String() == %q and err.Len() <= 0`,
				name, out.String(), err.String(), streamed, failed, want)
		}
	}
	req := boxtest.Shell("cat >&2; echo; echo out")
	req.MergeOutput, req.Stdin = true, "in"
	if r := d.Result(t, "s1", req); r.Stdout != "in\nout\n" || r.Stderr != "" {
		t.Errorf(`with an input: r = %s, want r.Stdout == "in\nout\n" and r.Stderr == ""`, boxtest.Show(r))
	}
	if r := d.Result(t, "s1", boxtest.Shell(alternate)); len(r.Stdout) != len(want)/2 || len(r.Stderr) != len(want)/2 {
		t.Errorf("without merge_output: r = %s, want len(r.Stdout) == len(want) / 2 and len(r.Stderr) == len(want) / 2",
			boxtest.Show(r))
	}
}

// A process with merged output has it at each start, also under the next boxd, and differs from a process without it.
func TestAProcessKeepsItsStreamsMerged(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	req := boxtest.ShellProcess(alternate + "; [ -e again ] && exec sleep 1000; touch again")
	req.MergeOutput, req.Restart = true, &api.Restart{Policy: "always", Delay: length(10 * time.Millisecond)}
	d.NewProcess(t, "s1", "p", req)
	half, all := alternated(0, 500), alternated(0, 1000)
	boxtest.Eventually(t, "the process has written half of its output", func() bool {
		p, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && p.Output[0].Bytes == int64(len(half)) && p.Output[1].Bytes == 0
	})
	logs := func() (out, err string) {
		t.Helper()
		var streams [2]bytes.Buffer
		for i, name := range []string{"stdout", "stderr"} {
			a := d.Raw(t, "GET", "/v1/sessions/s1/processes/p/logs?stream="+name, "")
			if a.Code != http.StatusOK {
				t.Errorf("%s: a.Code = %d, a.Body = %s, want a.Code == 200", name, a.Code, a.Body)
			}
			streams[i].Write(a.Body)
		}
		return streams[0].String(), streams[1].String()
	}
	if out, err := logs(); out != half || err != "" {
		t.Errorf("half of it is %q and %q", out, err)
	}
	var out, err boxtest.Buffer
	attached, at := make(chan error, 1), make(chan struct{})
	begun := sync.OnceFunc(func() { close(at) })
	go func() { // ends with the process
		_, failed := d.Attach(t.Context(), "s1", "p", client.AttachOptions{Replay: true, Lossless: true, Attached: func(*api.StreamAttached) { begun() }}, client.Stdio{Stdout: &out, Stderr: &err}, nil)
		attached <- failed
	}()
	<-at
	d.Kill()
	d.Restart()
	d.Sh(t, "s1", "touch go")
	twice := all + all
	boxtest.Eventually(t, "the process was started again and has written all its output", func() bool {
		p, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && p.Starts == 2 && p.Output[0].Bytes+p.Output[1].Bytes == int64(len(twice))
	})
	if out, err := logs(); out != twice || err != "" {
		t.Errorf("all of it is %q and %q", out, err)
	}
	if again, isNew, err := d.StartProcess(t.Context(), "s1", "p", req); err != nil || isNew || again.Starts != 2 {
		t.Errorf("the same request again: %+v, new %v, %v", again, isNew, err)
	}
	apart := *req
	apart.MergeOutput = false
	_, _, failed := d.StartProcess(t.Context(), "s1", "p", &apart)
	boxtest.Refused(t, failed, http.StatusConflict, "merge_output")
	if _, err := d.StopProcess(t.Context(), "s1", "p"); err != nil {
		t.Error(err)
	}
	if failed := <-attached; failed != nil || out.String() != twice || err.String() != "" {
		t.Errorf(`attached: out = %q and err = %q, failed = %v, want failed == nil and out.String() == %q and err.String() == ""`,
			out.String(), err.String(), failed, twice)
	}
}

// merge_output is refused for a process that does not have two streams made by boxd.
func TestOneStreamIsNotMerged(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for name, change := range map[string]func(*api.ProcessRequest){
		"terminal": func(r *api.ProcessRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} },
		"direct":   func(r *api.ProcessRequest) { r.Stdio = "direct" },
	} {
		req := boxtest.ShellProcess("sleep 1000")
		req.MergeOutput = true
		change(req)
		_, _, err := d.StartProcess(t.Context(), "s1", "p", req)
		if e := boxtest.Refused(t, err, http.StatusBadRequest, "merge_output"); e.Value != "true" || !strings.HasPrefix(e.Allowed, "left out with ") {
			t.Errorf(`%s: e = %+v, want e.Value == "true" and e.Allowed starting with "left out with "`, name, e)
		}
	}
	for _, id := range []string{"", "named"} {
		req := boxtest.Shell("sleep 1000")
		req.ID, req.MergeOutput = id, true
		_, err := d.ExecStream(t.Context(), "s1", &req, client.Stdio{Terminal: &api.Terminal{Rows: 24, Cols: 80}}, nil)
		boxtest.Refused(t, err, http.StatusBadRequest, "merge_output")
	}
}
