// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/systemd"
)

// boxd-scopes.service and boxd-files.service do for boxd what it could only do as root. Each has one socket, which systemd makes, and is
// told by -user whom to serve there.

// maxHelped is how many connections such a service serves at once; others wait.
const maxHelped = 64

// helper serves the socket of such a unit.
type helper struct {
	unit     string // its name
	boxdUser identity
	serve    func(context.Context, int)
	log      *slog.Logger
}

// firstPassed is the descriptor of the only socket that systemd passes (sd_listen_fds(3)).
const firstPassed = 3

// run serves until ctx ends.
func (h *helper) run(ctx context.Context) error {
	if listens, err := unix.GetsockoptInt(firstPassed, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
		return fmt.Errorf("descriptor %d is not the socket of %s.socket: systemd starts %s.service", firstPassed, h.unit, h.unit)
	}
	unix.CloseOnExec(firstPassed)
	listener, err := fdpass.NewListener(firstPassed)
	if err != nil {
		return err
	}
	return h.accept(ctx, listener)
}

// accept serves the connections of a listener until ctx ends, and closes it.
func (h *helper) accept(ctx context.Context, listener *fdpass.Listener) error {
	defer listener.Close()
	defer context.AfterFunc(ctx, listener.Close)()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxHelped)
	for {
		fd, err := listener.Accept()
		switch {
		case ctx.Err() != nil && err == nil:
			unix.Close(fd)
			return nil
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		if err := h.admit(fd); err != nil {
			h.log.Warn("connection refused", "error", err)
			unix.Close(fd)
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			h.serve(ctx, fd)
		})
	}
}

// admit refuses a connection of another user.
func (h *helper) admit(fd int) error {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(peer.Uid) != h.boxdUser.uid {
		err = fmt.Errorf("of uid %d: %w", peer.Uid, unix.EPERM)
	}
	return err
}

// helperLog returns the log of such a service.
func helperLog() *slog.Logger { return slog.New(systemd.Open(systemd.DefaultConfig(), os.Stderr)) }

// serveScopes makes scopes for the boxd of a user, until ctx ends: it is boxd-scopes.service.
func serveScopes(ctx context.Context, boxdUser identity) error {
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find boxkeeper: %w", err)
	}
	scopes := systemd.NewScopes(ctx)
	defer scopes.Close()
	keeper := filepath.Join(filepath.Dir(own), "boxkeeper")
	log := helperLog()
	server := &driver.ScopeServer{Scopes: scopes, Program: func() string { return keeper }, Log: log}
	return (&helper{unit: "boxd-scopes", boxdUser: boxdUser, serve: server.ServeConn, log: log}).run(ctx)
}

// filesTimeout is how long a client may take to ask, and to receive.
const filesTimeout = 5 * time.Second

// serveFiles opens files for the boxd of a user, until ctx ends: it is boxd-files.service.
func serveFiles(ctx context.Context, boxdUser identity, path string, load func() (Config, error)) error {
	server := &fileServer{path: path, load: load, log: helperLog(), named: map[string]bool{}}
	return (&helper{unit: "boxd-files", boxdUser: boxdUser, serve: server.serve, log: server.log}).run(ctx)
}

// fileServer opens the files of a configuration, and those that the configuration names, for boxd, which has a user of its own and
// cannot read files of root: keys, tokens and passwords.
type fileServer struct {
	path string // of the configuration
	load func() (Config, error)
	log  *slog.Logger

	mu    sync.Mutex
	named map[string]bool // files that it has named since this process started, as boxd may still run with it: guarded by mu
}

// serve answers one request.
func (s *fileServer) serve(_ context.Context, fd int) {
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(filesTimeout.Nanoseconds())
	body := make([]byte, durable.MaxFileMessage)
	err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
	n := 0
	if err == nil {
		err = durable.Again(func() (err error) { n, err = unix.Read(fd, body); return err })
	}
	var req durable.FileRequest
	if err == nil {
		err = json.Unmarshal(body[:n], &req)
	}
	if err != nil {
		s.log.Warn("malformed request", "error", err)
		return
	}
	f, reply := s.open(&req)
	var rights []byte
	if f != nil {
		defer f.Close()
		rights = unix.UnixRights(int(f.Fd()))
	}
	if body, err = json.Marshal(reply); err == nil {
		err = durable.Again(func() error { return unix.Sendmsg(fd, body, rights, nil, unix.MSG_NOSIGNAL) })
	}
	if err != nil {
		s.log.Warn("cannot answer", "error", err)
	}
}

// open opens the file of a request, if the configuration names it.
func (s *fileServer) open(req *durable.FileRequest) (*os.File, *durable.FileReply) {
	if err := s.allows(req.Path); err != nil {
		s.log.Warn("a file is not opened", "path", req.Path, "error", err)
		return nil, &durable.FileReply{Why: err.Error()}
	}
	f, err := req.Open()
	if err == nil {
		if info, serr := f.Stat(); serr != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, &durable.FileReply{Why: "it is no regular file"}
		}
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return nil, &durable.FileReply{Errno: errno}
	}
	if err != nil {
		return nil, &durable.FileReply{Why: err.Error()}
	}
	return f, &durable.FileReply{}
}

// allows returns why a file is neither one of the configuration nor named by it. A configuration that cannot be read, since somebody is
// writing it, names what it did before.
func (s *fileServer) allows(path string) error {
	files, err := dropIns(dropInDirs(s.path))
	if err == nil && slices.Contains(append(files, s.path), path) {
		return nil
	}
	cfg, err := s.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		for _, name := range cfg.named() {
			s.named[name] = true
		}
	}
	switch {
	case s.named[path]:
		return nil
	case err != nil:
		return fmt.Errorf("the configuration cannot be read: %w", err)
	default:
		return errors.New("boxd-files.service opens only files that the configuration names")
	}
}
