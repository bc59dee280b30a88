// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// numbered is a shell line that writes 300,000 numbers, 2,100,000 bytes; numbersInLines is the same text.
const numbered = `seq 100000 400000 | head -n 300000`

func numbersInLines() string {
	var all strings.Builder
	for i := 100_000; i < 400_000; i++ {
		fmt.Fprintln(&all, i)
	}
	return all.String()
}

// logsOf returns the retained standard output of a process, from an offset on.
func logsOf(t *testing.T, d *boxtest.Daemon, process string, from int) string {
	t.Helper()
	a := d.Raw(t, "GET", "/v1/sessions/s1/processes/"+process+"/logs?stream=stdout&stderr=0&stdout="+strconv.Itoa(from), "")
	if a.Code != http.StatusOK {
		t.Fatalf("a.Code = %d, a.Body = %s, want a.Code == 200", a.Code, a.Body)
	}
	return string(a.Body)
}

// A spooled execution with an id, and a spooled process, keep all their output, where output in memory would be cut: on disk,
// over restarts of boxd and of the process, for as long as they are known.
func TestOutputIsSpooledToDisk(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Kept)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	want, size := numbersInLines(), quantity.Size(8*quantity.MiB)
	req := boxtest.Shell(numbered)
	req.ID, req.Spool, req.OutputLimit = "e", &size, new(quantity.Size(1000))
	plan, err := d.PlanExec(t.Context(), "s1", &req)
	if err != nil || plan.Refused != nil || plan.Exec.Spool != size || plan.Exec.OutputLimit != 1000 {
		t.Errorf("planned: plan = %+v, err = %v, want no error and plan.Refused == nil and plan.Exec.Spool == %v and plan.Exec.OutputLimit == 1000",
			plan, err, size)
	}
	r := d.Result(t, "s1", req)
	if head, tail, cut := strings.Cut(r.Stdout, "\n... ["); r.Status != "exited" || !cut || head != want[:600] || !strings.HasSuffix(tail, want[len(want)-400:]) || r.Output[0].Bytes != uint64(len(want)) || r.Output[0].Omitted != uint64(len(want)-1000) {
		t.Errorf("the answer: %s", boxtest.Show(r))
	}
	process := boxtest.ShellProcess(numbered + `; [ -e again ] && exec sleep 100000; touch again`)
	process.Spool, process.Restart = &size, &api.Restart{Policy: "always", Delay: length(10 * time.Millisecond)}
	d.NewProcess(t, "s1", "p", process)
	twice := want + want
	boxtest.Eventually(t, "the process was started again and has written all its output", func() bool {
		p, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && p.Starts == 2 && p.Output[0].Bytes == int64(len(twice))
	})
	check := func(when string) {
		t.Helper()
		for id, all := range map[string]string{"e": want, "p": twice} {
			if logsOf(t, d, id, 0) != all || logsOf(t, d, id, 1_500_000) != all[1_500_000:] {
				t.Errorf("%s, %s: the output is not what was written", when, id)
			}
			if p, err := d.Process(t.Context(), "s1", id, 0); err != nil || p.Spool == nil || *p.Spool != size || p.Output[0] != (api.StreamState{Bytes: int64(len(all))}) {
				t.Errorf("%s, %s: p = %+v, err = %v, want no error and p.Spool != nil and *p.Spool == %v and p.Output[0] == api.StreamState{Bytes: int64(len(all))}",
					when, id, p, err, size)
			}
		}
		if again := d.Result(t, "s1", req); again.Stdout != r.Stdout {
			t.Errorf("%s: read again it is %s, want again.Stdout == %v", when, boxtest.Show(again), r.Stdout)
		}
	}
	check("before")
	if n := openFiles(t, s.PID, "/workspace/#"); n != 4 {
		t.Errorf("%d files on disk have the output of two programs", n)
	}
	if left := d.Sh(t, "s1", "ls -A"); left != "again\n" {
		t.Errorf(`the workspace has %q, want "again\n"`, left)
	}
	d.Kill()
	d.Restart()
	check("of the next boxd")
	other := *process
	other.Spool = new(quantity.Size(9 * quantity.MiB))
	_, _, failed := d.StartProcess(t.Context(), "s1", "p", &other)
	boxtest.Refused(t, failed, http.StatusConflict, "spool")
	if p, err := d.StopProcess(t.Context(), "s1", "p"); err != nil || p.Result == nil || p.Result.Stdout != "\n... ["+strconv.Itoa(len(twice)-1<<20)+" bytes omitted] ...\n"+twice[len(twice)-1<<20:] {
		t.Errorf(`the end of the process: p.Output = %+v, err = %v, want no error and p.Result != nil and p.Result.Stdout == "\n... [" + strconv.Itoa(len(twice)-1<<20) + " bytes omitted] ...\n" + twice[len(twice)-1<<20:]`,
			p.Output, err)
	}
}

