// SPDX-License-Identifier: Apache-2.0

// Package floor times a command in C, from vfork to wait: what starting a program costs where nothing stands between. It times
// requests over a Unix socket the same way.
package floor

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

//go:embed c/floor.c
var source string

// Compile makes the program that times, at a path. It needs a C compiler.
func Compile(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, "cc", "-O2", "-o", path, "-xc", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the floor: %w: %s", err, out)
	}
	return nil
}

// Timer is that program at work on one command line. It ends with its context, or with this process.
type Timer struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// NewTimer starts the program at a path.
func NewTimer(ctx context.Context, path string, argv ...string) (*Timer, error) {
	cmd := exec.CommandContext(ctx, path, argv...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Timer{in: in, out: bufio.NewReader(out)}, nil
}

// Once runs the command line once. A status other than 0 is an error.
func (h *Timer) Once() (time.Duration, error) {
	if _, err := io.WriteString(h.in, "\n"); err != nil {
		return 0, err
	}
	line, err := h.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	nanos, status, _ := strings.Cut(strings.TrimSpace(line), " ")
	if status != "0" {
		return 0, fmt.Errorf("status %s", status)
	}
	n, err := strconv.ParseInt(nanos, 10, 64)
	return time.Duration(n), err
}
