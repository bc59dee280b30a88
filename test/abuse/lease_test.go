// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// stay attaches to a process of s1, prints so, and stays attached. It plays the host of an MCP client.
func stay(socket string, args []string) error {
	c := client.New(socket)
	in, _ := io.Pipe()
	o := client.AttachOptions{Write: true, Lines: true, Attached: func(*api.StreamAttached) { fmt.Fprintln(os.Stdout, "attached") }}
	_, err := c.Attach(context.Background(), "s1", args[0], o, client.Stdio{Stdin: in, Stdout: io.Discard, Stderr: io.Discard}, nil)
	return err
}

// A server that ignores input and signals ends when its client's lease expires, every time.
func TestT71ServersEndWithTheirClients(t *testing.T) {
	t.Parallel()
	const (
		lease, grace, margin = time.Second, 200 * time.Millisecond, 2 * time.Minute
		rounds, atOnce       = 5, 10
	)
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	cycle := func(p string) error {
		req := boxtest.ShellProcess("trap '' TERM INT HUP; echo deaf; while :; do read line; sleep 0.1; done")
		req.Stdin, req.Lease, req.Stop = true, new(quantity.Duration(lease)), &api.Stop{Grace: new(quantity.Duration(grace))}
		if _, _, err := d.StartProcess(t.Context(), "s1", p, req); err != nil {
			return err
		}
		boxtest.Eventually(t, "the server has written something or has ended", func() bool {
			s, err := d.Process(t.Context(), "s1", p, 0)
			return err != nil || s.EndedAt != nil || s.Output[0].Bytes > 0
		})
		host := d.Caller(t, 0, "attach", p)
		out, err := host.StdoutPipe()
		if err := errors.Join(err, host.Start()); err != nil {
			return err
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		killed := time.Now()
		kerr := host.Process.Signal(syscall.SIGKILL)
		_ = host.Wait() // killed, as asked
		if err := errors.Join(err, kerr); err != nil || line != "attached\n" {
			return fmt.Errorf("the client prints %q: %w", line, err)
		}
		end, err := d.Process(t.Context(), "s1", p, 5*time.Minute)
		if err != nil {
			return err
		}
		if end.EndedAt == nil {
			return fmt.Errorf("%s still runs: %+v", p, end)
		}
		if after := end.EndedAt.Sub(killed); end.Reason != "lease" || end.Result.Signal != "SIGKILL" || after < lease || after > lease+grace+margin {
			return fmt.Errorf("%s after %v: %+v", p, after, end)
		}
		return d.DeleteProcess(t.Context(), "s1", p)
	}
	if err := cycle("first"); err != nil {
		t.Fatal(err)
	}
	const count = "set -- /proc/[0-9]*; echo $#"
	before, inside := settled(t, d), d.Sh(t, "s1", count)
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range atOnce {
			wg.Go(func() {
				if err := cycle(fmt.Sprintf("%d-%d", round, i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		boxtest.Eventually(t, fmt.Sprintf("after round %d the box has %s processes, as before", round, inside), func() bool { // its init reaps orphans
			return d.Sh(t, "s1", count) == inside
		})
	}
	d.NothingLeft(before)
}

// A client keeps its lease: a server to which it is attached, or which it renews, goes on.
func TestT71ALeaseThatIsKeptEndsNothing(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	d.NewSession(t, api.SessionRequest{ID: "s1"})
	for _, p := range []string{"attached", "renewed", "left"} {
		req := boxtest.ShellProcess("sleep 1000")
		req.Lease = boxtest.Duration("20s") // much more than there is between two renewals on a busy host
		d.NewProcess(t, "s1", p, req)
		c, _ := d.AttachPeer(t, "s1", p, api.StreamAttach{}) // before the first attach a lease is longer
		if p != "attached" {
			_ = c.WS.CloseNow()
		}
	}
	boxtest.Eventually(t, "the process whose lease nobody renews has ended", func() bool {
		if _, err := d.RenewProcess(t.Context(), "s1", "renewed"); err != nil {
			t.Fatal(err)
		}
		s, err := d.Process(t.Context(), "s1", "left", 0)
		return err == nil && s.State == "ended" && s.Reason == "lease"
	})
	for _, p := range []string{"attached", "renewed"} {
		if s, err := d.Process(t.Context(), "s1", p, 0); err != nil || s.State != "running" {
			t.Errorf(`%s: s = %+v, err = %v, want no error and s.State == "running"`, p, s, err)
		}
	}
}

// If "boxctl mcp run" is killed, its server ends within seconds, and its box too.
func TestT71AServerAndItsBoxEndWithAKilledBoxctl(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.Warm()
	before := d.Look()
	cmd := exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxctl"), "mcp", "run", "deaf", "--", "sh", "-c", "trap '' TERM INT HUP; echo '{}'; while :; do read line; sleep 0.1; done")
	cmd.Env = append(os.Environ(), "BOXD_SOCKET="+d.Socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "{}\n" {
		t.Fatalf(`line = %q, err = %v, want line == "{}\n"`, line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = cmd.Wait() // killed, as asked
	boxtest.Eventually(t, "the box of the server has ended", func() bool {
		list, err := d.Sessions(t.Context(), false)
		return err == nil && len(list) == 0
	})
	t.Logf("after %v", time.Since(killed))
	d.NothingLeft(before)
}
