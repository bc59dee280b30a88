// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// greet builds the first message to every boxd.
func (k *keeper) greet() error {
	var own, boxInit, boxFiles, boxNet unix.Stat_t
	err := unix.Stat("/proc/self/exe", &own)
	if err == nil {
		err = unix.Fstat(k.boxInit, &boxInit)
	}
	if err == nil {
		err = unix.Fstat(k.boxFiles, &boxFiles)
	}
	if err == nil {
		err = unix.Fstat(k.net.exe, &boxNet)
	}
	if err != nil {
		return fmt.Errorf("programs: %w", err)
	}
	k.greeting = isolation.Greeting{Version: isolation.KeeperVersion, Flags: k.cfg.Flags(), Programs: isolation.ProgramsID(&own, &boxInit, &boxFiles, &boxNet)}
	return nil
}

// firstTimeout is how long a keeper waits for the boxd that has started it.
const firstTimeout = 30 * time.Second

// serve answers one boxd after the other. It returns when ctx ends or boxd asks for it, and,
// unless the keeper lingers, when there is neither a boxd nor a box. A keeper that does not
// linger belongs to the boxd it serves, which may be stopped by the same signal and need it for
// that: so it ends only after that boxd has gone.
func (k *keeper) serve(ctx context.Context) error {
	serveCtx := ctx
	if !k.cfg.Linger {
		serveCtx = context.WithoutCancel(ctx)
	}
	stopReaper := startReaper()
	defer stopReaper()
	k.sources.Pool.Warm()
	if k.cfg.FileLocks > 0 {
		watchCtx, stopWatch := context.WithCancel(serveCtx)
		var watch sync.WaitGroup
		watch.Go(func() { k.watchLocks(watchCtx) })
		defer watch.Wait()
		defer stopWatch()
	}
	conns, stop := k.accept()
	defer stop()
	first := time.NewTimer(firstTimeout)
	defer first.Stop()
	for waiting := true; ; {
		var conn *fdpass.Conn
		var number uint32
		var last isolation.KeeperRequest
		select {
		case conn = <-conns:
			waiting = false
			number, last = k.converse(serveCtx, conn)
		case <-first.C:
			waiting = false
		case <-k.ended:
		case <-ctx.Done():
			k.close()
			return nil
		}
		_, leave := last.(*isolation.Leave)
		_, quit := last.(*isolation.Quit)
		if quit {
			k.endAll()
		}
		switch {
		case leave, ctx.Err() != nil, !waiting && !k.cfg.Linger && (quit || k.idle()):
			k.close()
			if conn != nil { // last of all: boxd waits for it to close
				conn.Close()
			}
			return nil
		case quit:
			_ = conn.Send(isolation.EncodeKeeperReply(number, &isolation.Done{})) // boxd may be gone already
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// accept accepts connections of boxd's user. stop must be called; it closes the listener.
func (k *keeper) accept() (conns <-chan *fdpass.Conn, stop func()) {
	accepted, done := make(chan *fdpass.Conn), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			fd, err := k.listener.Accept()
			if err != nil && !errors.Is(err, os.ErrClosed) {
				k.cfg.Log.Printf("cannot accept connections: %v", err)
				select { // out of descriptors now, maybe not later
				case <-time.After(acceptAgain):
					continue
				case <-done:
				}
			}
			if err != nil {
				return
			}
			conn, err := k.admit(fd)
			if err != nil {
				k.cfg.Log.Printf("refused a connection: %v", err)
				continue
			}
			select {
			case accepted <- conn:
			case <-done:
				conn.Close()
				return
			}
		}
	})
	return accepted, func() {
		close(done)
		k.listener.Close()
		wg.Wait()
	}
}

// acceptAgain is the pause before the next accept after one has failed.
const acceptAgain = 100 * time.Millisecond

// admit checks a connection against the one rule there is: the peer has the uid of boxd.
func (k *keeper) admit(fd int) (*fdpass.Conn, error) {
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && peer.Uid != k.cfg.BoxdUID {
		err = fmt.Errorf("of uid %d: %w", peer.Uid, unix.EPERM)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return fdpass.FromFD(fd, fdpass.MaxInline)
}

// converse answers requests of boxd until that closes its end of the connection, or sends its
// last one, Leave or Quit, which converse returns. All others have been answered by then. The
// connection stays the caller's.
func (k *keeper) converse(ctx context.Context, conn *fdpass.Conn) (number uint32, last isolation.KeeperRequest) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	wanted, cancel := context.WithCancel(ctx) // waits for filesystems end once boxd is gone
	defer cancel()
	var requests sync.WaitGroup
	defer requests.Wait()
	slots, large := make(chan struct{}, maxRequests), make(chan struct{}, 1)
	for {
		number, req, size, err := receive(conn)
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				k.cfg.Log.Printf("the connection to boxd failed: %v", err)
			}
			conn.Close() // so that no answer blocks on a boxd that has stopped
			cancel()
			return 0, nil
		}
		switch req.(type) {
		case *isolation.Leave, *isolation.Quit:
			return number, req
		}
		slot := slots
		if size > fdpass.MaxInline {
			slot = large
		}
		slot <- struct{}{}
		requests.Go(func() {
			defer func() { <-slot }()
			k.answer(wanted, conn, number, req)
		})
	}
}

// maxRequests is how many requests are handled at the same time, and one more that is longer than
// fdpass.MaxInline; what comes after waits in the socket. Each takes a goroutine and a thread
// while it waits for the kernel, so that a boxd that has gone astray could otherwise take all
// threads and memory of root.
const maxRequests = 256

// receive waits for the next request of boxd, and returns it with its size in bytes.
func receive(conn *fdpass.Conn) (number uint32, req isolation.KeeperRequest, size int, err error) {
	body, files, err := conn.Recv(false)
	if err != nil {
		return 0, nil, 0, err
	}
	fdpass.CloseAll(files) // no request has descriptors
	number, req, err = isolation.DecodeKeeperRequest(body)
	return number, req, len(body), err
}