// openFiles counts the descriptors of a process whose target begins with prefix.
func openFiles(t *testing.T, pid uint32, prefix string) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(target, prefix) {
			n++
		}
	}
	return n
}

// Only the requested size is kept, and the least useful part dropped: the middle of an execution, and the beginning of a process.
func TestWhatIsSpooledIsBounded(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	want, size := numbersInLines(), quantity.Size(quantity.MiB)
	req := boxtest.Shell(numbered)
	req.ID, req.Spool = "e", &size
	d.Result(t, "s1", req)
	process := boxtest.ShellProcess(numbered)
	process.Spool = &size
	d.NewProcess(t, "s1", "p", process)
	d.Ended(t, "s1", "p")
	const most = 600 << 10 // at least this much of the middle is gone, as disk space is freed in steps
	for id, head := range map[string]int{"e": int(size) * 6 / 10, "p": 0} {
		got := logsOf(t, d, id, 0)
		if tail := int(size) - head; len(got) > len(want)-most || got[:head] != want[:head] || !strings.HasSuffix(got, want[len(want)-tail:]) {
			t.Errorf("%s: %d bytes of %d", id, len(got), len(want))
		}
	}
}

// A spool that makes no sense is refused with its field: output that could not be read, that boxd does not see, and more than the
// operator allows for all processes together, until others are removed.
func TestSpoolsAreRefusedByField(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[processes]\nmax_spool = \"4MiB\"\n")
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	mib := quantity.Size(quantity.MiB)
	unnamed := boxtest.Shell("true")
	unnamed.Spool = &mib
	_, err := d.Exec(t.Context(), "s1", &unnamed)
	boxtest.Refused(t, err, http.StatusBadRequest, "spool")
	start := func(id string, change func(*api.ProcessRequest)) error {
		req := boxtest.ShellProcess("echo out")
		req.Spool = &mib
		change(req)
		_, _, err := d.StartProcess(t.Context(), "s1", id, req)
		return err
	}
	for field, change := range map[string]func(*api.ProcessRequest){
		"output": func(r *api.ProcessRequest) { r.Output = &mib },
		"spool":  func(r *api.ProcessRequest) { r.Stdio = "direct" },
	} {
		boxtest.Refused(t, start(field, change), http.StatusBadRequest, field)
	}
	for _, size := range []quantity.Size{1, 5 * quantity.MiB} {
		boxtest.Refused(t, start("x", func(r *api.ProcessRequest) { r.Spool = &size }), http.StatusBadRequest, "spool")
	}
	for id, change := range map[string]func(*api.ProcessRequest){
		"two":      func(*api.ProcessRequest) {},
		"merged":   func(r *api.ProcessRequest) { r.MergeOutput = true },
		"terminal": func(r *api.ProcessRequest) { r.Terminal = &api.Terminal{Rows: 24, Cols: 80} },
	} {
		if err := start(id, change); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		d.Ended(t, "s1", id)
	}
	one := boxtest.Shell("true")
	one.ID, one.Spool = "e", new(quantity.Size(policyMinSpool))
	_, err = d.Exec(t.Context(), "s1", &one)
	if e := boxtest.Refused(t, err, http.StatusTooManyRequests, "spool"); e.Denial == nil || e.Denial.Rule != "processes.max_spool" {
		t.Errorf(`e = %+v, want e.Denial != nil and e.Denial.Rule == "processes.max_spool"`, e)
	}
	if err := d.DeleteProcess(t.Context(), "s1", "merged"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the removed processes have no spool files", func() bool { return openFiles(t, s.PID, "/workspace/#") == 4 })
	d.Result(t, "s1", one)
}

