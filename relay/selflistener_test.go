// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// idling returns an idleListener.
func idling(t *testing.T, after time.Duration, idle func() bool) *idleListener {
	t.Helper()
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close() })
	return &idleListener{UnixListener: unix, After: after, Idle: idle}
}

func TestAnIdleListenerGivesUpAfterItsTime(t *testing.T) {
	t.Parallel()
	const after = 40 * time.Millisecond
	looked := 0
	var busy time.Time // when boxd was last in use
	l := idling(t, after, func() bool {
		looked++
		if looked == 2 { // after the first attempt it cannot have given up, however late the check is
			busy = time.Now()
			return false
		}
		return true
	})
	conn, err := l.Accept()
	if !errors.Is(err, errIdle) || conn != nil {
		t.Fatalf("conn = %v, err = %v, want err is errIdle and conn == nil", conn, err)
	}
	if passed := time.Since(busy); looked <= 3 || passed < after {
		t.Errorf("Accept gave up after %d attempts and %v", looked, passed)
	}
}

func TestAConnectionBeginsTheIdleTimeAnew(t *testing.T) {
	t.Parallel()
	l := idling(t, time.Minute, func() bool { return true })
	l.since = time.Now().Add(-time.Hour) // the next look would be the last
	caller, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	const after = 40 * time.Millisecond
	l.After = after
	start := time.Now()
	if _, err := l.Accept(); !errors.Is(err, errIdle) || time.Since(start) < after {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("of a closed listener: err = %v, want err is net.ErrClosed", err)
	}
}
