// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// fakeKeeper is a run directory in which a test plays the keeper.
type fakeKeeper struct {
	t        *testing.T
	cfg      KeeperConfig
	listener *fdpass.Listener
}

func newFakeKeeper(t *testing.T) *fakeKeeper {
	t.Helper()
	run := t.TempDir()
	if err := os.Mkdir(filepath.Join(run, isolation.KeeperDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"boxinit", "boxfiles", "boxnet"} { // only their modification times are used
		if err := os.WriteFile(filepath.Join(run, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &fakeKeeper{t: t, cfg: KeeperConfig{
		KeeperConfig: isolation.KeeperConfig{RunDir: run, BoxInit: filepath.Join(run, "boxinit"), Allow: []string{"/srv"}},
		Program:      "/bin/false", External: true, Log: slog.New(slog.DiscardHandler),
	}}
	s.listen()
	t.Cleanup(func() { s.listener.Close() })
	return s
}

// listen starts to listen, as a starting keeper does.
func (s *fakeKeeper) listen() {
	s.t.Helper()
	dir, err := os.Open(filepath.Join(s.cfg.RunDir, isolation.KeeperDir))
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	_ = os.Remove(filepath.Join(dir.Name(), isolation.KeeperSocket))
	fd, err := fdpass.Bind(int(dir.Fd()), isolation.KeeperSocket)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.listener, err = fdpass.NewListener(fd); err != nil {
		s.t.Fatal(err)
	}
}

// peer is the keeper's end of a connection.
type peer struct {
	t    *testing.T
	conn *fdpass.Conn
}

// accept accepts a connection and sends the greeting.
func (s *fakeKeeper) accept(greeting *isolation.Greeting) *peer {
	s.t.Helper()
	fd, err := s.listener.Accept()
	if err != nil {
		s.t.Error(err)
		return nil
	}
	conn, err := fdpass.FromFD(fd, fdpass.MaxInline)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	s.t.Cleanup(func() { conn.Close() })
	p := &peer{s.t, conn}
	if number, req := p.nextRequest(); !cmp.Equal(req, isolation.KeeperRequest(&isolation.Hello{Version: isolation.KeeperVersion})) {
		s.t.Errorf("greeted with %d, %+v", number, req)
	}
	p.send(0, greeting)
	return p
}

func (s *fakeKeeper) greeting() *isolation.Greeting {
	return &isolation.Greeting{Version: isolation.KeeperVersion, Flags: s.cfg.Flags()}
}

func (p *peer) nextRequest() (number uint32, req isolation.KeeperRequest) {
	p.t.Helper()
	body, _, err := p.conn.Recv(false)
	if err != nil {
		p.t.Errorf("nothing is heard: %v", err)
		return 0, nil
	}
	number, req, err = isolation.DecodeKeeperRequest(body)
	if err != nil {
		p.t.Error(err)
	}
	return number, req
}

func (p *peer) send(number uint32, reply isolation.KeeperReply, files ...int) {
	p.t.Helper()
	if err := p.conn.Send(isolation.EncodeKeeperReply(number, reply), files...); err != nil {
		p.t.Error(err)
	}
}

// reply answers the next request, whichever it is.
func (p *peer) reply(reply isolation.KeeperReply, files ...int) {
	p.t.Helper()
	number, _ := p.nextRequest()
	p.send(number, reply, files...)
}

// connect returns a connected pair of a Keeper and its peer.
func (s *fakeKeeper) connect() (*Keeper, *peer) {
	s.t.Helper()
	accepted := make(chan *peer, 1)
	go func() { accepted <- s.accept(s.greeting()) }()
	k, err := StartKeeper(s.t.Context(), s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(k.Detach)
	return k, <-accepted
}

func TestAnotherKeeperThanWantedIsAnError(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	for _, tc := range []struct {
		greeting isolation.Greeting
		want     string
	}{
		{isolation.Greeting{Version: isolation.KeeperVersion + 1, Other: "?"}, "version"},
		{isolation.Greeting{Version: isolation.KeeperVersion, Flags: append(s.cfg.Flags(), "-allow=/")}, `"-allow=/" instead of nothing more`},
	} {
		go s.accept(&tc.greeting)
		if k, err := StartKeeper(t.Context(), s.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
			if err == nil {
				k.Detach()
			}
		}
	}
	k, p := s.connect() // whatever the version of its programs
	k.Detach()
	if _, _, err := p.conn.Recv(false); err == nil {
		t.Error("something is said at the end")
	}
	<-k.Done()
	if err := k.End(t.Context(), "x", true); !errors.Is(err, ErrKeeperGone) {
		t.Errorf("a request afterwards: %v", err)
	}
}

func TestAKeeperOfAnEarlierVersionIsDismissed(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	s.cfg.External = false
	left := make(chan bool, 1)
	go func() {
		p := s.accept(&isolation.Greeting{Version: isolation.KeeperVersion - 1})
		_, req := p.nextRequest()
		s.listener.Close()
		p.conn.Close()
		_, leave := req.(*isolation.Leave)
		left <- leave
	}()
	_, err := StartKeeper(t.Context(), s.cfg) // the program it starts exits without a message
	if err == nil || !strings.Contains(err.Error(), "/bin/false has ended at once: exit status 1") {
		t.Errorf("%v", err)
	}
	if !<-left {
		t.Error("it has not been asked to leave")
	}
}

func TestNoKeeperInTime(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	s.listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it must have tried before that
	defer cancel()
	if _, err := StartKeeper(ctx, s.cfg); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}

func TestAListComesInPages(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	k, p := s.connect()
	var all []string
	for i := range 2500 {
		all = append(all, fmt.Sprintf("%032d", i))
	}
	go func() {
		for from := 0; from < len(all); from += isolation.ListPage {
			number, req := p.nextRequest()
			if list, ok := req.(*isolation.ListBoxes); !ok || from > 0 && list.After != all[from-1] {
				t.Errorf("asked for %+v", req)
				return
			}
			to := min(from+isolation.ListPage, len(all))
			p.send(number, &isolation.Listed{Keys: all[from:to], More: to < len(all)})
		}
		p.reply(&isolation.Listed{More: true})
		p.reply(&isolation.Listed{})
		p.reply(&isolation.Done{})
	}()
	if got, err := k.List(t.Context()); err != nil || !slices.Equal(got, all) {
		t.Errorf("%d keys, %v", len(got), err)
	}
	if _, err := k.List(t.Context()); !errors.Is(err, isolation.ErrMalformed) {
		t.Errorf("a list without end: %v", err)
	}
	if got, err := k.List(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("no box: %q, %v", got, err)
	}
	if _, err := k.List(t.Context()); !errors.Is(err, isolation.ErrMalformed) {
		t.Errorf("the reply to another request: %v", err)
	}
}

func TestAdoptBringsAConnectionAndAProcess(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	k, p := s.connect()
	go func() {
		number, req := p.nextRequest()
		a, b := memory(t, "a"), memory(t, "b")
		defer fdpass.CloseAll([]int{a, b})
		adopt, ok := req.(*isolation.Adopt)
		if !ok {
			t.Errorf("asked for %+v", req)
			return
		}
		p.send(number, &isolation.Launched{PID: 42, Group: adopt.Key}, a, b)
		p.reply(&isolation.Launched{}, a)
		p.reply(&isolation.StepError{Errno: unix.ESRCH})
	}()
	launched, control, pidfd, err := k.adopt(t.Context(), "x")
	if err != nil || launched.PID != 42 || launched.Group != "x" || control < 0 || pidfd < 0 {
		t.Errorf("%+v, %d, %d, %v", launched, control, pidfd, err)
	}
	fdpass.CloseAll([]int{control, pidfd})
	for _, want := range []error{unix.EMFILE, unix.ESRCH} {
		if _, _, _, err := k.adopt(t.Context(), "x"); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

func TestAnotherKeeperIsFoundWhenOneIsLost(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	k, first := s.connect()
	ended, launched := make(chan error, 1), make(chan error, 1)
	go func() { ended <- k.End(t.Context(), "to end", false) }()
	first.nextRequest()
	go func() {
		_, err := k.Launch(t.Context(), &isolation.Spec{Key: "to launch"})
		launched <- err
	}()
	first.nextRequest()
	s.listener.Close()
	first.conn.Close()
	s.listen()
	second := s.accept(s.greeting())
	removesWork := map[string]bool{}
	for range 3 { // a repeatable request, the EndBox for a box that may have been started, and then its Launch
		number, req := second.nextRequest()
		launch, isLaunch := req.(*isolation.Launch)
		end, ok := req.(*isolation.EndBox)
		switch {
		case ok:
			removesWork[end.Key] = end.RemoveWork
			second.send(number, &isolation.Done{})
		case isLaunch && launch.Spec.Key == "to launch" && removesWork["to launch"]: // only now are there descriptors for the box
			second.send(number, &isolation.StepError{Errno: unix.EUSERS})
		default:
			t.Fatalf("the next keeper is asked for %+v", req)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the end of a box: %v", err)
	}
	if err := <-launched; !errors.Is(err, unix.EUSERS) {
		t.Errorf("a launch: %v", err)
	}
	if work, ok := removesWork["to end"]; !ok || work {
		t.Errorf("%v", removesWork)
	}
	if work, ok := removesWork["to launch"]; !ok || !work {
		t.Errorf("%v", removesWork)
	}
}

// A box whose launch nobody waits for any more is ended with what was made for it, and without what was there before.
func TestAnAbandonedLaunchKeepsExistingFiles(t *testing.T) {
	t.Parallel()
	for _, resume := range []bool{false, true} {
		s := newFakeKeeper(t)
		k, p := s.connect()
		ctx, cancel := context.WithCancel(t.Context())
		launched := make(chan error, 1)
		go func() {
			_, err := k.Launch(ctx, &isolation.Spec{Key: "s", Resume: resume})
			launched <- err
		}()
		number, _ := p.nextRequest()
		cancel()
		if err := <-launched; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		p.send(number, &isolation.Launched{})
		_, req := p.nextRequest()
		if end, ok := req.(*isolation.EndBox); !ok || end.Key != "s" || end.RemoveWork == resume {
			t.Errorf("with files of before %v, the keeper is asked for %+v", resume, req)
		}
	}
}

func TestCloseEndsEveryBox(t *testing.T) {
	t.Parallel()
	s := newFakeKeeper(t)
	for name, answerQuit := range map[string]func(p *peer, number uint32){
		"one that stays": func(p *peer, number uint32) { p.send(number, &isolation.Done{}) },
		"one that ends":  func(p *peer, _ uint32) { p.conn.Close() },
	} {
		k, p := s.connect()
		go func() {
			number, req := p.nextRequest()
			if _, ok := req.(*isolation.Quit); !ok {
				t.Errorf("%s is asked for %+v", name, req)
			}
			answerQuit(p, number)
		}()
		if err := k.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAKeeperIsPresentWhileItIsConnected(t *testing.T) {
	t.Parallel()
	k, _ := newFakeKeeper(t).connect()
	if !k.Present() {
		t.Error("one that has just greeted is not")
	}
	k.Detach()
	if k.Present() {
		t.Error("one that was left is")
	}
}