// policyMinSpool is the smallest allowed spool.
const policyMinSpool = 64 * quantity.KiB

// On a full disk the program is neither blocked nor ended: part of its own output is lost, and readers are told which part.
func TestAFullDiskDropsSpooledOutput(t *testing.T) {
	disk := boxtest.TempDir(t)
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,nr_inodes=20000,mode=755"); err != nil {
		boxtest.Missing(t, "mount: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	d := boxtest.StartWith(t, fmt.Sprintf("state_dir = %q\n", filepath.Join(disk, "state")), boxtest.BestEffort, "[host]\nkeep_free_disk = \"1MiB\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.Sh(t, "s1", "echo kept > file")
	fill(t, filepath.Join(disk, "filler"), 1<<20)
	want := numbersInLines()
	process := boxtest.ShellProcess(numbered + "; until [ -e go ]; do sleep 0.01; done; echo last; until [ -e over ]; do sleep 0.01; done")
	process.Spool, process.Stop = new(quantity.Size(16*quantity.MiB)), &api.Stop{Signal: "SIGKILL"}
	d.NewProcess(t, "s1", "p", process)
	boxtest.Eventually(t, "the process has written all its output to the full disk", func() bool {
		p, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && p.Output[0].Bytes == int64(len(want)) && p.State == "running"
	})
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	d.Sh(t, "s1", "touch go over")
	end := d.Ended(t, "s1", "p")
	if end.Result == nil {
		t.Fatalf("the end: end = %+v, want end.Result != nil", end)
	}
	if end.Result.Status != "exited" || *end.Result.ExitCode != 0 || end.Result.Output[0].Omitted == 0 || !strings.HasSuffix(end.Result.Stdout, "last\n") {
		t.Errorf(`the end: *end.Result = %s, want end.Result.Status == "exited" and *end.Result.ExitCode == 0 and end.Result.Output[0].Omitted != 0 and end.Result.Stdout ending with "last\n"`,
			boxtest.Show(*end.Result))
	}
	a := d.Raw(t, "GET", "/v1/sessions/s1/processes/p/logs?stream=stdout&format=ndjson&stdout=0&stderr=0", "")
	all := want + "last\n"
	var at, gone int64
	for lines := json.NewDecoder(bytes.NewReader(a.Body)); lines.More(); {
		var l api.LogLine
		if err := lines.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if l.Offset != at || l.Gap == 0 && l.Data != all[at:at+int64(len(l.Data))] {
			t.Fatalf("at %d the message is %+v", at, l)
		}
		at, gone = at+l.Gap+int64(len(l.Data)), gone+l.Gap
	}
	if at != int64(len(all)) || gone == 0 || gone > int64(len(want)) {
		t.Errorf("%d bytes of %d, of which %d are missing", at, len(all), gone)
	}
	if got := d.Sh(t, "s1", "cat file"); got != "kept\n" {
		t.Errorf(`the file has %q, want "kept\n"`, got)
	}
}

// fill fills a filesystem with a file, except for but bytes.
func fill(t *testing.T, file string, but int64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, err = io.WriteString(f, "x"); err == nil; {
		_, err = f.Write(make([]byte, 64<<10))
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(st.Size() - but); err != nil {
		t.Fatal(err)
	}
}

// Spooled output ends with its box, like output in memory: a session that is stopped and started has none of it, and no file is left.
func TestSpooledOutputEndsWithItsBox(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	process := boxtest.ShellProcess("[ -e again ] || seq 100000; touch again; echo begun; exec sleep 100000")
	process.Spool, process.Restart = new(quantity.Size(8*quantity.MiB)), &api.Restart{Policy: "always"}
	d.NewProcess(t, "s1", "p", process)
	boxtest.Eventually(t, "the process has started", func() bool { return strings.HasSuffix(logsOf(t, d, "p", 0), "begun\n") })
	if _, err := d.StopSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.StartSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	boxtest.Eventually(t, "the process has started again", func() bool {
		p, err := d.Process(t.Context(), "s1", "p", 0)
		return err == nil && p.Output[0].Bytes > 0
	})
	if got := logsOf(t, d, "p", 0); got != "begun\n" {
		t.Errorf("the output begins with %.40q", got)
	}
}
