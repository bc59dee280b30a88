// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

// maxHead is the maximum size of the head of a response, in bytes.
const maxHead = 16 << 10

// ErrNoStdio means that boxd did not pass the requested descriptors.
var ErrNoStdio = errors.New("boxd did not pass the three descriptors")

// Stdio returns the descriptors of a process that was started with stdio "direct": the first one is to write its
// standard input, the others are to read its output and its error. The caller must close them. boxd passes them once.
func (c *Client) Stdio(ctx context.Context, id, p string) (files [3]*os.File, err error) {
	to := c.process(id, p, "/stdio", nil)
	if to.err != nil {
		return files, to.err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://boxd"+to.path, nil)
	if err != nil {
		return files, fmt.Errorf("stdio: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", api.StdioProtocol)
	c.sign(req)
	conn, err := c.dial(ctx)
	if err != nil {
		return files, err
	}
	defer conn.Close()
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return files, fmt.Errorf("%w: descriptors can only be passed over a Unix socket", ErrNoStdio)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	in := &fdReader{conn: socket}
	defer in.close()
	unsent := req.Write(conn)
	err = in.receive(req) // a refused client has an answer, whether its request was sent or not
	if _, ok := errors.AsType[*Error](err); !ok && err != nil {
		err = errors.Join(ctx.Err(), unsent, err)
	}
	if err != nil {
		return files, err
	}
	return in.files()
}

// fdReader reads from a socket, and collects the descriptors that come with the data. All reads must use it: a plain
// read would drop them.
type fdReader struct {
	conn *net.UnixConn
	fds  []int
}

// Read reads from the socket. It fails if there are more descriptors than wanted, or no room for them.
func (r *fdReader) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(b, oob) // close-on-exec
	switch {
	case errors.Is(err, io.EOF):
		return 0, io.EOF // as io.Reader wants it, without the wrapper
	case err != nil:
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		fds, ferr := unix.ParseUnixRights(&messages[i])
		r.fds, err = append(r.fds, fds...), errors.Join(err, ferr)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrNoStdio, err)
	case flags&unix.MSG_CTRUNC != 0:
		return 0, fmt.Errorf("%w, or this process has too many files open", ErrNoStdio)
	}
	return n, nil
}

// close closes the descriptors that were not handed out.
func (r *fdReader) close() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}

// receive reads the response to its end.
func (r *fdReader) receive(req *http.Request) error {
	bound := &io.LimitedReader{R: r, N: maxHead}
	in := bufio.NewReader(bound)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	defer resp.Body.Close()
	bound.N = maxProblem
	if resp.StatusCode >= http.StatusMultipleChoices {
		return refusal(resp)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get("Upgrade"), api.StdioProtocol) {
		return fmt.Errorf("%w: it is %s", ErrNoStdio, resp.Status)
	}
	// One byte, which carries the descriptors, and the end.
	switch rest, err := io.ReadAll(io.LimitReader(in, 2)); {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(rest) != 1:
		return fmt.Errorf("%w: %d bytes come after its head, not 1", ErrNoStdio, len(rest))
	}
	return nil
}

// files returns the descriptors, exactly three of them.
func (r *fdReader) files() (files [3]*os.File, err error) {
	if len(r.fds) != len(files) {
		return files, fmt.Errorf("%w, but %d", ErrNoStdio, len(r.fds))
	}
	for _, fd := range r.fds { // so that Close interrupts Read
		if err := unix.SetNonblock(fd, true); err != nil {
			return files, fmt.Errorf("stdio: %w", err)
		}
	}
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		files[i] = os.NewFile(uintptr(r.fds[i]), name)
	}
	r.fds = nil
	return files, nil
}
