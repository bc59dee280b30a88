// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// ends returns the far ends of three pipes, and near, the ends that the program would have.
func ends(t *testing.T) (far, near []*os.File) {
	t.Helper()
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		if i == 0 {
			r, w = w, r
		}
		far, near = append(far, r), append(near, w)
	}
	return far, near
}

func isClosed(f *os.File) bool {
	_, err := f.Stat()
	return errors.Is(err, os.ErrClosed)
}

func allClosed(t *testing.T, files []*os.File, want bool) {
	t.Helper()
	for i, f := range files {
		if isClosed(f) != want {
			t.Errorf("descriptor %d: closed is %v, want isClosed(f) == want", i, !want)
		}
	}
}

// direct returns a direct process whose program has started.
func direct(t *testing.T) (*Process, []*os.File) {
	t.Helper()
	far, _ := ends(t)
	p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Command.Direct, s.Lease = true, new(time.Second) }))
	p.stdio.setFiles(far)
	close(p.up)
	return p, far
}

func refusedWith(t *testing.T, err error, want string) {
	t.Helper()
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Conflict || !strings.Contains(f.Error(), want) {
		t.Errorf("%v, want a conflict: %s", err, want)
	}
}

func TestDescriptorsAreTakenOnce(t *testing.T) {
	t.Parallel()
	p, far := direct(t)
	files, err := p.TakeStdio(t.Context())
	if err != nil || len(files) != 3 || files[0] != far[0] || files[2] != far[2] {
		t.Fatalf("files = %v, err = %v, want no error and len(files) == 3 and files[0] == far[0] and files[2] == far[2]",
			files, err)
	}
	if end, leased := p.leaseEndLocked(); !leased || time.Until(end) > time.Second {
		t.Errorf("the lease of the client that took the descriptors ends in %v", time.Until(end))
	}
	for range 2 {
		_, err = p.TakeStdio(t.Context())
		refusedWith(t, err, goneTaken)
	}
	p.stdio.drop(goneEnded)
	allClosed(t, far, false) // the caller owns them
	_, err = p.TakeStdio(t.Context())
	refusedWith(t, err, goneTaken)
}

func TestUntakenStdioDescriptorsAreClosedAfterATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, far := direct(t)
		<-time.After(stdioTimeout - 1)
		synctest.Wait()
		allClosed(t, far, false)
		<-time.After(1)
		synctest.Wait()
		allClosed(t, far, true)
		_, err := p.TakeStdio(t.Context())
		refusedWith(t, err, goneLate)
	})
	synctest.Test(t, func(t *testing.T) {
		p, far := direct(t)
		<-time.After(stdioTimeout - 1)
		if _, err := p.TakeStdio(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(stdioTimeout)
		synctest.Wait()
		allClosed(t, far, false)
	})
}

func TestDescriptorsEndWithTheProgram(t *testing.T) {
	t.Parallel()
	p, far := direct(t)
	p.stdio.drop(goneEnded)
	allClosed(t, far, true)
	_, err := p.TakeStdio(t.Context())
	refusedWith(t, err, goneEnded)
}

func TestDescriptorsOfAnEarlierBoxdAreGone(t *testing.T) {
	t.Parallel()
	p := newProcess(Hooks{}, resolved(t, func(s *Spec) { s.Command.Direct = true }))
	p.stdio.setFiles(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.TakeStdio(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("before it has started: err = %v, want err is context.Canceled", err)
	}
	close(p.up)
	_, err := p.TakeStdio(t.Context())
	refusedWith(t, err, goneEarlier)
}

func TestOnlyADirectProcessGivesItsDescriptorsAway(t *testing.T) {
	t.Parallel()
	p := newProcess(Hooks{}, resolved(t, nil))
	_, err := p.TakeStdio(t.Context())
	refusedWith(t, err, `stdio = "direct"`)
	if err := p.Attachable(); err != nil {
		t.Error(err)
	}
	p, _ = direct(t)
	_, err = p.Attach(t.Context(), AttachOptions{})
	refusedWith(t, err, `stdio = "direct"`)
}

func TestADirectProcessIsRefusedWhatBoxdWouldHaveToSee(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*Spec){
		"terminal": func(s *Spec) {
			s.Command.Terminal, s.Command.Stdin = &isolation.Terminal{Rows: 1, Cols: 1}, isolation.StdinPipe
		},
		"stdin":          func(s *Spec) { s.Command.Stdin = isolation.StdinPipe },
		"ready.line":     func(s *Spec) { s.Ready = &Ready{Line: new("up")} },
		"restart.policy": func(s *Spec) { s.Restart.Policy = RestartAlways },
	} {
		s := &Spec{ID: "p", Command: isolation.Command{Direct: true}}
		change(s)
		if f, ok := errors.AsType[*fault.Error](s.Resolve()); !ok || f.Field != field {
			t.Errorf("%s: f = %v, want ok == true and f.Field == field", field, f)
		}
		s.Command.Direct = false
		if err := s.Resolve(); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
	s := &Spec{ID: "p", Command: isolation.Command{Direct: true}, Ready: &Ready{Port: new(80)}}
	if err := s.Resolve(); err != nil {
		t.Error(err)
	}
}
