// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
)

// WorkerCommand is the argument that makes the keeper's program a worker.
const WorkerCommand = "errands"

// numberLen is the length in bytes of the job number that each message begins with.
const numberLen = 8

// socket is the descriptor that a worker is started with.
const socket = 3

// starter starts workers on one thread that lives as long as the pool: the kernel kills a worker
// when the thread that has started it ends (PR_SET_PDEATHSIG), and threads of the Go runtime come
// and go.
type starter struct{ requests chan chan<- started }

type started struct {
	w   *worker
	err error
}

func (s *starter) serve(ctx context.Context, args []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case answer := <-s.requests:
			w, err := start(args)
			answer <- started{w, err}
		case <-ctx.Done():
			return
		}
	}
}

// start has a worker started. It waits for the starter no longer than ctx lasts.
func (s *starter) start(ctx context.Context) (*worker, error) {
	answer := make(chan started, 1)
	select {
	case s.requests <- answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	got := <-answer // this takes milliseconds, and depends on nothing of the caller
	return got.w, got.err
}

// start starts a worker without environment, and with no descriptor but its socket.
func start(args []string) (*worker, error) {
	conn, pidfd, err := fdpass.StartProgram("/proc/self/exe", append([]string{"boxkeeper", WorkerCommand}, args...), nil, syscall.SysProcAttr{Pdeathsig: unix.SIGKILL})
	if err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	if err := unix.SetNonblock(pidfd, true); err != nil { // so that the Go poller watches it
		unix.Close(pidfd)
		conn.Close()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return &worker{conn: conn, pidfd: os.NewFile(uintptr(pidfd), "pidfd")}, nil
}

// handler does one job. The descriptors that come with it are closed afterwards, and those of its
// answer once that is sent.
type handler func(request []byte, files []int) (answer []byte, out []int)

// serveWorker is the main loop of a worker. It ends when the keeper has closed the socket.
func serveWorker(do handler) error {
	unix.CloseOnExec(socket)
	buf := fdpass.NewBuffer(fdpass.MaxInline)
	for {
		body, files, err := fdpass.Recv(socket, buf, false)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(body) < numberLen {
			return fdpass.ErrMalformed
		}
		number := append([]byte(nil), body[:numberLen]...)
		answer, out := do(body[numberLen:], files)
		fdpass.CloseAll(files)
		err = fdpass.Send(socket, append(number, answer...), out...)
		fdpass.CloseAll(out)
		if err != nil {
			return err
		}
	}
}
