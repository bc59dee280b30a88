// SPDX-License-Identifier: Apache-2.0

package survival_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// A boxd that was stopped by a signal for longer than any timeout in a box loses nothing when it continues, although it has not
// been notified of events meanwhile.
func TestNothingIsLostWhenBoxdStandsStill(t *testing.T) {
	t.Parallel() // it waits for most of its time
	d := start(t)
	s := d.NewSession(t, api.SessionRequest{ID: "s1"})
	d.NewProcess(t, "s1", "p", &api.ProcessRequest{Argv: []string{"sleep", "1000"}})
	ends := make(chan error)
	for range 20 {
		go func() { // ends: executions have a timeout
			r, err := d.Exec(t.Context(), "s1", &api.ExecRequest{Argv: []string{"sleep", "1"}, Timeout: new(quantity.Duration(2 * time.Second))})
			if err == nil && r.Status != "exited" && r.Status != "timed_out" { // the latter on a slow host
				err = fmt.Errorf("it is %s: %+v", r.Status, r)
			}
			ends <- err
		}()
	}
	<-time.After(time.Second / 2)
	if err := syscall.Kill(d.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(45 * time.Second)
	if err := syscall.Kill(d.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if now, err := d.Session(t.Context(), "s1"); err != nil || now.PID != s.PID {
		t.Errorf("the box of %d is that of %d, %v", s.PID, now.PID, err)
	}
	if p, err := d.Process(t.Context(), "s1", "p", 0); err != nil || p.State != "running" {
		t.Errorf(`the process is %+v, %v, want no error and p.State == "running"`, p, err)
	}
}
