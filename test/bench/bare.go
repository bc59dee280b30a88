// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/test/bench/floor"
)

// Requests of the client in C (see floor).
var (
	createRequest = []string{"POST", "/v1/sessions", `{"id":"cycle"}`, `"state":"ready"`}
	deleteRequest = []string{"DELETE", "/v1/sessions/cycle", "", " 204 "}
)

func execRequest(session string) []string {
	return []string{"POST", "/v1/sessions/" + session + "/exec", `{"argv":["` + program + `"]}`, `"exit_code":0`}
}

// blockingClient measures requests of a client in C, which waits for the answer in read(2): what a client takes itself is not to be
// in the figure.
func (b *bench) blockingClient(ctx context.Context, daemon string, requests ...[]string) (func() (time.Duration, error), error) {
	h, err := floor.NewTimer(ctx, b.floor(), append([]string{"-c", filepath.Join(b.dir, daemon, "s")}, slices.Concat(requests...)...)...)
	if err != nil {
		return nil, err
	}
	return h.Once, nil
}

// bareClient is a minimal HTTP client, so that the measurements are those of boxd.
type bareClient struct {
	conn net.Conn
	in   *bufio.Reader
}

func newBareClient(socket string) (*bareClient, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &bareClient{conn: conn, in: bufio.NewReader(conn)}, nil
}

// exec runs the program in a session and checks that the answer has exit code 0.
func (c *bareClient) exec(session string) error {
	return c.expect("/v1/sessions/"+session+"/exec", `{"argv":["`+program+`"]}`, `"exit_code":0`)
}

// expect makes a request and checks that its answer contains some text.
func (c *bareClient) expect(path, body, text string) error {
	_, err := fmt.Fprintf(c.conn, "POST %s HTTP/1.1\r\nHost: boxd\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	if err != nil {
		return err
	}
	length := 0
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return err
		}
		if value, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
		if line == "\r\n" {
			break
		}
	}
	answer := make([]byte, length)
	if _, err := io.ReadFull(c.in, answer); err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(text)) {
		return fmt.Errorf("answer %s", answer)
	}
	return nil
}
